"""How a run has ended: one reading, which conversations, delegations and people share."""

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut

from perdure.activities.run.outcome import end_from_event, end_from_failure, wait_for_outcome
from perdure.contracts.conversation import TurnEnd
from perdure.contracts.failures import RunFailure
from perdure.contracts.run.state import RunStatus

COMPLETED = {"type": "agent.completed", "payload": {"outcome": "done"}}
ESCALATED = {"type": "agent.escalated", "payload": {"reason": "asked", "detail": "shut", "handoff": "H"}}


@pytest.mark.parametrize(
    ("event", "status", "said", "handoff"),
    [
        (COMPLETED, RunStatus.completed, "done", ""),
        (ESCALATED, RunStatus.escalated, "asked: shut", "H"),
    ],
)
def test_a_result_tells_the_end(event: dict[str, Any], status: RunStatus, said: str, handoff: str) -> None:
    end = end_from_event(event)
    assert (end.status, end.event, end.text, end.handoff) == (status, event, said, handoff)
    assert end.turn_end.end is TurnEnd(status)


def test_a_follow_up_that_is_cancelled_too_late_is_listed_as_completed() -> None:
    assert end_from_event({"type": "evt.workflow.resolved", "data": {}}).status is RunStatus.completed


class Ended:
    """Stands in for a handle of the client."""

    def __init__(self, end: Any) -> None:
        self._end = end

    async def result(self) -> Any:
        if isinstance(self._end, BaseException):
            raise WorkflowFailureError(cause=self._end)
        return self._end


@pytest.mark.parametrize(
    ("end", "status", "text", "fault"),
    [
        (COMPLETED, "done", "done", None),
        (ESCALATED, "escalated", "asked: shut", "Escalated"),
        (CancelledError(), "cancelled", "it was cancelled", "cancelled"),
        (TerminatedError("by eva"), "terminated", "somebody terminated it in Temporal: by eva", "terminated"),
        (ApplicationError("late", type=RunFailure.hard_limit), "timed_out", f"{RunFailure.hard_limit}: late",
         RunFailure.hard_limit),
        (ApplicationError("no", type="ModelUnusable"), "failed", "ModelUnusable: no", "ModelUnusable"),
        (ApplicationError("no"), "failed", "no", None),
    ],
)  # fmt: skip
async def test_what_a_run_returns_to_its_delegation(end: Any, status: str, text: str, fault: str | None) -> None:
    outcome = await wait_for_outcome(Ended(end))  # type: ignore[arg-type]
    assert outcome is not None
    assert (outcome.status, outcome.text, outcome.fault) == (status, text, fault)


@pytest.mark.parametrize("result", [None, "done", 3, {}, {"type": "agent.completed"}, {"type": "x", "payload": {}}])
def test_the_result_of_another_workflow_is_no_end_of_a_run(result: Any) -> None:
    end = end_from_event(result)
    assert (end.status, end.kind, end.event) == (RunStatus.failed, "NoRun", None)
    assert "no run" in end.text


@pytest.mark.parametrize(
    ("cause", "status", "kind", "said"),
    [
        (ApplicationError("late", type=RunFailure.hard_limit), RunStatus.timed_out, RunFailure.hard_limit, "late"),
        (ApplicationError("no", {"handoff": "H"}, type="ModelUnusable"), RunStatus.failed, "ModelUnusable", "no"),
        (ApplicationError("no"), RunStatus.failed, "", "no"),
        (CancelledError(), RunStatus.cancelled, "", ""),
        (TerminatedError("by eva"), RunStatus.cancelled, "Terminated", "somebody terminated it in Temporal: by eva"),
        (TimedOut("x", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]), RunStatus.timed_out, "TimedOut",
         "Temporal's timeout for the whole run has passed"),
        (None, RunStatus.failed, "NoneType", "None"),
    ],
)  # fmt: skip
def test_a_failure_tells_the_end(cause: BaseException | None, status: RunStatus, kind: str, said: str) -> None:
    end = end_from_failure(cause)
    assert (end.status, end.kind, end.text) == (status, kind, said)
    assert end.turn_end.end is TurnEnd(status)
