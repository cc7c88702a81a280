"""Authentication and the rules that apply to every route. The credential is checked first.

Of several in one request a bearer token counts, then the person whom a trusted proxy names, then a session's cookie.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Path, Request, Response, Security, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import AfterValidator

from perdure.activities.temporal import QueryCache
from perdure.client.door import name_person, set_sender
from perdure.client.files import ArtifactReader
from perdure.client.runs import MAX_RUN_ID_BYTES, has_length_of_id
from perdure.contracts.media import Attachment
from perdure.contracts.people import Sender
from perdure.gateway.lists import SharedReads
from perdure.gateway.problems import RETRY_SOON, ApiError
from perdure.gateway.requests import MAX_UPLOAD_SECONDS, UPLOAD_PATH, StrictRequest, note_login_failure, restore_slashes
from perdure.gateway.sessions import CookieSession, Sessions
from perdure.gateway.tokens import Scope, Token, TokenFileError, Tokens
from perdure.python_client import Perdure
from perdure.session import Session
from perdure.settings.file import GatewaySettings

UPLOAD_TIMEOUT = MAX_UPLOAD_SECONDS + 45.0  # seconds to receive, check and store a file
REQUEST_TIMEOUT = 45.0  # seconds for an answer, except a stream; submitting to a lane takes up to 30
_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="A token of `perdure token create`.")
NAME_LENGTH = 200  # characters of a person's name, at most
_OWN_HEADER = "X-Perdure"  # `1` in each request of the page


@dataclass(frozen=True)
class TrustedProxy:
    """A proxy that names the person who has signed in there. It is known by its address alone."""

    header: str
    networks: tuple[IPv4Network | IPv6Network, ...]
    scopes: tuple[Scope, ...]

    @classmethod
    def of(cls, settings: GatewaySettings) -> "TrustedProxy | None":
        if settings.proxy_header is None:
            return None
        networks = tuple(map(ip_network, settings.proxy_addresses))
        return cls(settings.proxy_header, networks, tuple(map(Scope, settings.proxy_scopes)))

    def is_peer(self, request: Request) -> bool:
        """Return whether the peer of the connection, not of any header, has one of the addresses."""
        try:
            address = ip_address(request.client.host.partition("%")[0] if request.client else "")
        except ValueError:  # a socket without an address
            return False
        address = getattr(address, "ipv4_mapped", None) or address  # IPv4, of a listener for both
        return any(address in network for network in self.networks)


@dataclass
class Gateway:
    """State shared by the routes. `drop` closes the connection from a client's address."""

    session: Session
    tokens: Tokens
    parts: Mapping[str, Any] = field(default_factory=dict)  # of features, by their names
    sessions: Sessions = field(default_factory=Sessions)  # of the page
    is_behind_tls: bool = False  # a proxy ends TLS
    proxy: TrustedProxy | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0  # open ones
    uploads: int = 0  # files that are being received
    records: int = 0  # records of runs that are being read
    lists: SharedReads = field(default_factory=SharedReads)
    queries: QueryCache = field(default_factory=QueryCache)  # the states of runs that ask
    checking: asyncio.Lock = field(default_factory=asyncio.Lock)
    readiness: tuple[float, Any] | None = None  # the last check: its time by the loop's clock, and its result
    drop: Callable[[Any], None] = lambda _: None

    @cached_property
    def perdure(self) -> Perdure:
        return Perdure.over(self.session)

    @cached_property
    def artifacts(self) -> ArtifactReader:
        return ArtifactReader(self.session.settings.workspaces)


class Credential(StrEnum):
    """How a caller is known: by a bearer `token`, by the `cookie` of a session, or as a trusted `proxy` says."""

    token = "token"  # noqa: S105 - the word
    cookie = "cookie"
    proxy = "proxy"


