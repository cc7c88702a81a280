"""A call of `delegate`: a child workflow that outlives a restart of the run, and what it brings."""

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
from workflows.policies import FILES
from workflows.watching import watch


async def delegate(run: LiveRun, call: Call) -> ToolOutcome:
    """What the subtasks bring; or why nothing was delegated, or what failed it. What they used counts in each case."""
    origin = origin_of(run.state, call.step or 0)
    request = delegation.planned(run.state, call, origin.run_id if origin else run.state.run_id)
    if isinstance(request, ToolOutcome):
        return request
    run.halt.levels = request.max_depth - request.depth
    state = await run.halt.stoppable(_joined(request, formatting.call_summary(call)))
    run.halt.levels = 0
    if state is None:
        run.halt.check()  # perhaps it was never begun
        run.state = loop.delegated(run.state, delegation.all_of(request.budget))
        return failed(ToolFault.subtask_failed, "the delegation is gone, and nobody knows what became of its subtasks")
    run.state = loop.delegated(run.state, delegation.committed(state))
    return delegation.outcome_of(state)


async def _joined(request: DelegationRequest, summary: str) -> DelegationState | None:
    """How it ended. One that is there already, of the run that this one goes on from, is waited for (D7).

    None where that cannot be told.
    """
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
        await watch(workflow_id, "wait for the delegation that was begun before")
    except ChildWorkflowError:
        pass  # cut short: what its subtasks used counts all the same
    found: DelegationState | None = await workflow.execute_activity_method(
        Delegations.find_delegation, workflow_id, summary="what became of the delegation", **FILES
    )
    return found
