"""The turns of a lane: the start of a turn, the wait for its end, and the messages of the lane to it and about it.

A turn may outlast many executions of its lane, so it is a child that is left alone when the lane continues as new.
"""

import asyncio
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from activities.conversation import Conversations
from activities.run.outcome import end_from_event, end_from_failure
from activities.telemetry.metrics import add_counts
from contracts.conversation import Ended, Queued, SteerRequest, TurnAnswer, TurnNotice
from contracts.failures import RunFailure
from contracts.mail.mailbox import TurnEnded
from contracts.run.signals import CancelRequest, HumanInput
from decisions import ids, telemetry
from decisions.conversation import lane
from decisions.text.formatting import MAX_SUMMARY_CALL, escape_markdown, truncate
from workflows.conversation.context import LaneContext
from workflows.execution import start_watch
from workflows.policies import ANSWERING_TURNS, LOOK_BACK

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
    begin = lane.begin_event(live.state, message)
    try:
        run: ChildRun = await workflow.start_child_workflow(
            "AgentRun",
            begin.model_dump(mode="json", exclude_defaults=True),
            id=ids.run_workflow_id(message.run_id),
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            parent_close_policy=ParentClosePolicy.ABANDON,
            search_attributes=live.attributes.of_child(begin.payload),
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
    live.turn = asyncio.create_task(_watch_to_end(live, message.run_id))


async def _watch_to_end(live: LaneContext, run_id: str) -> Ended:
    """Wait for the run's end. It signals that it ends, and is looked at rarely before."""
    workflow_id, summary = ids.run_workflow_id(run_id), f"wait for run {run_id}"
    watch = start_watch(workflow_id, summary, is_ending=live.ending == run_id)
    await workflow.wait_condition(lambda: watch.done() or live.ending == run_id)
    if not watch.done():
        watch.cancel()
        with suppress(ActivityError):
            return await watch
        return await start_watch(workflow_id, summary, is_ending=True)
    return await watch


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
    add_counts(workflow.metric_meter(), telemetry.count_event(name, figures))


async def deliver_errand(live: LaneContext, errand: lane.LaneErrand) -> None:
    """Send an errand to the run that is the turn."""
    match errand:
        case lane.CancelTurn(run_id, reason, sender):
            await _signal_turn(live, run_id, "cancel", CancelRequest(reason=reason[:2000], sender=sender))
        case lane.Steer(message):
            request = message.request
            body = SteerRequest(
                request_id=request.request_id,
                text=lane.steering_text(request),
                attachments=request.attachments,
                sender=request.sender,
            )
            await _signal_turn(live, live.active_id, "steer", body)
        case lane.AnswerQuestion(message):
            await _deliver_answer(live, message)
        case lane.PassOn(answer):
            await _signal_turn(live, live.active_id, "human_input", answer)


async def _signal_turn(
    live: LaneContext, run_id: str | None, name: str, body: CancelRequest | SteerRequest | HumanInput
) -> bool:
    """Send a signal to the turn. Return whether it has arrived: a run that has just ended does not need it."""
    if run_id is None or run_id != live.active_id:
        return False
    run = workflow.get_external_workflow_handle(ids.run_workflow_id(run_id))
    try:
        await run.signal(name, body.model_dump(mode="json", exclude_none=True))
    except ApplicationError as error:
        live.set_state(lane.add_lane_notice(live.state, f"{name}: run {run_id} has ended: {error.message}"))
        return False
    return True


async def _deliver_answer(live: LaneContext, message: Queued) -> None:
    """Ask the run to accept the answer; if it does not reply for now, send it the answer as a signal."""
    is_taken = is_left = False
    if (run_id := live.active_id) is not None:
        try:
            is_taken = await _offer_answer(run_id, message)
        except ActivityError as error:
            workflow.logger.warning("run %s takes no answers for now: %s", run_id, error.cause)
            is_left = await _signal_turn(live, run_id, "human_input", lane.answer_in_request(message.request))
    if is_left:
        live.set_state(lane.defer_turn_answer(live.state, message, workflow.now()))
    else:
        live.set_state(lane.record_turn_answer(live.state, message, workflow.now(), took=is_taken))


async def _offer_answer(run_id: str, message: Queued) -> bool:
    """Return whether the run has accepted the answer. Raises ActivityError if it does not reply: it may be wedged."""
    request = message.request
    answer = TurnAnswer(
        run_id=run_id,
        question_id=request.question_id or "",
        text=request.text,
        attachments=request.attachments,
        request_id=request.request_id,
        sender=request.sender,
        signature=request.signature,
    )
    return await workflow.execute_activity_method(
        Conversations.answer_turn, answer, summary=f"answer {truncate(answer.question_id, 40)}", **ANSWERING_TURNS
    )


async def notify_mailbox(live: LaneContext, word: TurnNotice) -> None:
    """Report the end of a run to its mailbox. A mailbox that misses the signal looks at the run by itself."""
    body = TurnEnded(request_id=word.request_id, run_id=word.run_id, end=word.end)
    mailbox = workflow.get_external_workflow_handle(ids.mailbox_workflow_id(word.mailbox))
    try:
        await mailbox.signal("turn_ended", body.model_dump(mode="json", exclude_none=True))
    except ApplicationError as error:
        live.set_state(lane.add_lane_notice(live.state, f"turn_ended: mailbox {word.mailbox} is gone: {error.message}"))
    live.set_state(lane.remove_first_word(live.state))
