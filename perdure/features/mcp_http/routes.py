"""The gateway's MCP address. Each request is whole: a token, an answer, and nothing that is kept.

No answer over HTTP approves: a model may be the one who asks.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from perdure.contracts.models import FrozenModel
from perdure.features.mcp_server.callers import McpCaller
from perdure.features.mcp_server.server import create_mcp_server
from perdure.gateway.auth import (
    Caller,
    Credential,
    CurrentCaller,
    CurrentGateway,
    Gateway,
    ScopedRoute,
    needs_scope,
    no_credential,
)
from perdure.gateway.problems import ApiError, describe_problems
from perdure.gateway.requests import note_login_failure, read_body_json
from perdure.gateway.tokens import Scope
from perdure.settings import ProjectError, Settings

MCP_PATH = "/v1/mcp"
METADATA_PATH = f"/.well-known/oauth-protected-resource{MCP_PATH}"
# A browser's page elsewhere has no token, so it gains nothing by another name for this address.
_SECURITY = TransportSecuritySettings(enable_dns_rebinding_protection=False)


class McpDoor:
    """The MCP server of a gateway, at `public_url`."""

    def __init__(self, public_url: str) -> None:
        self.url = public_url.rstrip("/") + MCP_PATH
        self.metadata_url = public_url.rstrip("/") + METADATA_PATH
        self.origin = urlsplit(public_url).netloc
        self._server: MCPServer[Any] | None = None

    def server(self, gateway: Gateway) -> MCPServer[Any]:
        if self._server is None:
            self._server = create_mcp_server(gateway.session, caller_of=_caller_of, stopping=gateway.stopping)
        return self._server


def open_mcp_door(settings: Settings, _: Mapping[str, str]) -> McpDoor:
    """Return the gateway's part. Raises ProjectError."""
    public_url = settings.file.gateway.public_url
    if public_url is None:
        raise ProjectError(f"{settings.at('features', 'use')}: mcp_http needs public_url in [gateway]")
    return McpDoor(public_url)


def _caller_of(request: Request) -> McpCaller:
    caller: Caller = request.state.caller
    start, answer = (scope in caller.scopes for scope in (Scope.start, Scope.answer))
    return McpCaller(caller.name, caller.sender, may_start=start, may_answer=answer)


class McpRoute(ScopedRoute):
    """A route that tells a client without a token where the metadata is (RFC 9728)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_naming_metadata(request: Request) -> Response:
            try:
                return await handle(request)
            except ApiError as error:
                challenge = dict(error.headers or {}).get("WWW-Authenticate")
                if challenge is not None:
                    named = f'resource_metadata="{_door(request).metadata_url}"'
                    separator = "," if "=" in challenge else ""
                    error.headers = {**(error.headers or {}), "WWW-Authenticate": f"{challenge}{separator} {named}"}
                raise

        return handle_naming_metadata


router = APIRouter(
    tags=["mcp"], route_class=McpRoute, responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503)
)


class ProtectedResource(FrozenModel):
    """The metadata of the MCP server (RFC 9728). Its tokens come from `perdure token create` alone."""

    resource: str
    resource_name: str
    scopes_supported: tuple[str, ...]
    bearer_methods_supported: tuple[str, ...] = ("header",)


@router.get(METADATA_PATH)
async def describe_mcp(request: Request) -> ProtectedResource:
    """Return the metadata of the MCP server as a protected resource."""
    scopes = (Scope.read, Scope.start, Scope.answer)
    return ProtectedResource(resource=_door(request).url, resource_name="Perdure", scopes_supported=scopes)


@router.post(
    MCP_PATH,
    dependencies=[needs_scope(Scope.read)],
    response_class=Response,
    responses={200: {"description": "An answer of JSON-RPC", "content": {"application/json": {}}}},
)
async def serve_mcp_request(gateway: CurrentGateway, holder: CurrentCaller, request: Request) -> Response:
    """Answer one request of MCP, with the tools and tasks of `perdure mcp`.

    Starts, and answers in words and cancels of the token's own runs, also need `runs:start`; those of other runs
    `human:answer`. Only a bearer token counts, and a page of another origin is refused.
    """
    if holder.credential is not Credential.token:
        note_login_failure(request.scope, "no_token")
        raise no_credential()
    door = _door(request)
    _require_own_origin(request, door)
    body = await request.body()
    read_body_json(body)
    return _Exchange(door.server(gateway), body)


def _door(request: Request) -> McpDoor:
    door: McpDoor = request.app.state.gateway.parts["mcp_http"]
    return door


def _require_own_origin(request: Request, door: McpDoor) -> None:
    """Raises ApiError 403 if a page of another origin sends this; programs send no origin."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc not in (door.origin, request.headers.get("Host")):
        note_login_failure(request.scope, "cross_site")
        raise ApiError(403, "this is taken from programs, not from a page of another origin")


class _Exchange(Response):
    """A request for the SDK's server, which is made for this one request."""

    def __init__(self, server: MCPServer[Any], body: bytes) -> None:
        super().__init__()
        self._app = server.streamable_http_app(
            streamable_http_path=MCP_PATH, stateless_http=True, json_response=True, transport_security=_SECURITY
        )
        self._request = body

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        is_read = False

        async def receive_again() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": self._request, "more_body": False}

        async with self._app.router.lifespan_context(self._app):
            await self._app(dict(scope), receive_again, send)
