"""Authentication and the rules that apply to every route. The credential is checked first.

Of several in one request a bearer token counts, then the person whom a trusted proxy names, then a session's cookie.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
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

UPLOAD_TIMEOUT = MAX_UPLOAD_SECONDS + 45.0  # seconds to receive, check and store a file
REQUEST_TIMEOUT = 45.0  # seconds for an answer, except a stream; submitting to a lane takes up to 30
_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="A token of `perdure token create`.")
_OWN_HEADER = "X-Perdure"  # `1` in each request of the page

_log = logging.getLogger(__name__)


@dataclass
class Gateway:
    """State shared by the routes. `drop` closes the connection from a client's address."""

    session: Session
    tokens: Tokens
    parts: Mapping[str, Any] = field(default_factory=dict)  # of features, by their names
    sessions: Sessions = field(default_factory=Sessions)  # of the page
    is_behind_tls: bool = False  # a proxy ends TLS
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0  # open ones
    uploads: int = 0  # files that are being received
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
    """How a caller is known: by a bearer `token`, or by the `cookie` of a session."""

    token = "token"  # noqa: S105 - the word
    cookie = "cookie"


@dataclass(frozen=True)
class Caller:
    """The sender of a request, and what they may do. `token` is the one that a cookie names, too."""

    name: str
    scopes: tuple[Scope, ...]
    credential: Credential
    sender: Sender
    platforms: tuple[str, ...] = ()  # they may publish events of these
    token: Token | None = None
    session: CookieSession | None = None
    person: str | None = None


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises ApiError 403 if the caller lacks the scope."""
    if scope not in caller.scopes:
        challenge = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
        raise ApiError(403, f"token {caller.name} has no scope {scope}", headers=challenge)


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
        note_login_failure(request.scope, "no_token")
        raise no_credential()
    try:
        for scope in scopes:
            require_scope(caller, scope)
    except ApiError:
        note_login_failure(request.scope, "missing_scope")
        raise


async def identify(request: Request) -> Caller | None:
    """Return the caller, who is the sender of all that follows; None without a credential. Raises ApiError."""
    gateway = _get_gateway(request)
    try:
        written = bearer_of(request)
        caller = caller_of(gateway, find_token(request, written)) if written else await _find_session(request)
    except TokenFileError as error:
        raise unreadable_tokens(error) from None
    if caller is not None:
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


def unreadable_tokens(error: TokenFileError) -> ApiError:
    _log.error("%s", error)
    return ApiError(503, "the gateway cannot read its tokens; its operator must fix this")


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
