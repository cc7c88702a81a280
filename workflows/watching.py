"""The wait for the end of a workflow that this one has no handle for, since another one started it."""

from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError

from activities.run.status import Standings
from workflows.policies import WATCHING


async def watch(workflow_id: str, summary: str) -> None:
    """A cancel of the wait is handed on to what is waited for, and then its end is awaited."""
    try:
        await _ended(workflow_id, summary)
    except ActivityError as error:
        if not isinstance(error.cause, CancelledError):
            raise
        with suppress(ApplicationError):  # it has ended
            await workflow.get_external_workflow_handle(workflow_id).cancel()
        await _ended(workflow_id, summary)


async def _ended(workflow_id: str, summary: str) -> None:
    await workflow.execute_activity_method(Standings.watch_run, workflow_id, summary=summary, **WATCHING)
