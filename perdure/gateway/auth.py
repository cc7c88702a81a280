"""Authentication and the rules that apply to every route. The token is checked first."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any

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
from perdure.gateway.tokens import Scope, Token, TokenFileError, Tokens
from perdure.python_client import Perdure
from perdure.session import Session

UPLOAD_TIMEOUT = MAX_UPLOAD_SECONDS + 45.0  # seconds to receive, check and store a file
REQUEST_TIMEOUT = 45.0  # seconds for an answer, except a stream; submitting to a lane takes up to 30
_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="A token of `perdure token create`.")


@dataclass
class Gateway:
    """State shared by the routes. `drop` closes the connection from a client's address."""

    session: Session
    tokens: Tokens
    parts: Mapping[str, Any] = field(default_factory=dict)  # of features, by their names
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


def require_scope(token: Token, scope: Scope) -> None:
    """Raises ApiError 403 if the token lacks the scope."""
    if scope not in token.scopes:
        challenge = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
        raise ApiError(403, f"token {token.name} has no scope {scope}", headers=challenge)


def require_readable(token: Token, attachments: Iterable[Attachment]) -> None:
    """Raises ApiError 403 if an attachment is a file of another run and the token may not read runs."""
    if any(attachment.artifact is not None for attachment in attachments):
        require_scope(token, Scope.read)


def needs_scope(scope: Scope) -> Any:
    """Return a dependency that declares the scope a route needs; `Route` enforces it."""
    return Security(_BEARER, scopes=[scope])


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
            for scope in scopes:
                _authenticate(request, scope)
                name, people = request.state.token.name, _get_gateway(request).session.settings.file.people
                set_sender(name_person(people, name, Sender(door="gateway", token=name)))
            if takes_json:
                _require_json(request)
            if reads and (unknown := next((name for name in request.query_params if name not in known), None)):
                listed = f"the parameters are: {', '.join(known)}" if known else "it takes no parameters"
                raise ApiError(400, f"unknown parameter {unknown[:100]!r}; {listed}", field=unknown[:100])
            try:
                async with asyncio.timeout(patience):
                    return await handle(request)
            except TimeoutError:
                raise ApiError(503, f"no answer within {patience:g} s", headers=RETRY_SOON) from None

        return handle_strictly


def _authenticate(request: Request, scope: Scope) -> None:
    """Check the token and its scope, and store it in the request. Raises ApiError."""
    scheme, _, written = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not written.strip():
        note_login_failure(request.scope, "no_token")
        reason = "this needs a token: Authorization: Bearer … (perdure token create)"
        raise ApiError(401, reason, headers={"WWW-Authenticate": "Bearer"})
    try:
        token = _get_gateway(request).tokens.find_token(written.strip(), datetime.now(UTC))
    except TokenFileError:
        raise ApiError(503, "the gateway cannot read its tokens; its operator must fix this") from None
    if token is None:
        note_login_failure(request.scope, "unknown_token")
        reason = "the token is unknown, expired or revoked"
        raise ApiError(401, reason, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
    request.state.token = token
    try:
        require_scope(token, scope)
    except ApiError:
        note_login_failure(request.scope, "missing_scope")
        raise


def _require_json(request: Request) -> None:
    """Raises ApiError 415 if there is a body of another type."""
    has_body = "Transfer-Encoding" in request.headers or request.headers.get("Content-Length", "0") != "0"
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if has_body and media_type != "application/json":
        raise ApiError(415, "the body needs Content-Type: application/json")


def _get_gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _get_token(request: Request) -> Token:
    token: Token = request.state.token
    return token


def _check_run_id(run_id: str) -> str:
    if not has_length_of_id(run_id):
        raise ValueError(f"an id has 1 to {MAX_RUN_ID_BYTES} bytes")
    return run_id


CurrentGateway = Annotated[Gateway, Depends(_get_gateway)]
CurrentToken = Annotated[Token, Depends(_get_token)]
RunId = Annotated[str, Path(description="The run's id, percent-encoded, a slash too."), AfterValidator(_check_run_id)]
