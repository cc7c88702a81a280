"""A login to a remote server: discovery, registration, the link, and the code that comes back (OAuth 2.1 with PKCE).

All that the second half needs is in the encrypted store for ten minutes: any process can complete a login, once.
"""

import secrets
from datetime import UTC, datetime
from hmac import compare_digest
from time import time
from urllib.parse import urlencode, urlsplit

import httpx2
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    create_client_registration_request,
    create_oauth_metadata_request,
    extract_resource_metadata_from_www_auth,
    get_client_metadata_scopes,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    handle_registration_response,
    validate_metadata_issuer,
)
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import Field, ValidationError

from perdure.contracts.models import FrozenModel
from perdure.contracts.people import UNKNOWN
from perdure.features.mcp.activities.config import HttpServer, OAuthAccess
from perdure.features.mcp.activities.grants import (
    Grant,
    GrantError,
    GrantKeeper,
    GrantStore,
    grant_client,
    must_be_trusted,
    name_digest,
    request_token,
)

LOGIN_SECONDS = 600.0
LOGINS = "logins"  # a folder of the store
GRANT_TYPES = ["authorization_code", "refresh_token"]


class LoginError(GrantError):
    """A login does not come to its end. The message is one line without secrets."""


class BegunLogin(FrozenModel):
    """A login that has begun. `browser` is the digest of the cookie of the browser that may end it, if one began it."""

    server: str
    requester: str = ""
    by: str
    verifier: str = Field(repr=False)
    issuer: str
    needs_issuer: bool
    token_endpoint: str
    resource: str
    client_id: str
    client_secret: str | None = Field(default=None, repr=False)
    redirect_uri: str
    scope: str
    browser: str = ""
    ends_at: float


class Authorization(FrozenModel):
    """The place that issues the tokens of a server."""

    metadata: OAuthMetadata
    resource: str
    scope: str | None


async def find_authorization(server: HttpServer) -> Authorization:
    """Discover the authorization server of a remote server. Raises LoginError."""
    try:
        async with grant_client() as http:
            return await _discover(http, server)
    except (httpx2.HTTPError, httpx2.InvalidURL, OAuthFlowError) as error:
        raise LoginError(f"{server.name}: its authorization server is not found: {_line(error)}") from None


async def _discover(http: httpx2.AsyncClient, server: HttpServer) -> Authorization:
    hint = extract_resource_metadata_from_www_auth(await http.get(server.url))
    protected: ProtectedResourceMetadata | None = None
    for url in build_protected_resource_metadata_discovery_urls(hint, server.url):
        if protected := await handle_protected_resource_response(
            await http.send(create_oauth_metadata_request(must_be_trusted(url)))
        ):
            break
    resource = resource_url_from_server_url(server.url)
    if protected is not None:
        named = str(protected.resource)
        if not check_resource_allowed(requested_resource=resource, configured_resource=named):
            raise LoginError(f"{server.name}: its metadata are those of another resource, {named[:200]}")
        resource = named
    issuer = str(protected.authorization_servers[0]) if protected and protected.authorization_servers else None
    for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, server.url):
        answer = await http.send(create_oauth_metadata_request(must_be_trusted(url)))
        goes_on, metadata = await handle_auth_metadata_response(answer)
        if metadata is not None:
            if issuer is not None:
                validate_metadata_issuer(metadata, issuer)
            scope = get_client_metadata_scopes(None, protected, metadata, GRANT_TYPES)
            return Authorization(metadata=metadata, resource=resource, scope=scope)
        if not goes_on:
            break
    raise LoginError(f"{server.name}: it names no authorization server that answers")


async def begin_login(  # noqa: PLR0913 - the facts of a login
    server: HttpServer, store: GrantStore, redirect_uri: str, by: str, browser: str = "", requester: str = ""
) -> tuple[str, str]:
    """Return the link that a person opens, and the state that comes back with them. Raises GrantError, OSError."""
    access = access_of(server)
    if access.is_personal and requester in ("", UNKNOWN):
        raise LoginError(f"a login to {server.name} needs the name of a requester (--for), and {requester!r} is none")
    place = await find_authorization(server)
    before = await store.read(server.name, requester)
    client_id, client_secret = await _client_of(server, access, place.metadata, redirect_uri, before)
    pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
    scope = (before.wants if before else "") or access.scope or place.scope or ""
    login = BegunLogin(
        server=server.name,
        requester=requester,
        by=by,
        verifier=pkce.code_verifier,
        issuer=str(place.metadata.issuer),
        needs_issuer=bool(place.metadata.authorization_response_iss_parameter_supported),
        token_endpoint=must_be_trusted(str(place.metadata.token_endpoint)),
        resource=place.resource,
        client_id=client_id,
        client_secret=client_secret,
        redirect_uri=redirect_uri,
        scope=scope,
        browser=name_digest(browser) if browser else "",
        ends_at=time() + LOGIN_SECONDS,
    )
    await store.create_sealed(f"{LOGINS}/{name_digest(state)}", login)
    query = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
        "resource": place.resource,
        **({"scope": scope} if scope else {}),
    }
    link = must_be_trusted(str(place.metadata.authorization_endpoint))
    return f"{link}{'&' if urlsplit(link).query else '?'}{urlencode(query)}", state


