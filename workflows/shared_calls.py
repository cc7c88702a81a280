"""`SharedCalls`: the calls of one request over all of its runs, which rules count. Runs reserve them one by one."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow

from perdure.contracts.policy import ReserveRequest, SharedCallsStart, SharedCallsState
from perdure.decisions.policy.facts import reserve_calls
from perdure.workflows.handlers import ValidatedWorkflow, read_argument, start_type
from perdure.workflows.rotation import Rotation, continue_as_new

IDLE = timedelta(days=400)  # longer than any task of a follow-up, after which the work may go on


@workflow.defn
class SharedCalls(ValidatedWorkflow[SharedCallsState]):
    """The calls of all runs of one request, for the rules of a policy. Started by runs alone; it ends when unused."""

    UNKNOWN_SIGNAL = "no such signal; there are none"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._rotation = Rotation()
        super().__init__(_begin_shared_calls, args)

    @workflow.run
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        while True:
            before = self.context
            self._rotation.decide()
            if self._rotation.is_due:
                await workflow.wait_condition(workflow.all_handlers_finished)
                continue_as_new(self.context)
            try:
                await workflow.wait_condition(
                    lambda: self._rotation.is_due or self._rotation.is_undecided,
                    timeout=IDLE,
                    timeout_summary="until no run of the request uses it",
                )
            except TimeoutError:
                if self.context is before:
                    return

    @workflow.update(description="For runs: reserve calls, and return those of other runs")
    def reserve(self, *args: Any) -> dict[str, Any]:
        self.context, others = reserve_calls(self.context, read_argument(ReserveRequest, args))
        return others.model_dump(mode="json")

    @reserve.validator
    def _is_request(self, *args: Any) -> None:
        self.context  # noqa: B018 - a rejected start takes no calls
        read_argument(ReserveRequest, args)

    @workflow.query(description="The calls of the request")
    def state(self, *_: Any) -> SharedCallsState:
        return self.context


def _begin_shared_calls(args: Sequence[Any]) -> SharedCallsState:
    """Return a new state, or that of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == "shared_calls.continue":
        return read_argument(SharedCallsState, args)
    return SharedCallsState(root=read_argument(SharedCallsStart, args).root)
