"""Messages of a lane: to the run that is its turn, and to mailboxes."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.conversation import Conversations
from contracts.conversation import Queued, SteerRequest, TurnAnswer, TurnNotice
from contracts.mail.mailbox import TurnEnded
from contracts.run.signals import CancelRequest, HumanInput
from decisions import ids
from decisions.conversation import lane
from decisions.text.formatting import truncate
from workflows.conversation.context import LaneContext
from workflows.policies import ANSWERING_TURNS


async def deliver_errand(live: LaneContext, errand: lane.LaneErrand) -> None:
    """Send an errand to the run that is the turn."""
    match errand:
        case lane.CancelTurn(run_id, reason, sender):
            await _signal_turn(live, run_id, "cancel", CancelRequest(reason=reason[:2000], sender=sender))
        case lane.Steer(message):
            request = message.request
            body = SteerRequest(request_id=request.request_id, text=lane.steering_text(request), sender=request.sender)
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
