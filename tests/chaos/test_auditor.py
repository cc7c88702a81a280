"""The auditor lets pass what is nobody's fault, and nothing beside it."""

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskFailedEventAttributes

from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import Audit, failed_task, is_dropped
from tests.chaos.batches import judge_payments

MACHINES = (
    "Fatal error in workflow machines: ActivityMachine in state {} says the transition is invalid during event {}"
)
STARTED = "EventInfo { event_id: 46, event_type: ActivityTaskStarted }"
COMPLETED = "EventInfo { event_id: 46, event_type: ActivityTaskCompleted }"
OVERTAKEN = MACHINES.format("ScheduledActivityCancelCommandCreated", STARTED)
REDELIVERED = (
    "[TMPRL1100] Nondeterminism error: Invalid transition while handling update response (id 4f7) in state Accepted"
)
WORKER = Cause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE
CHANGED = Cause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR


def failure(cause: "Cause.ValueType", message: str) -> HistoryEvent:
    attributes = WorkflowTaskFailedEventAttributes(cause=cause, failure=Failure(message=message))
    return HistoryEvent(workflow_task_failed_event_attributes=attributes)


def test_harmless_failures_of_workflow_tasks_are_accepted() -> None:
    assert failed_task(failure(Cause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND, "")) == []
    assert failed_task(failure(WORKER, OVERTAKEN)) == []
    assert failed_task(failure(CHANGED, REDELIVERED)) == []
    assert failed_task(failure(WORKER, "no Temporal server answers at 127.0.0.1:7233: refused")) == []


@pytest.mark.parametrize(
    "message",
    [
        "[TMPRL1100] Nondeterminism error: Update machine does not handle this event: HistoryEvent(id: 31, …)",
        MACHINES.format("Started", STARTED),
        MACHINES.format("ScheduledActivityCancelCommandCreated", COMPLETED),
    ],
)
def test_other_machine_errors_are_violations(message: str) -> None:
    assert failed_task(failure(WORKER, message)) == [message]


def test_a_failure_without_a_message_is_named_by_its_cause() -> None:
    assert failed_task(failure(CHANGED, "")) == ["WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR"]


FAILING = "Failing workflow task {'failure': '[TMPRL1100] Update machine does not handle this', 'run_id': '01a2-e534'}"
DROPPED = "Task not found when completing {'run_id': '01a2-e534', 'error': 'Workflow task not found.'}"
OTHER = DROPPED.replace("e534", "ffff")


@pytest.mark.parametrize(
    ("line", "later", "is_harmless"),
    [
        (FAILING, [DROPPED], True),
        (FAILING, [OTHER, "agent_run.completed", DROPPED], True),
        (FAILING, [OTHER], False),
        (FAILING, [], False),
        (FAILING, [FAILING, DROPPED], False),
        ("a Traceback of {'run_id': '01a2-e534'}", [DROPPED], False),
    ],
)
def test_a_failure_passes_only_if_the_server_had_dropped_its_task(
    line: str, later: list[str], is_harmless: bool
) -> None:
    assert is_dropped(line, later) is is_harmless


def answer(params: Json, earlier: int) -> Json:
    return {"type": "expired" if params["messages"] == ["late"] and not earlier else "succeeded"}


@pytest.mark.parametrize(
    ("batches", "rests", "live", "lists", "violations"),
    [
        ([["a", "late"], ["late"]], 0, 0, 1, []),
        ([["a", "late"], ["late"], ["rest"]], 1, 0, 1, []),
        ([["a"], ["a", "late"], ["late"]], 0, 0, 1, ["paid 2 times"]),
        ([["a", "late"]], 0, 0, 1, ["1 turns were paid in batches, and the runs have 2"]),
        ([["a"], ["rest"]], 1, 0, 1, ["1 turns were paid in batches, and the runs have 2"]),
        ([["a", "late"], ["late"]], 0, 3, 1, ["3 model calls were made live"]),
        ([["a", "late"], ["late"]], 0, 0, 0, ["was not looked for"]),
    ],
)
def test_turns_paid_twice_or_not_at_all_are_violations(
    batches: list[list[str]], rests: int, live: int, lists: int, violations: list[str]
) -> None:
    api, found = ScriptedBatches(), Audit()
    for turns in batches:
        api.create_batch([{"custom_id": turn, "params": {"messages": [turn]}} for turn in turns], answer)
    api.calls["list"] = lists
    judge_payments(found, api, turns=2, rests=rests, live=live)
    assert len(found.violations) == len(violations)
    assert all(said in found.violations[0] for said in violations)
