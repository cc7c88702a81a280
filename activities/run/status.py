"""The activity `watch_run`: waits for the end of a run that its watcher has no handle for."""

from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.run.outcome import end_of
from contracts.conversation import Ended
from contracts.reconcile import Standing
from decisions import ids

FIRST_LOOK, LONGEST_PAUSE = 0.25, 5.0  # seconds; between looks nothing is held, and nothing enters history

_STANDINGS = {
    WorkflowExecutionStatus.COMPLETED: Standing.completed,
    WorkflowExecutionStatus.FAILED: Standing.failed,
    WorkflowExecutionStatus.CANCELED: Standing.cancelled,
    WorkflowExecutionStatus.TERMINATED: Standing.terminated,
    WorkflowExecutionStatus.TIMED_OUT: Standing.timed_out,
}


def standing_of(workflow: WorkflowExecution) -> Standing:
    """One whose status is none of these goes on in another execution."""
    return _STANDINGS.get(workflow.status, Standing.open) if workflow.status else Standing.open


class Standings:
    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn
    async def watch_run(self, workflow_id: str) -> Ended:
        """How the workflow ended, over its continue-as-new; what only a run says of its end, only of a run.

        While it is open this fails, to be tried again: that is the wait.
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
