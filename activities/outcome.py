"""What a run that has ended brings: its outcome, or why there is none, and the files that it names."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode

from activities.workspace import ARTIFACTS, OutsideWorkspace, Workspace
from contracts.delegation import SubtaskStatus
from contracts.failures import RunFailure
from decisions.endings import said_in

MOST_FILES, MOST_FILE = 100, 64 * 1024 * 1024  # that are handed on; bytes of one


@dataclass(frozen=True)
class Outcome:
    """`text` is the outcome, or why there is none; `fault` the type of a failure. `artifacts` lie in its workspace."""

    status: SubtaskStatus
    text: str
    fault: str | None = None
    artifacts: tuple[str, ...] = ()


async def outcome_of(run: WorkflowHandle[Any, dict[str, Any]]) -> Outcome | None:
    """Of a run that has ended; waits for one that has not. None where the server knows no such run. Raises RPCError."""
    try:
        event = await run.result()
    except WorkflowFailureError as error:
        return _failure(error.cause)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    payload = event["payload"]
    named = tuple(map(str, payload.get("artifacts", ())))
    if event["type"] == "agent.completed":
        partly = "(Partial: its time was used up.)\n\n" if payload.get("partial") else ""
        return Outcome(SubtaskStatus.done, f"{partly}{said_in(event)}", artifacts=named)
    return Outcome(SubtaskStatus.escalated, said_in(event), "Escalated", named)


def _failure(cause: BaseException) -> Outcome:
    match cause:
        case CancelledError():
            return Outcome(SubtaskStatus.cancelled, "it was cancelled", "cancelled")
        case TerminatedError():
            return Outcome(SubtaskStatus.terminated, "somebody terminated it in Temporal", "terminated")
        case TimedOut():
            return Outcome(SubtaskStatus.timed_out, "Temporal's timeout for the whole run has passed", "timed_out")
        case ApplicationError():
            is_late = cause.type == RunFailure.hard_limit
            status = SubtaskStatus.timed_out if is_late else SubtaskStatus.failed
            return Outcome(status, f"{cause.type}: {cause.message}", cause.type)
        case _:
            return Outcome(SubtaskStatus.failed, str(cause), type(cause).__name__)


def files_of(workspace: Workspace, named: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """What was named and is a regular file there, none too large, by its path below the artifacts."""
    for path in named[:MOST_FILES]:
        with suppress(OSError, OutsideWorkspace):
            with workspace.open(path) as file:
                data = file.read(MOST_FILE + 1)
            if len(data) <= MOST_FILE:
                yield path.removeprefix("./").removeprefix(f"{ARTIFACTS}/"), data
