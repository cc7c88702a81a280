"""Conversations from the outside: submit a request to a lane, and look into it."""

import asyncio
import time
from random import uniform

from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities import conversation
from contracts.conversation import ForgetRequest, Forgotten, LaneFault, LaneView, SubmitRequest, Submitted
from decisions import ids
from decisions.conversation.lane import answer_of
from decisions.text.formatting import cut
from perdure.answer_keys import NO_KEYS, AnswerKeys
from perdure.client.door import stamp
from perdure.client.errors import NoSuchRun, NotReachable, Refused, translated, unanswered
from perdure.client.runs import QUERY_PATIENCE, sign_answer

PATIENCE = 30.0  # seconds in which a submit is tried again
PAUSE, MOST_PAUSE = 0.25, 4.0  # seconds between tries, which grow: callers of other processes try again too
_SILENT = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.FAILED_PRECONDITION)


class NotTaken(Refused):
    """The lane does not take the request. `kind` is a `LaneFault`, where it is the lane that says so."""

    def __init__(self, why: str, kind: str | None) -> None:
        super().__init__(why)
        self.kind = LaneFault(kind) if kind in set(LaneFault) else None


async def submit(
    client: Client, task_queue: str, conversation_id: str, request: SubmitRequest, keys: AnswerKeys = NO_KEYS
) -> Submitted:
    """Hands a request to a lane, which is opened where there is none; sent again, it is the same request.

    One that answers a question is signed by one of `keys`, where the running turn wants that.

    Raises NotTaken with the lane's reason, Refused by the server, NotReachable where nobody has taken it in time.
    """
    request = await _sign(client, conversation_id, stamp(request), keys)
    deadline, why = time.monotonic() + PATIENCE, "no worker took the request: is one running? (perdure worker)"
    pause = PAUSE
    while (left := deadline - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                return await conversation.submit(client, task_queue, conversation_id, request)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError):
                raise NotTaken(cause.message, cause.type) from None
            raise Refused(str(cause)) from None
        except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
            continue
        except RPCError as error:
            # A lane that continues as new just then fails the precondition. Whether the request was taken is not known:
            # it is sent again, and the lane knows it by its id.
            if error.status is not RPCStatusCode.FAILED_PRECONDITION and not unanswered(error):
                raise Refused(f"the server does not take the request: {cut(error.message, 300)}") from None
            why = cut(error.message, 200)
            await asyncio.sleep(min(uniform(pause / 2, pause), left))  # noqa: S311 - nothing secret
            pause = min(2 * pause, MOST_PAUSE)
    raise NotReachable(f"{why}; it may have been accepted, and can be sent again with the same request id")


async def _sign(client: Client, conversation_id: str, request: SubmitRequest, keys: AnswerKeys) -> SubmitRequest:
    """Raises Refused, NotReachable."""
    if request.question_id is None or not keys.public:
        return request.model_copy(update={"signature": None})
    try:
        view = await look(client, conversation_id)
    except NoSuchRun:
        return request
    if view is None:
        raise NotReachable(
            f"no worker answers for conversation {conversation_id} now: is one running? (perdure worker)"
        )
    if view.active is None:
        return request
    signed = await sign_answer(client, view.active.run_id, answer_of(request), keys)
    return request.model_copy(update={"signature": signed.signature})


async def forget(client: Client, conversation_id: str, run_id: str | None = None) -> Forgotten:
    """Leave an ended turn, the latest if none is named, out of the conversation from the next turn on.

    Raises NotTaken with the lane's reason, NoSuchRun if there is no such lane, and NotReachable without a worker.
    """
    handle = client.get_workflow_handle(ids.conversation_workflow_id(conversation_id))
    body = stamp(ForgetRequest(run_id=run_id)).model_dump(mode="json", exclude_none=True)
    try:
        async with asyncio.timeout(PATIENCE):
            forgotten: Forgotten = await handle.execute_update("forget", body, result_type=Forgotten)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        raise NotTaken(str(cause), getattr(cause, "type", None)) from None
    except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
        raise NotReachable(f"no worker answers for conversation {conversation_id} now") from None
    except RPCError as error:
        raise translated(error, f"conversation {conversation_id}") from None
    return forgotten


async def look(client: Client, conversation_id: str) -> LaneView | None:
    """What the lane says of itself; None where no worker is there to answer. Raises NoSuchRun."""
    handle = client.get_workflow_handle(ids.conversation_workflow_id(conversation_id))
    try:
        view: LaneView = await handle.query("lane", result_type=LaneView, rpc_timeout=QUERY_PATIENCE)
    except WorkflowQueryFailedError:
        return None
    except RPCError as error:
        if error.status in _SILENT:
            return None
        raise translated(error, f"conversation {conversation_id}") from None
    return view
