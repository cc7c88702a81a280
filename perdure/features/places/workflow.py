"""`Places`: the places of a task queue. Workers start it, with the state of the one before if that was terminated."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio import workflow

from perdure.features.places.activities import PlaceActivities
from perdure.features.places.contract import LeavePlace, PlacesState, Seat, Seats, TakePlace
from perdure.features.places.rules import Changed, drop_gone, leave, take, to_check
from perdure.workflows.execution import FILES
from perdure.workflows.handlers import ValidatedWorkflow, ignore_if_invalid, read_argument, read_optional_argument
from perdure.workflows.rotation import Rotation, continue_as_new

CHECK_EVERY = timedelta(seconds=30)  # while others wait, whether those that have a place are still there
MAX_CHANGES = 1000  # of one execution


@workflow.defn
class Places(ValidatedWorkflow[PlacesState]):
    """Input: none, or the `PlacesState` of the one before."""

    UNKNOWN_SIGNAL = "no such signal; there is leave"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._rotation = Rotation()
        self._changes = 0
        self._woken: dict[str, Seat] = {}
        super().__init__(_begin, args)

    @workflow.run
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        while True:
            self._rotation.decide()
            if self._woken:
                await self._wake()
            elif self._is_due:
                await workflow.wait_condition(workflow.all_handlers_finished)
                if not self._woken:
                    continue_as_new(self.context)
            elif await self._wait():
                await self._check()

    @property
    def _is_due(self) -> bool:
        return self._changes >= MAX_CHANGES or self._rotation.is_due

    async def _wait(self) -> bool:
        """Wait for work. Return whether it is time to check, as others wait."""
        has_waiting = bool(self.context.waiting)
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: (
                    bool(self._woken)
                    or self._is_due
                    or self._rotation.is_undecided
                    or bool(self.context.waiting) != has_waiting
                ),
                timeout=CHECK_EVERY if has_waiting else None,
                timeout_summary="until those that have a place are checked",
            )
            return False
        return True

    async def _wake(self) -> None:
        seats, self._woken = self._woken, {}
        summary = f"{len(seats)} got a place"
        await workflow.execute_activity_method(
            PlaceActivities.wake_waiting, Seats(seats=seats), summary=summary, **FILES
        )

    async def _check(self) -> None:
        """Take back the places of runs and calls that have gone without a word, such as terminated runs."""
        seats = to_check(self.context)
        gone: list[str] = await workflow.execute_activity_method(
            PlaceActivities.find_gone, Seats(seats=seats), summary=f"check {len(seats)} that have a place", **FILES
        )
        if gone:
            self._apply(drop_gone(self.context, tuple(gone)))

    def _apply(self, changed: Changed) -> None:
        self.context = changed.state
        self._woken |= changed.woken
        self._changes += 1

    @workflow.update(description="For workers: take a place, or wait for one")
    def take(self, *args: Any) -> dict[str, Any]:
        changed, answer = take(self.context, read_argument(TakePlace, args))
        self._apply(changed)
        return answer.model_dump(mode="json")

    @take.validator
    def _is_request(self, *args: Any) -> None:
        read_argument(TakePlace, args)
        self.context  # noqa: B018 - a rejected start gives no places

    @workflow.signal(description='Leave a place: {"key", "holder"}')
    @ignore_if_invalid
    def leave(self, *args: Any) -> None:
        left = read_argument(LeavePlace, args)
        self._apply(leave(self.context, left.key, left.holder))

    def note(self, notice: str) -> None:
        workflow.logger.warning("%s", notice)

    @workflow.query(description="The holders of places, and those that wait for one")
    def state(self, *_: Any) -> PlacesState:
        return self.context


def _begin(args: Sequence[Any]) -> PlacesState:
    return read_optional_argument(PlacesState, args)
