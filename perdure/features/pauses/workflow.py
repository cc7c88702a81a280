"""`Pauses`: the pauses of a task queue. Workers follow its history, which costs no action, and read it before a call.

It exists while something is paused, or held by a pause that has ended.
"""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow

from perdure.features.pauses.activities import Releases
from perdure.features.pauses.contract import PauseChange, PauseState
from perdure.features.pauses.rules import apply_change, describe_pause
from perdure.workflows.execution import FILES
from perdure.workflows.handlers import ValidatedWorkflow, ignore_if_invalid, read_argument, read_optional_argument
from perdure.workflows.rotation import Rotation, continue_as_new


@workflow.defn
class Pauses(ValidatedWorkflow[PauseState]):
    """Input: none, or a `PauseState`. Result: the `PauseState` in which nothing is paused."""

    UNKNOWN_SIGNAL = "no such signal; there is change"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._rotation = Rotation()
        super().__init__(_begin, args)

    @workflow.run
    async def run(self, *args: Any) -> PauseState:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        while True:
            state = self.context
            self._rotation.decide()
            workflow.set_current_details("\n".join(f"- {describe_pause(pause)}" for pause in state.pauses) or "none")
            if state.releasing:
                await self._release(state.releasing[0])
            elif self._rotation.is_due:
                continue_as_new(state)
            elif not state.pauses:
                return state
            else:
                await self._wait_for_change(state)

    async def _wait_for_change(self, state: PauseState) -> None:
        await workflow.wait_condition(lambda: self.context is not state or self._rotation.is_undecided)

    async def _release(self, name: str) -> None:
        await workflow.execute_activity_method(Releases.release_pause, name, summary=f"release {name}", **FILES)
        still = tuple(other for other in self.context.releasing if other != name)
        self.context = self.context.evolve(releasing=still)

    @workflow.signal(description='Begin and end pauses: {"begin": [Pause, …], "end": ["pause:all", …]}')
    @ignore_if_invalid
    def change(self, *args: Any) -> None:
        self.context = apply_change(self.context, read_argument(PauseChange, args))

    def note(self, notice: str) -> None:
        self.context = self.context.evolve(ignored=self.context.ignored.add(notice))

    @workflow.query(description="The pauses, and what is still to be released")
    def state(self, *_: Any) -> PauseState:
        return self.context


def _begin(args: Sequence[Any]) -> PauseState:
    """Return the state of a new execution. Raises ApplicationError `InvalidInput`."""
    return read_optional_argument(PauseState, args)
