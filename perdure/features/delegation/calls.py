"""The calls of `delegate`, as a run makes them: a child workflow, or the one that the run's origin has started."""

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from perdure.activities.telemetry.attributes import FAILED_SUBTASKS
from perdure.contracts.failures import ToolFault
from perdure.contracts.run.state import Call
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions import ids
from perdure.decisions.run.resume import origin_of
from perdure.decisions.run.state import add_delegated
from perdure.decisions.text import formatting
from perdure.features.delegation import rules as delegation
from perdure.features.delegation.activities import Delegations
from perdure.features.delegation.contract import DelegationRequest, DelegationState
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.agent_run.waiting import resting
from perdure.workflows.execution import FILES, watch_or_cancel


async def run_delegation(run: RunContext, call: Call) -> ToolOutcome:
    """Return the outcome of the subtasks, or the error. Their usage counts in each case."""
    origin = origin_of(run.state, call.step or 0)
    request = delegation.plan_delegation(run.state, call, origin.run_id if origin else run.state.run_id)
    if isinstance(request, ToolOutcome):
        return request
    run.cancellation.levels = request.max_depth - request.depth
    async with resting(run):
        state = await run.cancellation.cancellable(_join_delegation(request, formatting.call_summary(call)))
    run.cancellation.levels = 0
    if state is None:
        run.cancellation.raise_if_cancelled()  # it may never have begun
        run.state = add_delegated(run.state, delegation.whole_share_spent(request.budget))
        return error_outcome(
            ToolFault.subtask_failed, "the delegation is gone, and nobody knows what became of its subtasks"
        )
    run.state = add_delegated(run.state, delegation.committed_spend(state))
    if delegation.failed_subtasks(state):
        workflow.upsert_memo({FAILED_SUBTASKS: True})  # for lists, in which the run may be completed
    return delegation.delegation_outcome(state)


async def _join_delegation(request: DelegationRequest, summary: str) -> DelegationState | None:
    """Run the delegation, or wait for the one that the run's origin has started (D7). Return its end, if known."""
    workflow_id = ids.delegation_workflow_id(request.id_base, request.step)
    try:
        joined: DelegationState = await workflow.execute_child_workflow(
            "Delegation",
            request,
            id=workflow_id,
            result_type=DelegationState,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            static_summary=summary,
        )
        return joined
    except WorkflowAlreadyStartedError:
        await watch_or_cancel(workflow_id, "wait for the delegation that was begun before")
    except ChildWorkflowError:
        pass  # cut short: the usage of its subtasks counts all the same
    return await workflow.execute_activity_method(
        Delegations.find_delegation, workflow_id, summary="what became of the delegation", **FILES
    )
