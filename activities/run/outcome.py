"""How a run has ended, by its result or its failure, and what it brings: its outcome, and the files that it names."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode

from activities.storage.workspace import ARTIFACTS, OutsideWorkspace, Workspace
from contracts.conversation import Ended, TurnEnd
from contracts.delegation import SubtaskStatus
from contracts.failures import RunFailure
from contracts.run.state import RunStatus
from decisions.run.outcome import said_in

MOST_FILES, MOST_FILE = 100, 64 * 1024 * 1024  # that are handed on; bytes of one
TERMINATED, TIMED_OUT = "Terminated", "TimedOut"  # kinds of a failure that is Temporal's, and not the run's
NO_RUN = "NoRun"  # and of a workflow that is none
BY_TEMPORAL = {TERMINATED: SubtaskStatus.terminated, TIMED_OUT: SubtaskStatus.timed_out}
SUBTASK = {
    RunStatus.completed: SubtaskStatus.done,
    RunStatus.escalated: SubtaskStatus.escalated,
    RunStatus.cancelled: SubtaskStatus.cancelled,
    RunStatus.timed_out: SubtaskStatus.timed_out,
    RunStatus.failed: SubtaskStatus.failed,
}


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: its event, or the type of the failure, why, and the hand-off to a person."""

    status: RunStatus
    event: dict[str, Any] | None = None
    kind: str = ""
    message: str = ""
    handoff: str = ""

    @property
    def said(self) -> str:
        """The outcome, or why there is none."""
        return said_in(self.event) if self.event else self.message

    @property
    def of_turn(self) -> Ended:
        return Ended(end=TurnEnd(self.status), said=self.said)


@dataclass(frozen=True)
class Outcome:
    """`text` is the outcome, or why there is none; `fault` the type of a failure. `artifacts` lie in its workspace."""

    status: SubtaskStatus
    text: str
    fault: str | None = None
    artifacts: tuple[str, ...] = ()


async def end_of(run: WorkflowHandle[Any, Any]) -> RunEnd:
    """Waits for the end of one that has not ended. Raises RPCError."""
    try:
        return of_event(await run.result())
    except WorkflowFailureError as error:
        return of_failure(error.cause)


def of_event(event: Any) -> RunEnd:
    """By its result. One that is no event is that of another workflow, which somebody gave the id of a run."""
    match event:
        case {"type": "agent.completed", "payload": {"outcome": _}}:
            return RunEnd(RunStatus.completed, event)
        case {"type": "agent.escalated", "payload": {"reason": _, "detail": _} as payload}:
            return RunEnd(RunStatus.escalated, event, handoff=str(payload.get("handoff", "")))
        case {"type": "evt.workflow.resolved"}:  # of a follow-up, which people cancel by the same command
            return RunEnd(RunStatus.completed)
        case _:
            return RunEnd(RunStatus.failed, kind=NO_RUN, message="what has this id is no run of an agent")


def of_failure(cause: BaseException | None) -> RunEnd:
    match cause:
        case ApplicationError():
            details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
            status = RunStatus.timed_out if cause.type == RunFailure.hard_limit else RunStatus.failed
            return RunEnd(status, None, cause.type or "", cause.message, str(details.get("handoff", "")))
        case CancelledError():
            return RunEnd(RunStatus.cancelled)
        case TerminatedError():
            why = f"somebody terminated it in Temporal: {cause.message}"
            return RunEnd(RunStatus.cancelled, kind=TERMINATED, message=why)
        case TimedOut():
            why = "Temporal's timeout for the whole run has passed"
            return RunEnd(RunStatus.timed_out, kind=TIMED_OUT, message=why)
        case _:
            return RunEnd(RunStatus.failed, kind=type(cause).__name__, message=str(cause))


async def outcome_of(run: WorkflowHandle[Any, Any]) -> Outcome | None:
    """What it brings whoever delegated it. None where the server knows no such run. Raises RPCError."""
    try:
        end = await end_of(run)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    if end.event is None:
        return _without_result(end)
    payload = end.event["payload"]
    partly = "(Partial: its time was used up.)\n\n" if payload.get("partial") else ""
    fault = None if end.status is RunStatus.completed else "Escalated"
    named = tuple(map(str, payload.get("artifacts", ())))
    return Outcome(SUBTASK[end.status], f"{partly}{end.said}", fault, named)


def _without_result(end: RunEnd) -> Outcome:
    if status := BY_TEMPORAL.get(end.kind):
        return Outcome(status, end.said, status)
    if end.status is RunStatus.cancelled:
        return Outcome(SubtaskStatus.cancelled, "it was cancelled", SubtaskStatus.cancelled)
    return Outcome(SUBTASK[end.status], f"{end.kind}: {end.said}" if end.kind else end.said, end.kind or None)


def files_of(workspace: Workspace, named: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """What was named and is a regular file there, none too large, by its path below the artifacts."""
    for path in named[:MOST_FILES]:
        with suppress(OSError, OutsideWorkspace):
            with workspace.open(path) as file:
                data = file.read(MOST_FILE + 1)
            if len(data) <= MOST_FILE:
                yield path.removeprefix("./").removeprefix(f"{ARTIFACTS}/"), data
