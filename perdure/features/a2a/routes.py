"""The gateway's routes of A2A: the calls to an agent as JSON-RPC, and its card."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any, cast
from urllib.parse import quote

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from fastapi import APIRouter, Body, Path, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette.sse import EventSourceResponse

from perdure.contracts.agent import Agent
from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.features.a2a.card import describe_agent
from perdure.features.a2a.settings import A2A
from perdure.features.a2a.tasks import Tasks
from perdure.gateway.auth import CurrentCaller, CurrentGateway, Gateway, ScopedRoute, needs_scope
from perdure.gateway.problems import ApiError, describe_problems
from perdure.gateway.routes.sse import CLIENT_READ_TIMEOUT, EventStream, require_free_stream, stream_values
from perdure.gateway.tokens import Scope
from perdure.settings import ProjectError

STREAMING = ("SendStreamingMessage", "SubscribeToTask", "message/stream", "tasks/resubscribe")

AgentPath = Annotated[str, Path(min_length=1, max_length=MAX_ID_LENGTH, description="The agent's name.")]

router = APIRouter(
    prefix="/a2a",
    tags=["a2a"],
    route_class=ScopedRoute,
    responses=describe_problems(400, 401, 403, 404, 408, 413, 415, 422, 500, 503),
)


@router.post("/{agent}", dependencies=[needs_scope(Scope.read)], responses=describe_problems(429))
async def call_agent(
    gateway: CurrentGateway, holder: CurrentCaller, request: Request, agent: AgentPath, body: Annotated[Any, Body()]
) -> Response:
    """Make a call of A2A 1.0, as JSON-RPC. A new task also needs `runs:start`; answers and cancels `human:answer`."""
    _find_agent(gateway, agent)
    if isinstance(body, dict) and body.get("method") in STREAMING:
        require_free_stream(gateway)
    compat = A2A.of(gateway.session.settings.file).compat_0_3
    tasks = Tasks(gateway, holder, agent, _base_of(gateway, request))
    response = await JsonRpcDispatcher(tasks, enable_v0_3_compat=compat).handle_requests(request)
    if isinstance(response, EventSourceResponse):
        events = cast(AsyncGenerator[dict[str, str]], response.body_iterator)
        return EventStream(stream_values(gateway, holder, events, _format), gateway, CLIENT_READ_TIMEOUT)
    return response


@router.get("/{agent}/.well-known/agent-card.json", dependencies=[needs_scope(Scope.read)])
async def read_card(gateway: CurrentGateway, request: Request, agent: AgentPath) -> Response:
    """Return the agent's card."""
    found, settings = _find_agent(gateway, agent), gateway.session.settings
    url = f"{_base_of(gateway, request)}/a2a/{quote(agent, safe='')}"
    compat = A2A.of(settings.file).compat_0_3
    card = describe_agent(found, url, compat_0_3=compat, pushes=bool(settings.access["push"]))
    return JSONResponse(agent_card_to_dict(card), headers={"Cache-Control": "no-store"})


def _find_agent(gateway: Gateway, name: str) -> Agent:
    """Raises ApiError 404."""
    settings = gateway.session.settings
    try:
        settings.check_agent(name)
    except ProjectError:
        raise ApiError(404, "there is no agent of this name to talk to") from None
    return settings.agent(name)


def _base_of(gateway: Gateway, request: Request) -> str:
    """Return the address of the gateway: as the project says, else as the client has written it."""
    return (gateway.session.settings.file.gateway.public_url or str(request.base_url)).rstrip("/")


def _format(event: dict[str, str]) -> bytes:
    name = f"event: {event['event']}\n" if "event" in event else ""
    return f"{name}data: {event['data']}\n\n".encode()
