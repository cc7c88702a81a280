"""Conversations: hand a request to a lane, and look into it."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Response
from pydantic import AfterValidator

from contracts.conversation import MAX_ID_LENGTH, LaneView, SubmitRequest, Submitted, WhenBusy
from gateway.auth import Here, Holder, Route, needs, require
from gateway.problems import AGAIN, Failure, described
from gateway.tokens import Scope
from perdure.client.lanes import forget, look, submit
from settings import ProjectError


def _can_be_looked_for(conversation_id: str) -> str:
    if not conversation_id.strip():
        raise ValueError("it is empty")
    if "\0" in conversation_id:  # the server takes it, and no query of it: the lane would never get to work
        raise ValueError("no id may have a NUL character")
    return conversation_id


ConversationId = Annotated[str, Path(max_length=MAX_ID_LENGTH), AfterValidator(_can_be_looked_for)]

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=Route)


@router.post(
    "/{conversation_id}/requests",
    status_code=202,
    dependencies=[needs(Scope.start)],
    responses=described(400, 401, 403, 408, 409, 413, 415, 422, 429, 500, 503)
    | {200: {"model": Submitted, "description": "It was handed in before"}},
)
async def submit_request(
    here: Here, holder: Holder, conversation_id: ConversationId, request: SubmitRequest, response: Response
) -> Submitted:
    """Hands in a request; 200 where it was handed in before. 429 where the lane is full.

    One that answers a question or cancels the turn, by `question_id` or `interrupt`, needs `human:answer` too.
    """
    if request.question_id is not None or request.when_busy is WhenBusy.interrupt:
        require(holder, Scope.answer)
    if request.mailbox is not None:
        raise Failure(422, "mailbox: only the bridge of a folder names it", field="mailbox")
    settings = here.session.settings
    try:
        settings.check_agent(request.agent)
    except ProjectError as error:
        raise Failure(422, str(error), field="agent") from None
    submitted = await submit(here.session.client, settings.task_queue, conversation_id, request, settings.answer_keys)
    response.headers["Location"] = f"/v1/runs/{quote(submitted.run_id, safe='')}"
    if submitted.duplicate:
        response.status_code = 200
    return submitted


@router.get(
    "/{conversation_id}",
    dependencies=[needs(Scope.read)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 500, 503),
)
async def read_conversation(here: Here, conversation_id: ConversationId) -> LaneView:
    """What runs in a conversation, what waits, and how the latest requests ended."""
    view = await look(here.session.client, conversation_id)
    if view is None:
        raise Failure(503, "no worker answers for this conversation now", headers=AGAIN)
    return view


@router.delete(
    "/{conversation_id}/turns/{run_id}",
    dependencies=[needs(Scope.answer)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 503),
)
async def forget_turn(
    here: Here, conversation_id: ConversationId, run_id: Annotated[str, Path(max_length=MAX_ID_LENGTH)]
) -> dict[str, str]:
    """Leaves a turn that has ended out of the conversation from the next turn on. What it did is not undone."""
    gone = await forget(here.session.client, conversation_id, run_id)
    return {"run_id": gone.run_id}  # not what was said in it: the token may not read
