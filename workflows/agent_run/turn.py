"""The edges of a turn: what a user says meanwhile, what a person is asked, its close, and its failure."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from contracts.conversation import Steered
from contracts.failures import RunFailure
from contracts.run.signals import Decision
from contracts.run.state import Call, Ending, Forced, RunStatus
from decisions import ids
from decisions.run import loop
from decisions.run.calls import was_refused
from decisions.run.loop_detection import directed, sighting
from decisions.run.transcript import call_part, note_part, said_part
from workflows.agent_run import events
from workflows.agent_run.context import LiveRun
from workflows.failures import Fate, fate


def close_turn(run: LiveRun) -> None:
    """Hands the results of a turn to the conversation, in the order of its tool uses."""
    for call in run.state.calls:
        run.transcript.append(call_part(call))
    if refused := [call for call in run.state.calls if was_refused(call)]:
        events.refused(run, refused)
    before = run.state.sighted
    closed = loop.closed_turn(run.state)
    run.state = closed.state
    for thrash in closed.seen:
        figures = {"tier": thrash.tier, "tool": thrash.tool, "count": thrash.count, "level": run.state.rung}
        advanced = thrash.is_barren and closed.escalated_to is not None
        is_news = advanced or sighting(thrash) not in before
        events.emit(run, "agent.loop.detected", is_traced=is_news, **figures, advanced=advanced)
    if closed.escalated_to is not None:
        events.emit(run, "agent.guardrail.escalated", ladder="thrash", rung=run.state.rung, stage=closed.escalated_to)
    if closed.note:
        run.transcript.append(note_part(closed.note))


async def listen(run: LiveRun) -> None:
    """It enters the conversation, and a run that was about to finish goes on with it.

    The lane is told, so that it does not say it again in the next turn.
    """
    said, run.said = run.said, []
    run.state = loop.reopened(run.state)
    for each in said:
        run.transcript.append(said_part(each.text))
    if run.state.is_turn and run.state.conversation_id is not None:
        lane = workflow.get_external_workflow_handle(ids.conversation_workflow_id(run.state.conversation_id))
        for each in said:
            try:
                await lane.signal("steered", Steered(request_id=each.request_id).model_dump())
            except ApplicationError as gone:
                workflow.logger.warning("the lane is gone: %s", gone.message)


KEEP_GOING = "keep going"


async def direction(run: LiveRun, forced: Forced, said: str = "", about: Call | None = None) -> str:
    """Asks what `forced` is about, with what the model `said` to it. Where the answer is to stop, the run halts."""
    if forced.asks is None:
        raise AssertionError(f"{forced.tool} asks nobody")
    text = f"{forced.text}\n\n{said}" if said else forced.text
    answer = await run.ask(forced.asks, text, about=about)
    run.state = directed(run.state)
    if answer.decision is Decision.stop:
        run.halt.request(f"stopped by {answer.by or 'a person'}: {answer.text or forced.asks}")
    return answer.text or KEEP_GOING


async def ask_in_its_place(run: LiveRun, forced: Forced) -> None:
    """The runtime asks what the model was to ask, and the model is told the answer."""
    said = await direction(run, forced)
    run.transcript.append(note_part(f"A person was asked: {forced.text}\nThe answer: {said}"))


def fail(run: LiveRun, error: ActivityError, otherwise: RunFailure) -> None:
    """An activity failed for good: the run ends Failed, with the kind that the activity named.

    Raises CancelledError where the run is to stop anyway.
    """
    if fate(error) is Fate.cancelled or run.halt.reason is not None:
        raise asyncio.CancelledError from None
    cause = error.cause
    text, reason = f"{error.activity_type} did not end in time", otherwise
    if isinstance(cause, ApplicationError):
        text = cause.message
        reason = next((kind for kind in RunFailure if kind == cause.type), otherwise)
    run.update(ending=Ending(status=RunStatus.failed, text=text, reason=reason))
