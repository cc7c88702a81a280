"""How a run has ended: one reading, which conversations, delegations and people share."""

from typing import Any

import pytest
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut

from activities.outcome import of_event, of_failure
from contracts.conversation import TurnEnd
from contracts.failures import RunFailure
from contracts.run import RunStatus

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
    end = of_event(event)
    assert (end.status, end.event, end.said, end.handoff) == (status, event, said, handoff)
    assert end.of_turn.end is TurnEnd(status)


@pytest.mark.parametrize("result", [None, "done", 3, {}, {"type": "agent.completed"}, {"type": "x", "payload": {}}])
def test_the_result_of_another_workflow_is_no_end_of_a_run(result: Any) -> None:
    end = of_event(result)
    assert (end.status, end.kind, end.event) == (RunStatus.failed, "NoRun", None)
    assert "no run" in end.said


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
    end = of_failure(cause)
    assert (end.status, end.kind, end.said) == (status, kind, said)
    assert end.of_turn.end is TurnEnd(status)
