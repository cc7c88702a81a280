"""Activities of places: those whose turn it is go on, those that are gone lose theirs, and a run comes back."""

from collections.abc import Mapping
from typing import Self

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from perdure.activities.effects.held import unpause
from perdure.activities.parts import WorkerParts
from perdure.activities.temporal import IgnoreMissing
from perdure.features.places.contract import PlaceRequest, PlaceTaken, Seat, Seats
from perdure.features.places.keeper import PlaceKeeper


class PlaceActivities:
    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._keeper = PlaceKeeper(client, task_queue, {})

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.task_queue)

    @activity.defn
    async def take_place(self, request: PlaceRequest) -> PlaceTaken:
        """Take a place for a run that goes on after a wait. Raises HeldError."""
        await self._keeper.take_for_run(request.key, request.most)
        return PlaceTaken()

    @activity.defn
    async def wake_waiting(self, woken: Seats) -> None:
        """Let activities go on that have got a place."""
        for seat in woken.seats.values():
            if seat.paused:
                await unpause(self._client, seat.workflow_id, seat.execution, seat.paused)

    @activity.defn
    async def find_gone(self, held: Seats) -> list[str]:
        """Return the holders whose run has ended, or whose call is not under way any more."""
        described: dict[str, WorkflowExecutionDescription | None] = {}
        gone = []
        for holder, seat in held.seats.items():
            if seat.workflow_id not in described:
                described[seat.workflow_id] = None
                with IgnoreMissing():
                    run = self._client.get_workflow_handle(seat.workflow_id)
                    described[seat.workflow_id] = await run.describe()
            if _is_gone(seat, described):
                gone.append(holder)
        return gone


def _is_gone(seat: Seat, described: Mapping[str, WorkflowExecutionDescription | None]) -> bool:
    run = described[seat.workflow_id]
    if run is None or run.status is not WorkflowExecutionStatus.RUNNING:
        return True
    if not seat.activity_id:
        return False
    return all(pending.activity_id != seat.activity_id for pending in run.raw_description.pending_activities)
