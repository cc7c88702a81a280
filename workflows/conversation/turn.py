"""The turns of a lane: the start of a turn, and the wait for its end.

A turn may outlast many executions of its lane, so it is a child that is left alone when the lane continues as new.
"""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from activities.conversation import Conversations
from activities.run.outcome import end_from_event, end_from_failure
from activities.telemetry.metrics import add_counts
from contracts.conversation import Ended, Queued
from contracts.failures import RunFailure
from decisions import ids
from decisions.conversation import lane
from decisions.telemetry import metrics
from decisions.text.formatting import MAX_SUMMARY_CALL, escape_markdown, truncate
from workflows.conversation.context import LaneContext
from workflows.execution import watch_end
from workflows.policies import LOOK_BACK

ChildRun = ChildWorkflowHandle[Any, Any]
NEVER_BEGAN = (RunFailure.invalid_input, RunFailure.unknown_agent, RunFailure.bad_project)


async def resume_turn(live: LaneContext) -> None:
    """Watch the turn that an earlier execution, or an earlier lane, has left open."""
    if not live.goes_on and not live.state.closes:  # a lane that closes after its turn leaves none open
        await _find_open_turn(live)
    if live.state.active is not None:
        _watch_turn(live, live.state.active.queued)


async def _find_open_turn(live: LaneContext) -> None:
    """Find the turn that a terminated lane may have left open, as there must not be two."""
    try:
        turn = await workflow.execute_activity_method(
            Conversations.open_turn, live.state.conversation_id, summary="look for an open turn", **LOOK_BACK
        )
    except ActivityError as error:
        workflow.logger.warning("the look for an open turn failed: %s", error.cause)
        return
    if turn is not None:
        live.set_state(lane.adopt_open_turn(live.state, turn))


async def begin_turn(live: LaneContext, message: Queued) -> None:
    """Start the run of the first request. Its id derives from the request, so a repeated request starts nothing."""
    live.set_state(lane.begin_next_turn(live.state))
    live.starting = message.run_id
    try:
        run: ChildRun = await workflow.start_child_workflow(
            "AgentRun",
            lane.begin_event(live.state, message).model_dump(mode="json", exclude_defaults=True),
            id=ids.run_workflow_id(message.run_id),
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=escape_markdown(truncate(message.request.text, MAX_SUMMARY_CALL)),
        )
    except WorkflowAlreadyStartedError:
        _report_failed_dispatch(live, message, "it was started before")
        live.set_state(lane.mark_repeat(live.state))
        _watch_turn(live, message)
    else:
        live.turn = asyncio.create_task(_wait_for_end(live, message, run))
    finally:
        live.starting = None


def _watch_turn(live: LaneContext, message: Queued) -> None:
    """Watch a run that this execution has no handle for."""
    watch = watch_end(ids.run_workflow_id(message.run_id), f"wait for run {message.run_id}")
    live.turn = asyncio.create_task(watch)


async def _wait_for_end(live: LaneContext, message: Queued, run: ChildRun) -> Ended:
    try:
        event = await run
    except ChildWorkflowError as error:
        end = end_from_failure(error.cause).turn_end
        if isinstance(error.cause, ApplicationError) and error.cause.type in NEVER_BEGAN:
            _report_failed_dispatch(live, message, error.cause.message)
        return end
    return end_from_event(event).turn_end


def _report_failed_dispatch(live: LaneContext, message: Queued, reason: str) -> None:
    """Log and count a run that could not begin, which does not block the lane (B12)."""
    name = "agent_run.dispatch_next_failed"
    figures = {"run_id": message.run_id, "request_id": message.request.request_id, "why": truncate(reason, 300)}
    event = {"event": name, "conversation_id": live.state.conversation_id, **figures}
    workflow.logger.warning(name, extra={"event": event})
    add_counts(workflow.metric_meter(), metrics.count_event(name, figures))
