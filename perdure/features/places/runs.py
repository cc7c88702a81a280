"""A run that waits for people or subtasks leaves its place to others, and takes one again before it goes on."""

from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.contracts.run.state import Ending, RunState
from perdure.features.places.activities import PlaceActivities
from perdure.features.places.contract import LeavePlace, PlaceRequest
from perdure.features.places.rules import places_id
from perdure.workflows.agent_run.context import RunContext


async def leave_place(state: RunState) -> None:
    """Leave the place of the run. One that is not told of finds out by itself."""
    info = workflow.info()
    entity = workflow.get_external_workflow_handle(places_id(info.task_queue))
    left = LeavePlace(key=state.place, holder=info.workflow_id)
    with suppress(ApplicationError):  # it is gone
        await entity.signal("leave", left.model_dump(mode="json"))


async def leave_at_end(state: RunState, ending: Ending | None) -> None:  # noqa: ARG001 - of the row
    if state.place:
        await leave_place(state)


async def take_place_again(run: RunContext) -> None:
    """Take a place, as the run goes on."""
    request = PlaceRequest(key=run.state.place, most=run.state.places or 1)
    await run.execute(PlaceActivities.take_place, request, f"a place of {run.state.place}")
