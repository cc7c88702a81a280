"""The tool `delegate`: a child workflow that outlives a restart of the run, and its outcome."""

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from activities.delegation import Delegations
from contracts.delegation import DelegationRequest, DelegationState
from contracts.failures import ToolFault
from contracts.run.state import Call
from contracts.tool import ToolOutcome, failed
from decisions import delegation, ids
from decisions.run import loop
from decisions.run.resume import origin_of
from decisions.text import formatting
from workflows.agent_run.context import LiveRun
from workflows.execution import watch_or_cancel
from workflows.policies import FILES


async def delegate(run: LiveRun, call: Call) -> ToolOutcome:
    """Return the outcome of the subtasks, or the error. Their usage counts in each case."""
    origin = origin_of(run.state, call.step or 0)
    request = delegation.planned(run.state, call, origin.run_id if origin else run.state.run_id)
    if isinstance(request, ToolOutcome):
        return request
    run.cancellation.levels = request.max_depth - request.depth
    state = await run.cancellation.stoppable(_joined(request, formatting.call_summary(call)))
    run.cancellation.levels = 0
    if state is None:
        run.cancellation.check()  # it may never have begun
        run.state = loop.delegated(run.state, delegation.all_of(request.budget))
        return failed(ToolFault.subtask_failed, "the delegation is gone, and nobody knows what became of its subtasks")
    run.state = loop.delegated(run.state, delegation.committed(state))
    return delegation.outcome_of(state)


async def _joined(request: DelegationRequest, summary: str) -> DelegationState | None:
    """Run the delegation, or wait for the one that the run's origin has started (D7). Return its end, if known."""
    workflow_id = ids.delegation_workflow_id(request.named, request.step)
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