@dataclass(frozen=True)
class Caller:
    """The sender of a request, and what they may do. `token` is the one that a cookie names, too.

    `person` is the one whom a proxy names, who has no token.
    """

    name: str
    scopes: tuple[Scope, ...]
    credential: Credential
    sender: Sender
    platforms: tuple[str, ...] = ()  # they may publish events of these
    token: Token | None = None
    session: CookieSession | None = None
    person: str | None = None

    def is_over(self, tokens: Tokens) -> bool:
        """Return whether the token is gone or expired, or the session over, so that a stream must ask again."""
        now = datetime.now(UTC)
        try:
            is_gone = self.token is not None and (self.token not in tokens.read_all() or self.token.is_expired(now))
        except TokenFileError:
            return True
        return is_gone or (self.session is not None and now >= self.session.expires_at)


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises ApiError 403 if the caller lacks the scope."""
    if scope not in caller.scopes:
        challenge = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
        kind = "person" if caller.credential is Credential.proxy else "token"
        raise ApiError(403, f"{kind} {caller.name} has no scope {scope}", headers=challenge)


def require_readable(caller: Caller, attachments: Iterable[Attachment]) -> None:
    """Raises ApiError 403 if an attachment is a file of another run and the caller may not read runs."""
    if any(attachment.artifact is not None for attachment in attachments):
        require_scope(caller, Scope.read)


def needs_scope(scope: Scope) -> Any:
    """Return a dependency that declares the scope a route needs; `Route` enforces it."""
    return Security(_BEARER, scopes=[scope])


TAKES_TOKEN: Any = Security(_BEARER)  # declares that a route reads the token itself, whatever its scopes


class ScopedRoute(APIRoute):
    """A route that requires its scopes, reads JSON strictly, knows all parameters of a GET, and has a timeout."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        scopes = [
            Scope(scope)
            for dependency in self.dependencies
            if isinstance(dependency, params.Security)
            for scope in dependency.scopes or ()
        ]
        takes_json = self.body_field is not None
        reads = "GET" in (self.methods or ())
        known = sorted(f.alias for f in get_flat_params(self.dependant) if isinstance(f.field_info, params.Query))
        patience = UPLOAD_TIMEOUT if self.path == UPLOAD_PATH else REQUEST_TIMEOUT

        async def handle_strictly(received: Request) -> Response:
            restore_slashes(received.scope)
            request = StrictRequest(received.scope, received.receive)
            if scopes:
                await _authenticate(request, scopes)
            if takes_json:
                _require_json(request)
            if reads and (unknown := next((name for name in request.query_params if name not in known), None)):
                listed = f"the parameters are: {', '.join(known)}" if known else "it takes no parameters"
                raise ApiError(400, f"unknown parameter {unknown[:100]!r}; {listed}", field=unknown[:100])
            try:
                async with asyncio.timeout(patience):
                    response = await handle(request)
                    await _keep_session(request, response)
                    return response
            except TimeoutError:
                raise ApiError(503, f"no answer within {patience:g} s", headers=RETRY_SOON) from None

        return handle_strictly


async def _authenticate(request: Request, scopes: Iterable[Scope]) -> None:
    """Identify the caller and check the scopes. Raises ApiError."""
    caller = await identify(request)
    if caller is None:
        if not getattr(request.state, "login_refused", None):
            note_login_failure(request.scope, "no_token")
        raise no_credential()
    try:
        for scope in scopes:
            require_scope(caller, scope)
    except ApiError:
        note_login_failure(request.scope, "missing_scope")
        raise


async def identify(request: Request) -> Caller | None:
    """Return the caller, who is the sender of all that follows; None without a credential.

    Raises ApiError, TokenFileError, OSError.
    """
    gateway = _get_gateway(request)
    if written := bearer_of(request):
        caller: Caller | None = caller_of(gateway, find_token(request, written))
    else:
        caller = _find_person(request) or await _find_session(request)
    if caller is not None:
        request.state.login_refused = None  # another header was ignored
        request.state.caller = caller
        set_sender(caller.sender)
    return caller


def bearer_of(request: Request) -> str:
    """Return the bearer token of a request; empty without one."""
    scheme, _, written = request.headers.get("Authorization", "").partition(" ")
    return written.strip() if scheme.lower() == "bearer" else ""


