"""What became of the run that did a task, as the server has it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode

from contracts.mailbox import Ack, Ending
from decisions.ids import run_workflow_id

MOST_FILES, MOST_FILE = 100, 64 * 1024 * 1024  # that are handed on; bytes of one
LOOK_WITHIN = timedelta(seconds=20)
GONE = "RunGone"
_STEPS = SearchAttributeKey.for_int("AgentStep")


@dataclass(frozen=True)
class Result:
    """`text` is the outcome, or why there is none; `fault` the type of a failure. `artifacts` lie in its workspace."""

    is_done: bool
    text: str
    fault: str | None = None
    artifacts: tuple[str, ...] = ()


async def result_of(client: Client, run_id: str) -> Result:
    """Of a run that has ended; waits for one that has not. `fault` is `RunGone` where the server has forgotten it.

    Raises RPCError.
    """
    handle = client.get_workflow_handle(run_workflow_id(run_id), result_type=dict[str, Any])
    try:
        event: dict[str, Any] = await handle.result()
    except WorkflowFailureError as error:
        return _failure(error.cause)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Result(is_done=False, text="the server does not know the run any more", fault=GONE)
    payload = event["payload"]
    named = tuple(map(str, payload.get("artifacts", ())))
    if event["type"] != "agent.completed":
        return Result(
            is_done=False, text=f"{payload['reason']}: {payload['detail']}", fault="Escalated", artifacts=named
        )
    partly = "(Partial: its time was used up.)\n\n" if payload.get("partial") else ""
    return Result(is_done=True, text=f"{partly}{payload['outcome']}", artifacts=named)


def told_without_run(ending: Ending) -> Result:
    """Of a task that no run was begun for, or none that is known."""
    return Result(is_done=ending.ack is Ack.succeeded, text=ending.details, fault=ending.fault)


async def steps_of(client: Client, run_id: str) -> int:
    """As the run has told the server."""
    described = await client.get_workflow_handle(run_workflow_id(run_id)).describe(rpc_timeout=LOOK_WITHIN)
    return described.typed_search_attributes.get(_STEPS) or 0


def _failure(cause: BaseException) -> Result:
    match cause:
        case CancelledError():
            return Result(is_done=False, text="it was cancelled", fault="cancelled")
        case TerminatedError():
            return Result(is_done=False, text="somebody terminated it in Temporal", fault="terminated")
        case TimedOut():
            return Result(is_done=False, text="Temporal's timeout for the whole run has passed", fault="timed_out")
        case ApplicationError():
            return Result(is_done=False, text=f"{cause.type}: {cause.message}", fault=cause.type)
        case _:
            return Result(is_done=False, text=str(cause), fault=type(cause).__name__)
