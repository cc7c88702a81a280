"""The auditor lets pass what is nobody's fault, and nothing beside it."""

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskFailedEventAttributes

from tests.chaos.auditor import failed_task

MACHINES = (
    "Fatal error in workflow machines: ActivityMachine in state {} says the transition is invalid during event {}"
)
STARTED = "EventInfo { event_id: 46, event_type: ActivityTaskStarted }"
COMPLETED = "EventInfo { event_id: 46, event_type: ActivityTaskCompleted }"
OVERTAKEN = MACHINES.format("ScheduledActivityCancelCommandCreated", STARTED)
WORKER = Cause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE
CHANGED = Cause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR


def failure(cause: "Cause.ValueType", message: str) -> HistoryEvent:
    attributes = WorkflowTaskFailedEventAttributes(cause=cause, failure=Failure(message=message))
    return HistoryEvent(workflow_task_failed_event_attributes=attributes)


def test_harmless_failures_of_workflow_tasks_are_accepted() -> None:
    assert failed_task(failure(Cause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND, "")) == []
    assert failed_task(failure(WORKER, OVERTAKEN)) == []


@pytest.mark.parametrize(
    "message",
    [MACHINES.format("Started", STARTED), MACHINES.format("ScheduledActivityCancelCommandCreated", COMPLETED)],
)
def test_other_machine_errors_are_violations(message: str) -> None:
    assert failed_task(failure(WORKER, message)) == [message]


def test_a_failure_without_a_message_is_named_by_its_cause() -> None:
    assert failed_task(failure(CHANGED, "")) == ["WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR"]
