"""What a lane brings to the turn that runs, and what it tells mailboxes."""

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
    """To the turn that runs."""
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
    """Whether the turn that runs has it. A run that has just ended hears it no more, and need not."""
    if run_id is None or run_id != live.active_id:
        return False
    run = workflow.get_external_workflow_handle(ids.run_workflow_id(run_id))
    try:
        await run.signal(name, body.model_dump(mode="json", exclude_none=True))
    except ApplicationError as closed:
        live.become(lane.noticed(live.state, f"{name}: run {run_id} has ended: {closed.message}"))
        return False
    return True


async def _answer(live: LiveLane, message: Queued) -> None:
    """The run says at once whether it takes the answer; one that says nothing for now is left it as a signal."""
    took = is_left = False
    if (run_id := live.active_id) is not None:
        try:
            took = await _taken(run_id, message)
        except ActivityError as error:
            workflow.logger.warning("run %s takes no answers for now: %s", run_id, error.cause)
            is_left = await _signal(live, run_id, "human_input", lane.answer_of(message.request))
    if is_left:
        live.become(lane.left(live.state, message, workflow.now()))
    else:
        live.become(lane.answered(live.state, message, workflow.now(), took=took))


async def _taken(run_id: str, message: Queued) -> bool:
    """Raises ActivityError where the run answers nobody, as one that is wedged, or that no worker has."""
    request = message.request
    answer = TurnAnswer(
        run_id=run_id,
        question_id=request.question_id or "",
        text=request.text,
        request_id=request.request_id,
        sender=request.sender,
        signature=request.signature,
    )
    took: bool = await workflow.execute_activity_method(
        Conversations.answer_turn, answer, summary=f"answer {cut(answer.question_id, 40)}", **ANSWER
    )
    return took


async def tell(live: LiveLane, word: Word) -> None:
    """A mailbox that is gone hears it no more; one that missed it looks by itself."""
    body = TurnEnded(request_id=word.request_id, run_id=word.run_id, end=word.end)
    mailbox = workflow.get_external_workflow_handle(ids.mailbox_workflow_id(word.mailbox))
    try:
        await mailbox.signal("turn_ended", body.model_dump(mode="json", exclude_none=True))
    except ApplicationError as gone:
        live.become(lane.noticed(live.state, f"turn_ended: mailbox {word.mailbox} is gone: {gone.message}"))
    live.become(lane.heard(live.state))
