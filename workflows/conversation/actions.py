"""Messages of a lane: to the run that is its turn, and to mailboxes."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.conversation import Conversations
from contracts.conversation import Queued, SteerRequest, TurnAnswer, Word
from contracts.mail.mailbox import TurnEnded
from contracts.run.signals import CancelRequest, HumanInput
from decisions import ids
from decisions.conversation import lane
from decisions.text.formatting import cut
from workflows.conversation.context import LiveLane
from workflows.policies import ANSWER


async def bring(live: LiveLane, errand: lane.Errand) -> None:
    """Send an errand to the run that is the turn."""
    match errand:
        case lane.Cancel(run_id, reason, sender):
            await _signal(live, run_id, "cancel", CancelRequest(reason=reason[:2000], sender=sender))
        case lane.Steer(message):
            request = message.request
            body = SteerRequest(request_id=request.request_id, text=lane.spoken(request), sender=request.sender)
            await _signal(live, live.active_id, "steer", body)
        case lane.Answer(message):
            await _answer(live, message)
        case lane.PassOn(answer):
            await _signal(live, live.active_id, "human_input", answer)


async def _signal(
    live: LiveLane, run_id: str | None, name: str, body: CancelRequest | SteerRequest | HumanInput
) -> bool:
    """Send a signal to the turn. Return whether it has arrived: a run that has just ended does not need it."""
    if run_id is None or run_id != live.active_id:
        return False
    run = workflow.get_external_workflow_handle(ids.run_workflow_id(run_id))
    try:
        await run.signal(name, body.model_dump(mode="json", exclude_none=True))
    except ApplicationError as error:
        live.become(lane.noticed(live.state, f"{name}: run {run_id} has ended: {error.message}"))
        return False
    return True


async def _answer(live: LiveLane, message: Queued) -> None:
    """Ask the run to accept the answer; if it does not reply for now, send it the answer as a signal."""
    is_taken = is_left = False
    if (run_id := live.active_id) is not None:
        try:
            is_taken = await _taken(run_id, message)
        except ActivityError as error:
            workflow.logger.warning("run %s takes no answers for now: %s", run_id, error.cause)
            is_left = await _signal(live, run_id, "human_input", lane.answer_of(message.request))
    if is_left:
        live.become(lane.left(live.state, message, workflow.now()))
    else:
        live.become(lane.answered(live.state, message, workflow.now(), took=is_taken))


async def _taken(run_id: str, message: Queued) -> bool:
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
        Conversations.answer_turn, answer, summary=f"answer {cut(answer.question_id, 40)}", **ANSWER
    )


async def tell(live: LiveLane, word: Word) -> None:
    """Report the end of a run to its mailbox. A mailbox that misses the signal looks at the run by itself."""
    body = TurnEnded(request_id=word.request_id, run_id=word.run_id, end=word.end)
    mailbox = workflow.get_external_workflow_handle(ids.mailbox_workflow_id(word.mailbox))
    try:
        await mailbox.signal("turn_ended", body.model_dump(mode="json", exclude_none=True))
    except ApplicationError as error:
        live.become(lane.noticed(live.state, f"turn_ended: mailbox {word.mailbox} is gone: {error.message}"))
    live.become(lane.heard(live.state))
