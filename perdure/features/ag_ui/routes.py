"""The gateway's routes of threads: send or resume, and connect."""

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Path

from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.features.ag_ui.contract import PostedRun
from perdure.features.ag_ui.events import Event
from perdure.features.ag_ui.threads import Thread
from perdure.gateway.auth import CurrentCaller, CurrentGateway, ScopedRoute, needs_scope, require_scope
from perdure.gateway.problems import ApiError, describe_problems
from perdure.gateway.routes.sse import (
    CLIENT_READ_TIMEOUT,
    EventStream,
    describe_events,
    frame_json,
    require_free_stream,
    stream_values,
)
from perdure.gateway.tokens import Scope

ThreadPath = Annotated[
    str, Path(min_length=1, max_length=MAX_ID_LENGTH, description="The thread, as the page names it.")
]
router = APIRouter(
    prefix="/v1/ag-ui",
    tags=["ag-ui"],
    route_class=ScopedRoute,
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503)
    | describe_events("Events of AG-UI 1.0, up to the end or the next interrupt"),
    default_response_class=EventStream,
)


@router.post("", status_code=200)
async def run_agent(gateway: CurrentGateway, holder: CurrentCaller, body: PostedRun) -> EventStream:
    """Send the last message of a person, or answer interrupts, and stream what follows. A repeat has no second effect.

    A message also needs `runs:start`, and an answer `human:answer`.
    """
    thread = Thread(gateway, holder, body.thread_id)
    require_free_stream(gateway)
    if body.resume:
        if any(entry.status == "resolved" for entry in body.resume):
            require_scope(holder, Scope.answer)
        run_id = await thread.resume(body.resume)
        resumed = frozenset(entry.question_id for entry in body.resume)
        events = thread.reply(body.run_id, run_id, resumed=resumed)
    elif body.messages:
        require_scope(holder, Scope.start)
        sent = await thread.send(body.messages[0])
        is_new = not sent.duplicate
        events = thread.reply(body.run_id, sent.run_id, is_new=is_new, before=sent.position if is_new else 0)
    else:
        raise ApiError(422, "no message of a person, and nothing to resume", field="messages")
    return _stream(thread, events)


@router.get("/{thread_id}/stream", status_code=200)
async def connect_thread(gateway: CurrentGateway, holder: CurrentCaller, thread_id: ThreadPath) -> EventStream:
    """Stream a snapshot of the thread, and what follows in the turn that runs; the end of the last one if none does."""
    require_free_stream(gateway)
    thread = Thread(gateway, holder, thread_id)
    run_id = await thread.find_latest()
    return _stream(thread, thread.reply(run_id or thread_id, run_id))


def _stream(thread: Thread, events: AsyncGenerator[Event]) -> EventStream:
    frames = stream_values(thread.gateway, thread.caller, events, frame_json)
    return EventStream(frames, thread.gateway, CLIENT_READ_TIMEOUT)
