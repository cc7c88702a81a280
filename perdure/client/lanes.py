"""Conversations from the outside: submit a request to a lane, read its state, list them; steer a run."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain
from random import uniform

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.temporal import QueryCache, submit_to_lane
from perdure.answer_keys import NO_KEYS, AnswerKeys
from perdure.client.details import RunRecord
from perdure.client.door import stamp_sender, stamp_work
from perdure.client.errors import (
    RejectedError,
    RunNotFoundError,
    TemporalUnavailableError,
    convert_rpc_error,
    convert_rpc_errors,
    to_unavailable_error,
)
from perdure.client.run_list import ALL_RUNS, ListCursor, RunInfo, find_run, is_listed, read_page
from perdure.client.runs import query_view, sign_answer
from perdure.contracts.bounds import Backoff
from perdure.contracts.conversation import (
    ForgetRequest,
    Forgotten,
    LaneFault,
    LaneView,
    SteerRequest,
    SubmitRequest,
    Submitted,
    TurnEnd,
)
from perdure.contracts.models import FrozenModel
from perdure.decisions import ids
from perdure.decisions.text.formatting import truncate

SUBMIT_TIMEOUT = 30.0  # seconds of retries for one submit
TURN_POLL_INTERVAL = 0.2  # seconds between polls for the fate of a request
ALL_LANES = "WorkflowType = 'Conversation'"  # a list filter of Temporal
LANES_IN_QUERY = 50  # whose turns one list finds
MAX_OPEN_TURNS = 1000  # of a list; a lane has one
SUBMIT_PAUSES = Backoff(0.25, 4.0)


class LaneStatus(StrEnum):
    """The status of a conversation's lane."""

    busy = "busy"  # a turn runs
    idle = "idle"  # it waits for a request
    closed = "closed"  # the lane has ended; a request opens it again


class LaneRecord(FrozenModel):
    """The server's record of a conversation, read without a worker."""

    conversation_id: str
    status: LaneStatus
    started_at: datetime  # of the lane: it starts again if its history is long, or if it was closed
    closed_at: datetime | None
    turn: RunRecord | None  # the run that is the turn, if one runs


@dataclass(frozen=True)
class LanePage:
    """A page of the list, latest first. `next` is the cursor of the next page, if any."""

    lanes: tuple[LaneRecord, ...]
    next: bytes | None


class RequestRejectedError(RejectedError):
    """The lane rejected the request. `kind` is its `LaneFault`, if the lane gave one."""

    def __init__(self, reason: str, kind: str | None) -> None:
        super().__init__(reason)
        self.kind = LaneFault(kind) if kind in set(LaneFault) else None


async def submit_with_retry(  # noqa: PLR0913 - the last two are of the request's answer, and of its lane
    client: Client,
    task_queue: str,
    conversation_id: str,
    request: SubmitRequest,
    keys: AnswerKeys = NO_KEYS,
    *,
    closes: bool = False,
) -> Submitted:
    """Submit a request to a lane, which is opened if needed. Submitting it again has no effect.

    With `closes`, a lane that this opens closes when it is idle.

    A request that answers a question is signed with one of `keys` if the running turn requires that.

    Raises RequestRejectedError with the lane's reason, RejectedError by the server, TemporalUnavailableError if no
    worker took it in time.
    """
    request = await stamp_work(client, stamp_sender(request))
    request = await _sign_request(client, conversation_id, request, keys)
    deadline, reason = time.monotonic() + SUBMIT_TIMEOUT, "no worker took the request: is one running? (perdure worker)"
    pauses = iter(SUBMIT_PAUSES)
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(remaining):
                return await submit_to_lane(client, task_queue, conversation_id, request, closes=closes)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError):
                raise RequestRejectedError(cause.message, cause.type) from None
            raise RejectedError(str(cause)) from None
        except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
            continue
        except RPCError as error:
            # The precondition fails if the lane continues as new at that moment. The request may have been taken:
            # it is sent again, and the lane recognizes its id.
            if error.status is not RPCStatusCode.FAILED_PRECONDITION and not to_unavailable_error(error):
                raise RejectedError(f"the server rejected the request: {truncate(error.message)}") from None
            reason = truncate(error.message)
            pause = uniform(0.5, 1.0) * next(pauses)  # noqa: S311 - spreads processes that retry alike, guards nothing
            await asyncio.sleep(min(pause, remaining))
    raise TemporalUnavailableError(
        f"{reason}; it may have been accepted, and can be sent again with the same request id"
    )


async def _sign_request(
    client: Client, conversation_id: str, request: SubmitRequest, keys: AnswerKeys
) -> SubmitRequest:
    """Sign a request that answers a question. Raises RejectedError, TemporalUnavailableError."""
    if request.question_id is None or not keys.public:
        return request.evolve(signature=None)
    try:
        view = await query_lane(client, conversation_id)
    except RunNotFoundError:
        return request
    if view is None:
        raise TemporalUnavailableError(
            f"no worker answers for conversation {conversation_id} now: is one running? (perdure worker)"
        )
    if view.active is None:
        return request
    from perdure.decisions.lane import answer_in_request  # few requests answer a question

    signed = await sign_answer(client, view.active.run_id, answer_in_request(request), keys)
    return request.evolve(signature=signed.signature)


