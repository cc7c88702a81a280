"""The gateway's routes of chats: send and decide, resume, read."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from perdure.client.run_list import find_run
from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.contracts.models import FrozenModel
from perdure.features.web_ui.chats import UiChat, read_messages
from perdure.features.web_ui.contract import PostedChat
from perdure.features.web_ui.parts import Part, frame
from perdure.gateway.auth import (
    CurrentCaller,
    CurrentGateway,
    RunId,
    ScopedRoute,
    needs_scope,
    require_scope,
)
from perdure.gateway.problems import ApiError, describe_problems
from perdure.gateway.routes.sse import (
    CLIENT_READ_TIMEOUT,
    HEADERS,
    EventStream,
    describe_events,
    require_free_stream,
    stream_values,
)
from perdure.gateway.tokens import Scope

MAX_TURNS = 50  # that one request reads
STREAM_HEADERS = {**HEADERS, "X-Vercel-Ai-Ui-Message-Stream": "v1"}

ChatPath = Annotated[str, Path(min_length=1, max_length=MAX_ID_LENGTH, description="The chat, as the page names it.")]
_STREAM: dict[str, Any] = {
    "status_code": 200,
    "dependencies": [needs_scope(Scope.read)],
    "response_class": EventStream,
}
_PARTS = describe_events("The AI SDK's UI message stream, of one message")

router = APIRouter(
    prefix="/v1/ui",
    tags=["web ui"],
    route_class=ScopedRoute,
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503),
)


class ChatMessages(FrozenModel):
    """Messages of the AI SDK (`UIMessage`), oldest first."""

    messages: tuple[dict[str, Any], ...]


@router.post("/chat", **_STREAM, responses=describe_problems(429) | _PARTS)
async def post_chat(gateway: CurrentGateway, holder: CurrentCaller, body: PostedChat) -> EventStream:
    """Send the last message of a chat, and stream its reply. A repeat has no second effect.

    A person's message also needs `runs:start`. One of the assistant's, whose calls a person has approved or denied,
    also needs `human:answer`.
    """
    chat, message = UiChat(gateway, holder, body.id), body.messages[0]
    require_free_stream(gateway)
    if message.role == "user":
        require_scope(holder, Scope.start)
        submitted = await chat.send(message)
        return _stream(chat, chat.reply(submitted.run_id, 0 if submitted.duplicate else submitted.position))
    if not message.decisions:
        raise ApiError(422, "the last message is the assistant's, and decides nothing", field="messages")
    require_scope(holder, Scope.answer)
    await chat.decide(message)
    return _stream(chat, chat.reply(message.id, seen=message.decisions[-1].id))


@router.get(
    "/chat/{chat_id}/stream",
    **_STREAM,
    responses=describe_problems(429) | _PARTS | {204: {"description": "Nothing runs"}},
)
async def resume_chat(gateway: CurrentGateway, holder: CurrentCaller, chat_id: ChatPath) -> Response:
    """Stream the reply that runs, from its beginning; 204 if none does."""
    require_free_stream(gateway)
    chat = UiChat(gateway, holder, chat_id)
    run_id = await chat.find_running()
    return Response(status_code=204) if run_id is None else _stream(chat, chat.reply(run_id))


@router.get("/chat/{chat_id}/messages", dependencies=[needs_scope(Scope.read)])
async def read_chat(
    gateway: CurrentGateway,
    holder: CurrentCaller,
    chat_id: ChatPath,
    limit: Annotated[int, Query(ge=1, le=MAX_TURNS, description="The turns, the latest ones.")] = 20,
) -> ChatMessages:
    """Return the messages of a chat, made of the parts that were streamed."""
    return ChatMessages(messages=tuple(await UiChat(gateway, holder, chat_id).read(limit)))


@router.get("/runs/{run_id}/messages", dependencies=[needs_scope(Scope.read)])
async def read_run_messages(gateway: CurrentGateway, run_id: RunId) -> ChatMessages:
    """Return any run as messages: its goal, and its reply so far."""
    run = await find_run(gateway.session.client, run_id)
    return ChatMessages(messages=tuple(await read_messages(gateway, [run])))


def _stream(chat: UiChat, parts: AsyncGenerator[Part]) -> EventStream:
    frames = stream_values(chat.gateway, chat.caller, parts, frame)
    return EventStream(frames, chat.gateway, CLIENT_READ_TIMEOUT, STREAM_HEADERS)
