"""The activity `watch_run`: wait for the end of a run by its workflow id."""

from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.run.outcome import end_of
from contracts.conversation import Ended
from contracts.reconcile import Standing
from decisions import ids

FIRST_LOOK, LONGEST_PAUSE = 0.25, 5.0  # seconds; between checks no slot is used, and history does not grow

_STANDINGS = {
    WorkflowExecutionStatus.COMPLETED: Standing.completed,
    WorkflowExecutionStatus.FAILED: Standing.failed,
    WorkflowExecutionStatus.CANCELED: Standing.cancelled,
    WorkflowExecutionStatus.TERMINATED: Standing.terminated,
    WorkflowExecutionStatus.TIMED_OUT: Standing.timed_out,
}


def standing_of(workflow: WorkflowExecution) -> Standing:
    """Return the workflow's status; `open` if it runs, or continues in another execution."""
    return _STANDINGS.get(workflow.status, Standing.open) if workflow.status else Standing.open


class Standings:
    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn
    async def watch_run(self, workflow_id: str) -> Ended:
        """Return the workflow's end, across continue-as-new; a run's with its outcome.

        Fails while the workflow is open: the retries are the wait.
        """
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            standing = standing_of(await handle.describe())
            if standing is not Standing.open:
                is_run = workflow_id.startswith(ids.RUN)
                return (await end_of(handle)).of_turn if is_run else Ended.model_validate(standing)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return Ended.model_validate(Standing.gone)
            raise
        pause = min(FIRST_LOOK * activity.info().attempt, LONGEST_PAUSE)
        raise ApplicationError(
            f"{workflow_id} is still open",
            type="StillOpen",
            next_retry_delay=timedelta(seconds=pause),
            category=ApplicationErrorCategory.BENIGN,
        )
