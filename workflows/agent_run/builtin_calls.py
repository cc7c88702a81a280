"""The built-in tools that start other work: `delegate` a child workflow, `workflow_*` a follow-up."""

import asyncio

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from activities.delegation import Delegations
from activities.followup.followup import FollowUps
from contracts.delegation import DelegationRequest, DelegationState
from contracts.failures import ToolFault
from contracts.run.state import Call
from contracts.tool import ToolOutcome, error_outcome
from decisions import delegation, ids
from decisions.followup.tools import build_follow_up_commands
from decisions.run.recovery import FailureKind
from decisions.run.resume import origin_of
from decisions.run.state import add_delegated, count_follow_up
from decisions.text import formatting
from workflows.agent_run.context import RunContext
from workflows.execution import watch_or_cancel
from workflows.failures import classify_failure, to_tool_outcome
from workflows.policies import FILES


async def run_delegation(run: RunContext, call: Call) -> ToolOutcome:
    """Return the outcome of the subtasks, or the error. Their usage counts in each case."""
    origin = origin_of(run.state, call.step or 0)
    request = delegation.plan_delegation(run.state, call, origin.run_id if origin else run.state.run_id)
    if isinstance(request, ToolOutcome):
        return request
    run.cancellation.levels = request.max_depth - request.depth
    state = await run.cancellation.cancellable(_join_delegation(request, formatting.call_summary(call)))
    run.cancellation.levels = 0
    if state is None:
        run.cancellation.raise_if_cancelled()  # it may never have begun
        run.state = add_delegated(run.state, delegation.whole_share_spent(request.budget))
        return error_outcome(
            ToolFault.subtask_failed, "the delegation is gone, and nobody knows what became of its subtasks"
        )
    run.state = add_delegated(run.state, delegation.committed_spend(state))
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


async def run_followup_tool(run: RunContext, call: Call) -> ToolOutcome:
    """Deliver the call's commands; a repeat asks for the same, so this is retried until it succeeds."""
    commands = build_follow_up_commands(run.state, call)
    if isinstance(commands, ToolOutcome):
        return commands
    run.cancellation.raise_if_cancelled()
    run.mark_in_flight(call)
    try:
        outcome = await run.execute(FollowUps.command_follow_up, commands, formatting.call_summary(call))
    except ActivityError as error:
        if classify_failure(error) is FailureKind.cancelled:
            raise asyncio.CancelledError from None
        outcome = to_tool_outcome(error, call.effect)
    run.clear_in_flight(call)
    if commands.create is not None and outcome.status == "ok":
        run.state = count_follow_up(run.state)
    return outcome
