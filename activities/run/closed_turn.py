"""The end of a conversation's turn, read from its history, which holds the digest of the record in the store."""

from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from contracts.run.state import Closed, CloseRequest
from decisions.ids import run_workflow_id

PAGE = 20  # events of one answer; a turn's last activity is among its last ten, unless signals came in


@dataclass(frozen=True)
class ClosedTurn:
    """A turn that has ended. `digest` is that of its record, or None if an earlier version wrote it.

    `at` is the time of the record, or the end of a turn that was cut off and left none.
    """

    at: datetime
    has_record: bool
    digest: str | None = None


async def find_closed_turn(client: Client, run_id: str, owner: str) -> ClosedTurn | None:
    """Return the end of a turn of the lane `owner`, unless the server has no such turn or it runs again."""
    workflow_id = run_workflow_id(run_id)
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
        if described.parent_id != owner or described.close_time is None:
            return None
        turn = await _find_record(client, WorkflowExecution(workflow_id=workflow_id, run_id=described.run_id))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return turn or ClosedTurn(described.close_time, has_record=False)


async def _find_record(client: Client, execution: WorkflowExecution) -> ClosedTurn | None:
    """Look for the activity that wrote the record, from the end of the history backwards."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=execution, maximum_page_size=PAGE
    )
    completions: dict[int, HistoryEvent] = {}  # by the event that scheduled the activity
    while True:
        page = await client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        for event in page.history.events:
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completions[event.activity_task_completed_event_attributes.scheduled_event_id] = event
            if event.event_id in completions and (
                turn := await _read_record_event(client, event, completions[event.event_id])
            ):
                return turn
        if not page.next_page_token:
            return None
        request.next_page_token = page.next_page_token


async def _read_record_event(client: Client, scheduled: HistoryEvent, completed: HistoryEvent) -> ClosedTurn | None:
    activity = scheduled.activity_task_scheduled_event_attributes
    if activity.activity_type.name != "close_segment":
        return None
    request: CloseRequest = (await client.data_converter.decode(activity.input.payloads, [CloseRequest]))[0]
    if request.turn is None:
        return None
    result = completed.activity_task_completed_event_attributes.result
    closed: Closed = (await client.data_converter.decode(result.payloads, [Closed]))[0]
    return ClosedTurn(completed.event_time.ToDatetime(UTC), has_record=True, digest=closed.record)
