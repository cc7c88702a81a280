"""`Push`: sends the states of one run to one address, each after the one before was taken."""

from typing import Any

from temporalio import workflow

from perdure.features.pushes.activities import Pushes
from perdure.features.pushes.contract import PushReport, PushStart, StateDelivery, StateRequest
from perdure.workflows.execution import NOTIFYING, WATCHING
from perdure.workflows.handlers import read_argument
from perdure.workflows.rotation import continue_as_new, is_history_long


@workflow.defn
class Push:
    """A push. Input: a `PushStart`. Result: a `PushReport`, when the run has ended.

    It fails if the address did not take a state within three days, so that it is in the list of failed workflows.
    """

    @workflow.run
    async def run(self, *args: Any) -> PushReport:
        push = read_argument(PushStart, args)
        while True:
            request = StateRequest(run_id=push.run_id, seen=push.seen)
            found = await workflow.execute_activity_method(
                Pushes.await_state, request, summary=f"after {push.seen or 'nothing'}", **WATCHING
            )
            delivery = StateDelivery(
                id=f"{workflow.info().first_execution_run_id}:{push.sent + 1}",
                run_id=push.run_id,
                context=push.context,
                state=found.state,
                at=found.at,
                target=push.target,
            )
            await workflow.execute_activity_method(Pushes.send_state, delivery, summary=found.state, **NOTIFYING)
            push = push.evolve(seen=found.key, sent=push.sent + 1)
            if found.is_last:
                return PushReport(sent=push.sent)
            if is_history_long():
                continue_as_new(push)
