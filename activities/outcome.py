"""How a run has ended, by its result or its failure, and what it brings: its outcome, and the files that it names."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode

from activities.workspace import ARTIFACTS, OutsideWorkspace, Workspace
from contracts.conversation import Ended, TurnEnd
from contracts.delegation import SubtaskStatus
from contracts.failures import RunFailure
from decisions.endings import said_in

ENDS = {"agent.completed": TurnEnd.completed, "agent.escalated": TurnEnd.escalated}
MOST_FILES, MOST_FILE = 100, 64 * 1024 * 1024  # that are handed on; bytes of one


@dataclass(frozen=True)
class Outcome:
    """`text` is the outcome, or why there is none; `fault` the type of a failure. `artifacts` lie in its workspace."""

    status: SubtaskStatus
    text: str
    fault: str | None = None
    artifacts: tuple[str, ...] = ()


async def end_of(run: WorkflowHandle[Any, Any]) -> Ended:
    """Waits for the end of one that has not ended. Raises RPCError."""
    try:
        return of_event(await run.result())
    except WorkflowFailureError as error:
        return of_failure(error.cause)


def of_event(event: Any) -> Ended:
    """By its result. One that is no event is that of another workflow, which somebody gave the id of a run."""
    if not isinstance(event, dict) or event.get("type") not in ENDS:
        return Ended(end=TurnEnd.failed, said="what has this id is no run of an agent")
    return Ended(end=ENDS[event["type"]], said=said_in(event))


def of_failure(cause: BaseException | None) -> Ended:
    match cause:
        case ApplicationError():
            end = TurnEnd.timed_out if cause.type == RunFailure.hard_limit else TurnEnd.failed
            return Ended(end=end, said=cause.message)
        case CancelledError():
            return Ended(end=TurnEnd.cancelled)
        case TerminatedError():
            return Ended(end=TurnEnd.cancelled, said=f"terminated: {cause.message}")
        case TimedOut():
            return Ended(end=TurnEnd.timed_out, said=str(cause))
        case _:
            return Ended(end=TurnEnd.failed, said=str(cause))


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