def find_token(request: Request, written: str) -> Token:
    """Return the token with this text. Raises ApiError 401, TokenFileError."""
    token = _get_gateway(request).tokens.find_token(written, datetime.now(UTC))
    if token is None:
        note_login_failure(request.scope, "unknown_token")
        reason = "the token is unknown, expired or revoked"
        raise ApiError(401, reason, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
    return token


async def _find_session(request: Request) -> Caller | None:
    """Return the caller of a session's cookie, if there is one. Raises ApiError, TokenFileError, OSError."""
    gateway = _get_gateway(request)
    if not await gateway.sessions.has_cookie(request):
        return None
    session = await gateway.sessions.find(request, gateway.tokens, is_secure=gateway.is_behind_tls)
    if session is None:
        note_login_failure(request.scope, "unknown_session")
        raise ApiError(401, "the session is over: sign in again", headers={"WWW-Authenticate": "Bearer"})
    require_same_origin(request)
    renewed = session.renew(datetime.now(UTC))
    request.state.is_renewed = renewed is not session
    return caller_of(gateway, renewed.token, renewed)


def _find_person(request: Request) -> Caller | None:
    """Return the person whom a trusted proxy names, if it does. Raises ApiError."""
    proxy = _get_gateway(request).proxy
    named = request.headers.getlist(proxy.header) if proxy else []
    if proxy is None or not any(named):  # an empty one names no person
        return None
    if not proxy.is_peer(request):
        note_login_failure(request.scope, "untrusted_proxy")  # unless another credential counts
        return None
    name = _decode_name(named)
    if not name:
        note_login_failure(request.scope, "unusable_name")
        raise ApiError(400, f"{proxy.header} must name one person, in 1 to 200 printable characters of UTF-8")
    require_same_origin(request)
    sender = name_person(_get_gateway(request).session.settings.file.people, name, Sender(door="gateway", person=name))
    return Caller(name, proxy.scopes, Credential.proxy, sender, person=name)


def _decode_name(values: list[str]) -> str:
    """Return the name in the one header; empty if it is none."""
    try:
        name = values[0].encode("latin-1").decode().strip()
    except UnicodeDecodeError:
        return ""
    return name if len(values) == 1 and len(name) <= NAME_LENGTH and name.isprintable() else ""


def caller_of(gateway: Gateway, token: Token, session: CookieSession | None = None) -> Caller:
    """Return the caller who has a token, or whose cookie names it."""
    sender = name_person(gateway.session.settings.file.people, token.name, Sender(door="gateway", token=token.name))
    credential = Credential.cookie if session else Credential.token
    return Caller(token.name, token.scopes, credential, sender, token.platforms, token, session)


def require_same_origin(request: Request) -> None:
    """Raises ApiError 403 if a page of another origin may have made a browser send this request.

    A browser adds a cookie by itself, and SameSite=Strict counts all ports of a host, and its sister domains, as one
    site. OWASP recommends `Sec-Fetch-Site`, which no script can set, with `Origin` where a browser does not send it,
    as over HTTP without TLS; and for programs a header of their own: another origin's page may send it only after a
    preflight, which is never granted. Here both must hold, so that a mistake in one opens nothing.
    """
    if request.method in ("GET", "HEAD"):  # they change nothing
        return
    site, origin = request.headers.get("Sec-Fetch-Site"), urlsplit(request.headers.get("Origin", ""))
    is_own = site == "same-origin" if site else bool(origin.netloc) and origin.netloc == request.headers.get("Host")
    if not is_own or request.headers.get(_OWN_HEADER) != "1":
        note_login_failure(request.scope, "cross_site")
        reason = f"without a bearer token, this is taken only from the gateway's own page, with {_OWN_HEADER}: 1"
        raise ApiError(403, reason)


def no_credential() -> ApiError:
    reason = "this needs a token: Authorization: Bearer … (perdure token create)"
    return ApiError(401, reason, headers={"WWW-Authenticate": "Bearer"})


async def _keep_session(request: Request, response: Response) -> None:
    """Set the cookie of a session that this request extends; shared caches may not keep an answer to a cookie."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is not None and caller.credential is not Credential.token:
        response.headers.setdefault("Cache-Control", "no-store")
        if caller.session and getattr(request.state, "is_renewed", False):
            await _get_gateway(request).sessions.set_cookie(response, caller.session)


def _require_json(request: Request) -> None:
    """Raises ApiError 415 if there is a body of another type."""
    has_body = "Transfer-Encoding" in request.headers or request.headers.get("Content-Length", "0") != "0"
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if has_body and media_type != "application/json":
        raise ApiError(415, "the body needs Content-Type: application/json")


def _get_gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _get_caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _check_run_id(run_id: str) -> str:
    if not has_length_of_id(run_id):
        raise ValueError(f"an id has 1 to {MAX_RUN_ID_BYTES} bytes")
    return run_id


CurrentGateway = Annotated[Gateway, Depends(_get_gateway)]
CurrentCaller = Annotated[Caller, Depends(_get_caller)]
RunId = Annotated[str, Path(description="The run's id, percent-encoded, a slash too."), AfterValidator(_check_run_id)]
