"""The activity `watch_run`: wait for the end of a run by its workflow id."""

from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.run.outcome import read_run_end
from contracts.conversation import Ended
from contracts.reconcile import WorkflowStatus
from decisions import ids

FIRST_LOOK, LONGEST_PAUSE = 0.25, 5.0  # seconds; between checks no slot is used, and history does not grow

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


class RunWatcher:
    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn
    async def watch_run(self, workflow_id: str) -> Ended:
        """Return the workflow's end, across continue-as-new; a run's with its outcome.

        Fails while the workflow is open: the retries are the wait.
        """
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            standing = workflow_status_of(await handle.describe())
            if standing is not WorkflowStatus.open:
                is_run = workflow_id.startswith(ids.RUN_PREFIX)
                return (await read_run_end(handle)).turn_end if is_run else Ended.model_validate(standing)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return Ended.model_validate(WorkflowStatus.gone)
            raise
        pause = min(FIRST_LOOK * activity.info().attempt, LONGEST_PAUSE)
        raise ApplicationError(
            f"{workflow_id} is still open",
            type="StillOpen",
            next_retry_delay=timedelta(seconds=pause),
            category=ApplicationErrorCategory.BENIGN,
        )
