"""A run's end, read from its result or failure: its outcome, and the files that it names."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace
from perdure.activities.temporal import IgnoreMissing
from perdure.contracts.conversation import Ended, TurnEnd
from perdure.contracts.failures import RunFailure
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.events import DryCall, PlanInForce
from perdure.contracts.run.limits import SubtaskStatus
from perdure.contracts.run.state import RunStatus
from perdure.decisions.ids import run_workflow_id
from perdure.decisions.people.plan import PlanError, match_plan
from perdure.decisions.run.outcome import event_text

MAX_HANDED_FILES, MAX_HANDED_FILE_BYTES = 100, 64 * 1024 * 1024  # files that are copied; bytes of one
TERMINATED, TIMED_OUT = "Terminated", "TimedOut"  # kinds of failure that are Temporal's, not the run's
NO_RUN = "NoRun"  # kind of failure: the workflow is not a run
BY_TEMPORAL = {TERMINATED: SubtaskStatus.terminated, TIMED_OUT: SubtaskStatus.timed_out}


@dataclass(frozen=True)
class RunEnd:
    """A run's end: its event, or the kind and message of the failure, and the handoff to a person."""

    status: RunStatus
    event: dict[str, Any] | None = None
    kind: str = ""
    message: str = ""
    handoff: str = ""

    @property
    def text(self) -> str:
        """The outcome, or the reason why there is no outcome."""
        return event_text(self.event) if self.event else self.message

    @property
    def result(self) -> Any:
        """The result by the output schema; `NO_RESULT` if the run has none, or did not complete."""
        return self.event["payload"].get("result", NO_RESULT) if self.event else NO_RESULT

    @property
    def is_dry_run(self) -> bool:
        """True for a dry run that came to an outcome or escalated."""
        return bool(self.event and self.event["payload"].get("dry_run"))

    @property
    def turn_end(self) -> Ended:
        return Ended(end=TurnEnd(self.status), said=self.text)


@dataclass(frozen=True)
class SubtaskOutcome:
    """The outcome of a subtask. `fault` is the kind of a failure; `artifacts` are paths in the run's workspace."""

    status: SubtaskStatus
    text: str
    fault: str | None = None
    artifacts: tuple[str, ...] = ()
    result: Any = NO_RESULT


async def read_run_end(run: WorkflowHandle[Any, Any]) -> RunEnd:
    """Wait for the run's end, and return it. Raises RPCError."""
    try:
        return end_from_event(await run.result())
    except WorkflowFailureError as error:
        return end_from_failure(error.cause)


def end_from_event(event: Any) -> RunEnd:
    """Return the end by a run's result. If it is not an event, another workflow has the id of a run."""
    match event:
        case {"type": "agent.completed", "payload": {"outcome": _}}:
            return RunEnd(RunStatus.completed, event)
        case {"type": "agent.escalated", "payload": {"reason": _, "detail": _} as payload}:
            return RunEnd(RunStatus.escalated, event, handoff=str(payload.get("handoff", "")))
        case {"type": "evt.workflow.resolved"}:  # a follow-up's, which the same command cancels
            return RunEnd(RunStatus.completed)
        case _:
            return RunEnd(RunStatus.failed, kind=NO_RUN, message="what has this id is no run of an agent")


def end_from_failure(cause: BaseException | None) -> RunEnd:
    match cause:
        case ApplicationError():
            details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
            status = RunStatus.timed_out if cause.type == RunFailure.hard_limit else RunStatus.failed
            return RunEnd(status, None, cause.type or "", cause.message, str(details.get("handoff", "")))
        case CancelledError():
            return RunEnd(RunStatus.cancelled)
        case TerminatedError():
            message = f"somebody terminated it in Temporal: {cause.message}"
            return RunEnd(RunStatus.cancelled, kind=TERMINATED, message=message)
        case TimedOut():
            message = "Temporal's timeout for the whole run has passed"
            return RunEnd(RunStatus.timed_out, kind=TIMED_OUT, message=message)
        case _:
            return RunEnd(RunStatus.failed, kind=type(cause).__name__, message=str(cause))


async def wait_for_outcome(run: WorkflowHandle[Any, Any]) -> SubtaskOutcome | None:
    """Return the outcome for the delegating run, if the run exists. Raises RPCError."""
    end: RunEnd | None = None
    with IgnoreMissing():
        end = await read_run_end(run)
    if end is None:
        return None
    status = SubtaskStatus.done if end.status is RunStatus.completed else SubtaskStatus(end.status)
    if end.event is not None:
        payload = end.event["payload"]
        partly = "(Partial: its time was used up.)\n\n" if payload.get("partial") else ""
        fault = None if status is SubtaskStatus.done else "Escalated"
        return SubtaskOutcome(
            status, f"{partly}{end.text}", fault, tuple(map(str, payload.get("artifacts", ()))), end.result
        )
    if cut_short := BY_TEMPORAL.get(end.kind):
        return SubtaskOutcome(cut_short, end.text, cut_short)
    if end.status is RunStatus.cancelled:
        return SubtaskOutcome(status, "it was cancelled", status)
    text = f"{end.kind}: {end.text}" if end.kind else end.text
    return SubtaskOutcome(status, text, end.kind or None)


async def look_up_plan(client: Client, plan: PlanInForce) -> PlanInForce:
    """Return the plan with its calls as the dry run listed them.

    Raises ApplicationError `InvalidInput` unless there is such a dry run, which has ended and listed these calls.
    """
    handle = client.get_workflow_handle(run_workflow_id(plan.run_id))
    try:
        status = (await handle.describe()).status
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        raise _plan_error(f"there is no dry run {plan.run_id}, or the server has forgotten it") from None
    if status is WorkflowExecutionStatus.RUNNING:
        raise _plan_error(f"{plan.run_id} has not ended; wait for its end: perdure watch {plan.run_id}")
    payload: dict[str, Any] = ((await read_run_end(handle)).event or {}).get("payload", {})
    if not payload.get("dry_run"):
        reason = "is not a dry run, or did not complete"
        raise _plan_error(f"{plan.run_id} {reason}; start one with: perdure run --dry-run GOAL")
    listed = tuple(DryCall.model_validate(call) for call in payload.get("dry_calls", ()))
    try:
        return match_plan(plan, listed)
    except PlanError as error:
        raise _plan_error(str(error)) from None


def _plan_error(reason: str) -> ApplicationError:
    return ApplicationError(f"payload.plan: {reason}", type=RunFailure.invalid_input, non_retryable=True)


def read_named_files(workspace: Workspace, named: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield path below the artifacts and content of each named regular file, except those that are too large."""
    for path in named[:MAX_HANDED_FILES]:
        with suppress(OSError, OutsideWorkspaceError):
            with workspace.open(path) as file:
                data = file.read(MAX_HANDED_FILE_BYTES + 1)
            if len(data) <= MAX_HANDED_FILE_BYTES:
                yield path.removeprefix("./").removeprefix(f"{ARTIFACTS}/"), data