async def _client_of(
    server: HttpServer, access: OAuthAccess, metadata: OAuthMetadata, redirect_uri: str, before: Grant | None
) -> tuple[str, str | None]:
    """Return the client's id and secret: as configured, as registered before, or registered now. Raises LoginError."""
    if access.client_id:
        return access.client_id, access.client_secret
    is_same = before and (before.issuer, before.redirect_uri) == (str(metadata.issuer), redirect_uri)
    if before and is_same and not before.ended:
        return before.client_id, before.client_secret
    asked = OAuthClientMetadata.model_validate(
        {
            "client_name": "Perdure",
            "redirect_uris": [redirect_uri],
            "grant_types": GRANT_TYPES,
            "token_endpoint_auth_method": "client_secret_post",
            "application_type": "native" if urlsplit(redirect_uri).hostname == "127.0.0.1" else "web",
        }
    )
    try:
        request = create_client_registration_request(metadata, asked, str(metadata.issuer))
        must_be_trusted(str(request.url))
        async with grant_client() as http:
            known = await handle_registration_response(await http.send(request))
    except (httpx2.HTTPError, OAuthFlowError, ValidationError) as error:
        hint = f"set client_id in [mcp.{server.name}]"
        raise LoginError(f"{server.name}: Perdure cannot register there, {hint}: {_line(error)}") from None
    if not known.client_id:
        raise LoginError(f"{server.name}: the registration has no client_id")
    return known.client_id, known.client_secret


async def finish_login(store: GrantStore, state: str, code: str, issuer: str | None, browser: str = "") -> Grant:
    """Exchange the code that came back, and store the grant. Raises GrantError, OSError."""
    name = name_digest(state)
    login = await store.read_sealed(f"{LOGINS}/{name}", BegunLogin)
    if login is None or time() > login.ends_at:
        raise LoginError("this login is not known, or older than ten minutes: begin it again")
    if login.browser and not compare_digest(login.browser, name_digest(browser)):
        raise LoginError("another browser began this login: begin it again")
    try:
        await store.use_up(name, LOGINS)
    except FileExistsError:
        raise LoginError("this login was completed before: begin it again") from None
    if issuer != login.issuer and (issuer is not None or login.needs_issuer):
        raise LoginError("the answer comes from another authorization server than was asked")
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": login.redirect_uri,
        "code_verifier": login.verifier,
        "client_id": login.client_id,
        "resource": login.resource,
        **({"client_secret": login.client_secret} if login.client_secret else {}),
    }
    token = await request_token(login.token_endpoint, form)
    if not isinstance(token, OAuthToken):
        raise LoginError(f"the authorization server of {login.server} refuses the code: {token['error'][:100]}")
    return await _store_grant(store, login, token)


async def _store_grant(store: GrantStore, login: BegunLogin, token: OAuthToken) -> Grant:
    """Store a grant as the next version. A refresh that runs meanwhile is of the grant that ends with it."""
    while True:
        before = await store.read(login.server, login.requester)
        first = Grant(
            server=login.server,
            requester=login.requester,
            version=before.version if before else 0,
            generation=before.generation + 1 if before else 1,
            issuer=login.issuer,
            token_endpoint=login.token_endpoint,
            resource=login.resource,
            client_id=login.client_id,
            client_secret=login.client_secret,
            redirect_uri=login.redirect_uri,
            scope=login.scope,
            by=login.by,
            granted_at=datetime.now(UTC),
        )
        grant = first.with_token(token)
        if await store.commit(grant):
            return grant


class MachineKeeper(GrantKeeper):
    """The token of a machine: by the client's own credentials, without a person (RFC 6749, 4.4)."""

    needs_person = False

    def __init__(self, server: HttpServer, store: GrantStore) -> None:
        super().__init__(server, store)
        self._own = server

    async def begin(self) -> Grant | None:
        access = access_of(self._own)
        place = await find_authorization(self._own)
        grant = Grant(
            server=self._own.name,
            version=0,
            generation=1,
            issuer=str(place.metadata.issuer),
            token_endpoint=must_be_trusted(str(place.metadata.token_endpoint)),
            resource=place.resource,
            client_id=access.client_id or "",
            client_secret=access.client_secret,
            scope=access.scope or place.scope or "",
            by="client credentials",
            granted_at=datetime.now(UTC),
        )
        answer = await request_token(grant.token_endpoint, self._with_client(grant, self.form_of(grant) or {}))
        if not isinstance(answer, OAuthToken):
            raise GrantError(f"MCP server {self._own.name} refuses the client: {answer['error'][:100]}")
        return grant.with_token(answer)

    def form_of(self, grant: Grant) -> dict[str, str] | None:
        return {"grant_type": "client_credentials"} | ({"scope": grant.scope} if grant.scope else {})


def access_of(server: HttpServer) -> OAuthAccess:
    if server.oauth is None:
        raise LoginError(f'MCP server {server.name} has no auth = "oauth" in [mcp.{server.name}] of perdure.toml')
    return server.oauth


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
