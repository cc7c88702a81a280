"""Conversations: list them, submit a request, read the lane, omit a turn."""

from math import ceil
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Response
from pydantic import AfterValidator

from perdure.client.lanes import LANES_IN_QUERY, LaneRecord, list_lanes
from perdure.contracts.conversation import MAX_ID_LENGTH, LaneView, SubmitRequest, Submitted, WhenBusy
from perdure.contracts.models import FrozenModel
from perdure.gateway.auth import (
    CurrentCaller,
    CurrentGateway,
    ScopedRoute,
    needs_scope,
    require_readable,
    require_scope,
)
from perdure.gateway.lists import Cursor, decode_cursor, encode_cursor, naming_cursor
from perdure.gateway.problems import RETRY_SOON, ApiError, describe_problems
from perdure.gateway.tokens import Scope

MAX_CONVERSATIONS = 200


def _check_conversation_id(conversation_id: str) -> str:
    if not conversation_id.strip():
        raise ValueError("it is empty")
    if "\0" in conversation_id:  # the server accepts it but cannot be queried for it: the lane would never run
        raise ValueError("an id has no NUL character")
    return conversation_id


ConversationId = Annotated[str, Path(max_length=MAX_ID_LENGTH), AfterValidator(_check_conversation_id)]

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=ScopedRoute)


class ConversationPage(FrozenModel):
    """A page of conversations; on the last one `cursor` is null.

    One whose lane has started again meanwhile may be on two pages.
    """

    conversations: tuple[LaneRecord, ...]
    cursor: str | None  # for the next page


@router.get(
    "", dependencies=[needs_scope(Scope.read)], responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503)
)
async def list_conversations(
    gateway: CurrentGateway,
    limit: Annotated[int, Query(ge=1, le=MAX_CONVERSATIONS)] = 50,
    cursor: Cursor = None,
) -> ConversationPage:
    """List conversations, those whose lanes have started last first, each with its turn if one runs."""
    client, after = gateway.session.client, decode_cursor(cursor)
    lists = 1 + ceil(limit / LANES_IN_QUERY)
    with naming_cursor():
        listed = await gateway.lists.read(
            ("conversations", limit, after), lambda: list_lanes(client, limit, after), lists
        )
    return ConversationPage(conversations=listed.lanes, cursor=encode_cursor(listed.next))


@router.post(
    "/{conversation_id}/requests",
    status_code=202,
    dependencies=[needs_scope(Scope.start)],
    responses=describe_problems(400, 401, 403, 408, 409, 413, 415, 422, 429, 500, 503)
    | {200: {"model": Submitted, "description": "It was submitted before"}},
)
async def submit_request(
    gateway: CurrentGateway,
    holder: CurrentCaller,
    conversation_id: ConversationId,
    request: SubmitRequest,
    response: Response,
) -> Submitted:
    """Submit a request; 200 if it was submitted before, 429 if the lane is full.

    A request that answers a question (`question_id`) or cancels the turn (`interrupt`) also needs `human:answer`.
    """
    if request.question_id is not None or request.when_busy is WhenBusy.interrupt:
        require_scope(holder, Scope.answer)
    require_readable(holder, request.attachments)
    submitted = await gateway.perdure.conversation(conversation_id).submit(request)
    response.headers["Location"] = f"/v1/runs/{quote(submitted.run_id, safe='')}"
    if submitted.duplicate:
        response.status_code = 200
    return submitted


@router.get(
    "/{conversation_id}",
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 422, 500, 503),
)
async def read_conversation(gateway: CurrentGateway, conversation_id: ConversationId) -> LaneView:
    """Return a conversation's active turn, its queue and its latest turns."""
    view = await gateway.perdure.conversation(conversation_id).state(gateway.queries)
    if view is None:
        raise ApiError(503, "no worker answers for this conversation now", headers=RETRY_SOON)
    return view


@router.delete(
    "/{conversation_id}/turns/{run_id}",
    dependencies=[needs_scope(Scope.answer)],
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 422, 503),
)
async def forget_turn(
    gateway: CurrentGateway, conversation_id: ConversationId, run_id: Annotated[str, Path(max_length=MAX_ID_LENGTH)]
) -> dict[str, str]:
    """Omit an ended turn from the conversation as of the next turn. Its effects are not undone."""
    forgotten = await gateway.perdure.conversation(conversation_id).forget(run_id)
    return {"run_id": forgotten.run_id}  # without its text: the token may not read
