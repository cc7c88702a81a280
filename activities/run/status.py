"""A run as the server has it: its status, its state, a turn's end; the activity `watch_run` waits for its end."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution as ExecutionRef
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.run.outcome import read_run_end
from perdure.activities.temporal import IgnoreMissing, own_workflow_id
from perdure.contracts.conversation import Ended
from perdure.contracts.run.signals import EndWatcher
from perdure.contracts.run.state import Closed, CloseRequest, Snapshot, SnapshotQuery, WorkflowStatus
from perdure.decisions import ids

HISTORY_PAGE = 20  # events of one answer; a turn's last activity is among its last ten, unless signals came in
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=0.25), timedelta(seconds=5)  # between checks no slot is used
SIGNALLED_PAUSE = timedelta(minutes=15)  # if the run signals its end; only one that is terminated does not
SIGNALLED = (ids.FOLLOW_UP_PREFIX, ids.CONVERSATION_PREFIX, ids.INBOUND_PREFIX)  # they take the signal `run_ended`

_STATUSES = {
    WorkflowExecutionStatus.COMPLETED: WorkflowStatus.completed,
    WorkflowExecutionStatus.FAILED: WorkflowStatus.failed,
    WorkflowExecutionStatus.CANCELED: WorkflowStatus.cancelled,
    WorkflowExecutionStatus.TERMINATED: WorkflowStatus.terminated,
    WorkflowExecutionStatus.TIMED_OUT: WorkflowStatus.timed_out,
}


def workflow_status_of(workflow: WorkflowExecution) -> WorkflowStatus:
    """Return the workflow's status; `open` if it runs, or continues in another execution."""
    return _STATUSES.get(workflow.status, WorkflowStatus.open) if workflow.status else WorkflowStatus.open


async def read_snapshot(run: WorkflowHandle[Any, Any], within: timedelta | None = None) -> Snapshot:
    """Read the snapshot page by page: a turn may hold more results than one query can return.

    `within` is the timeout of each page. Raises RPCError, and WorkflowQueryFailedError if the run was rejected at its
    start.
    """
    while True:
        page = first = await _read_page(run, 0, within)
        calls = first.state.calls
        while page.state.updated_at == first.state.updated_at and len(calls) < first.calls:
            page = await _read_page(run, len(calls), within)
            calls += page.state.calls
        if page.state.updated_at == first.state.updated_at:  # else the run changed between two pages
            return first.evolve(state=first.state.evolve(calls=calls))


async def _read_page(run: WorkflowHandle[Any, Any], start: int, within: timedelta | None) -> Snapshot:
    query = SnapshotQuery(start=start).model_dump(by_alias=True)
    page: Snapshot = await run.query("snapshot", query, result_type=Snapshot, rpc_timeout=within)
    return page


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
    workflow_id = ids.run_workflow_id(run_id)
    with IgnoreMissing():
        described = await client.get_workflow_handle(workflow_id).describe()
        if described.parent_id == owner and described.close_time is not None:
            execution = ExecutionRef(workflow_id=workflow_id, run_id=described.run_id)
            return await _find_record(client, execution) or ClosedTurn(described.close_time, has_record=False)
    return None


async def _find_record(client: Client, execution: ExecutionRef) -> ClosedTurn | None:
    """Look for the activity that wrote the record, from the end of the history backwards."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=execution, maximum_page_size=HISTORY_PAGE
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
    attributes = scheduled.activity_task_scheduled_event_attributes
    if attributes.activity_type.name != "close_segment":
        return None
    request: CloseRequest = (await client.data_converter.decode(attributes.input.payloads, [CloseRequest]))[0]
    if request.turn is None:
        return None
    result = completed.activity_task_completed_event_attributes.result
    closed: Closed = (await client.data_converter.decode(result.payloads, [Closed]))[0]
    return ClosedTurn(completed.event_time.ToDatetime(UTC), has_record=True, digest=closed.record)


class RunWatcher:
    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn
    async def watch_run(self, workflow_id: str, is_ending: bool = False) -> Ended:
        """Return the workflow's end, across continue-as-new; a run's with its outcome.

        Fails while the workflow is open: the retries are the wait. A run is asked to signal its end to a follow-up or a
        lane, so these retries are few. `is_ending`: it has signalled, and closes next.
        """
        handle = self._client.get_workflow_handle(workflow_id)
        with IgnoreMissing():
            standing = workflow_status_of(await handle.describe())
            if standing is WorkflowStatus.open:
                is_signalled = not is_ending and await _ask_for_signal(handle)
                soon = min(FIRST_PAUSE * activity.info().attempt, LONGEST_PAUSE)
                raise ApplicationError(
                    f"{workflow_id} is still open",
                    type="StillOpen",
                    next_retry_delay=SIGNALLED_PAUSE if is_signalled else soon,
                    category=ApplicationErrorCategory.BENIGN,
                )
            is_run = workflow_id.startswith(ids.RUN_PREFIX)
            return (await read_run_end(handle)).turn_end if is_run else Ended.model_validate(standing)
        return Ended.model_validate(WorkflowStatus.gone)


async def _ask_for_signal(run: WorkflowHandle[Any, Any]) -> bool:
    """Ask a run to signal its end to the calling follow-up or lane. Return whether it will.

    It is asked until the first long pause, as an attempt may be lost with its worker.
    """
    info, watcher = activity.info(), own_workflow_id()
    if not (run.id.startswith(ids.RUN_PREFIX) and watcher.startswith(SIGNALLED)):
        return False
    if info.current_attempt_scheduled_time - info.scheduled_time < SIGNALLED_PAUSE:
        with IgnoreMissing():
            await run.signal("watch_end", EndWatcher(workflow_id=watcher).model_dump())
            return True
        return False  # it has just ended
    return True
