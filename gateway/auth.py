"""Authentication and the rules that apply to every route. The token is checked first."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Path, Request, Response, Security, params
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import AfterValidator

from contracts.sender import Sender
from gateway.access_log import note_refused_login
from gateway.problems import AGAIN, Failure
from gateway.request_body import StrictRequest
from gateway.signatures import Webhook
from gateway.slashes import restore
from gateway.tokens import Scope, Token, Tokens, Unreadable
from perdure.client.door import speak_as
from perdure.client.runs import MOST_ID_BYTES, has_length_of_id
from perdure.session import Session

PATIENCE = 45.0  # seconds for an answer, except a stream; submitting to a lane takes up to 30
_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="A token of `perdure token create`.")


@dataclass
class Gateway:
    """State shared by the routes. `drop` closes the connection from a client's address."""

    session: Session
    tokens: Tokens
    webhooks: dict[str, Webhook] = field(default_factory=dict)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0  # open ones
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    readiness: tuple[float, Any] | None = None  # the last check: its time by the loop's clock, and its result
    drop: Callable[[Any], None] = lambda _: None


def require(token: Token, scope: Scope) -> None:
    """Raises Failure 403 if the token lacks the scope."""
    if scope not in token.scopes:
        challenge = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
        raise Failure(403, f"token {token.name} has no scope {scope}", headers=challenge)


def needs(scope: Scope) -> Any:
    """Return a dependency that declares the scope a route needs; `Route` enforces it."""
    return Security(_BEARER, scopes=[scope])


class Route(APIRoute):
    """A route that requires its scopes, reads JSON strictly and has a timeout."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        scopes = [
            Scope(scope)
            for dependency in self.dependencies
            if isinstance(dependency, params.Security)
            for scope in dependency.scopes or ()
        ]
        takes_json = self.body_field is not None

        async def handle_strictly(received: Request) -> Response:
            restore(received.scope)
            request = StrictRequest(received.scope, received.receive)
            for scope in scopes:
                _admitted(request, scope)
                speak_as(Sender(door="gateway", token=request.state.token.name))
            if takes_json and _has_body(request) and not _says_json(request):
                raise Failure(415, "the body needs Content-Type: application/json")
            try:
                async with asyncio.timeout(PATIENCE):
                    return await handle(request)
            except TimeoutError:
                raise Failure(503, f"no answer within {PATIENCE:g} s", headers=AGAIN) from None

        return handle_strictly


def _admitted(request: Request, scope: Scope) -> None:
    """Check the token and its scope, and store it in the request. Raises Failure."""
    scheme, _, written = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not written.strip():
        note_refused_login(request.scope, "no_token")
        reason = "this needs a token: Authorization: Bearer … (perdure token create)"
        raise Failure(401, reason, headers={"WWW-Authenticate": "Bearer"})
    gateway: Gateway = request.app.state.gateway
    try:
        token = gateway.tokens.holder(written.strip(), datetime.now(UTC))
    except Unreadable:
        raise Failure(503, "the gateway cannot read its tokens; its operator must fix this") from None
    if token is None:
        note_refused_login(request.scope, "unknown_token")
        reason = "the token is unknown, expired or revoked"
        raise Failure(401, reason, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
    request.state.token = token
    try:
        require(token, scope)
    except Failure:
        note_refused_login(request.scope, "missing_scope")
        raise


def _has_body(request: Request) -> bool:
    return "Transfer-Encoding" in request.headers or request.headers.get("Content-Length", "0") != "0"


def _says_json(request: Request) -> bool:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"


def _here(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _holder(request: Request) -> Token:
    token: Token = request.state.token
    return token


def _by(request: Request) -> str:
    return _holder(request).name


def _fits(run_id: str) -> str:
    if not has_length_of_id(run_id):
        raise ValueError(f"an id has 1 to {MOST_ID_BYTES} bytes")
    return run_id


Here = Annotated[Gateway, Depends(_here)]
Holder = Annotated[Token, Depends(_holder)]
By = Annotated[str, Depends(_by)]
RunId = Annotated[str, Path(description="The run's id, percent-encoded, a slash too."), AfterValidator(_fits)]