async def forget_lane_turn(client: Client, conversation_id: str, run_id: str | None = None) -> Forgotten:
    """Omit an ended turn, by default the latest, from the conversation as of the next turn.

    Raises RequestRejectedError with the lane's reason, RunNotFoundError if the lane does not exist,
    TemporalUnavailableError without a worker.
    """
    handle = client.get_workflow_handle(ids.conversation_workflow_id(conversation_id))
    body = stamp_sender(ForgetRequest(run_id=run_id)).model_dump(mode="json", exclude_none=True)
    try:
        async with asyncio.timeout(SUBMIT_TIMEOUT):
            forgotten: Forgotten = await handle.execute_update("forget", body, result_type=Forgotten)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        raise RequestRejectedError(str(cause), getattr(cause, "type", None)) from None
    except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
        raise TemporalUnavailableError(f"no worker answers for conversation {conversation_id} now") from None
    except RPCError as error:
        raise convert_rpc_error(error, f"conversation {conversation_id}") from None
    return forgotten


async def has_joined_run(
    client: Client, conversation_id: str, run_id: str, own: str, cache: QueryCache | None = None
) -> bool:
    """Return whether a request joined the active run, instead of starting the run `own`; wait until it is known."""
    while run_id != own:
        if (view := await query_lane(client, conversation_id, cache)) is not None:
            ends = {turn.run_id: turn.end for turn in view.recent}
            if own in ends:
                return ends[own] in (TurnEnd.steered, TurnEnd.answered)
            if any(turn.run_id == own for turn in (view.active, *view.waiting) if turn):
                return False
            if view.active is None or view.active.run_id != run_id:
                break  # the lane has dropped it from its recent turns
        await asyncio.sleep(TURN_POLL_INTERVAL)
    return True


async def wait_for_turn_start(
    client: Client, conversation_id: str, run_id: str, cache: QueryCache | None = None
) -> bool:
    """Wait for a turn to start; return False if it was dropped."""
    while True:
        with suppress(RunNotFoundError):
            await find_run(client, run_id)
            return True
        view = await query_lane(client, conversation_id, cache)
        if view is not None and any(turn.run_id == run_id and turn.end is TurnEnd.dropped for turn in view.recent):
            return False
        await asyncio.sleep(TURN_POLL_INTERVAL)


async def steer_run(client: Client, run_id: str, message: SteerRequest) -> None:
    """Send a run a message for its next model call. Raises RunNotFoundError, and RejectedError if it has ended."""
    handle = client.get_workflow_handle(ids.addressed_workflow_id(run_id))
    with convert_rpc_errors(f"run {run_id}"):
        await handle.signal("steer", stamp_sender(message).model_dump(mode="json", exclude_none=True))


async def list_lanes(client: Client, limit: int, after: bytes | None = None) -> LanePage:
    """Return at most `limit` conversations, those whose lanes have started last first.

    It makes one list, and one more for each `LANES_IN_QUERY` of them. Raises RejectedError for a cursor that is not of
    this list, TemporalUnavailableError.
    """
    cursor = ListCursor.read(after) if after else ListCursor()
    page, token = await read_page(client, ALL_LANES, limit, cursor.token_of(ALL_LANES))
    lanes = dict[str, WorkflowExecution]()
    for lane in filter(is_listed, page):
        lanes.setdefault(lane.id, lane)  # an earlier lane of a conversation follows the latest one
    names = list(lanes)
    chunks = [names[first : first + LANES_IN_QUERY] for first in range(0, len(names), LANES_IN_QUERY)]
    found = await asyncio.gather(*(_find_turns(client, chunk) for chunk in chunks))
    turns = dict(chain.from_iterable(found))
    return LanePage(
        tuple(_describe_lane(lane, turns.get(name)) for name, lane in lanes.items()),
        cursor.following(ALL_LANES, token) if token else None,
    )


async def _find_turns(client: Client, lanes: Sequence[str]) -> list[tuple[str, RunRecord]]:
    """Return the open turns of these lanes, each with its lane. Raises TemporalUnavailableError."""
    named = " OR ".join(ids.query_equals("ParentWorkflowId", lane) for lane in lanes)
    page, _ = await read_page(client, f"{ALL_RUNS} AND ExecutionStatus = 'Running' AND ({named})", MAX_OPEN_TURNS)
    return [(run.parent_id or "", RunRecord.of(RunInfo(ids.run_id_of_workflow(run.id), run))) for run in page]


def _describe_lane(lane: WorkflowExecution, turn: RunRecord | None) -> LaneRecord:
    is_open = lane.status is WorkflowExecutionStatus.RUNNING
    return LaneRecord(
        conversation_id=ids.conversation_id_of(lane.id),
        status=LaneStatus.busy if turn else LaneStatus.idle if is_open else LaneStatus.closed,
        started_at=lane.start_time,
        closed_at=lane.close_time,
        turn=turn,
    )


async def query_lane(client: Client, conversation_id: str, cache: QueryCache | None = None) -> LaneView | None:
    """Return the lane's state, if a worker answers. Raises RunNotFoundError."""
    handle = client.get_workflow_handle(ids.conversation_workflow_id(conversation_id))
    return await query_view(handle, "lane", LaneView, f"conversation {conversation_id}", cache=cache)
