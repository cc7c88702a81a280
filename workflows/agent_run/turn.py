"""The edges of a turn: a user's messages, the close of the turn, its failure, and the report of a run's end."""

import asyncio
from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from contracts.conversation import Steered
from contracts.failures import RunFailure
from contracts.run.signals import EndedRun
from decisions import ids
from decisions.run import loop, state
from decisions.run.loop_detection import detection_key
from decisions.run.recovery import FailureKind
from decisions.run.reply import was_refused
from decisions.run.transcript import call_part, note_part, said_part
from workflows.agent_run import events
from workflows.agent_run.context import RunContext
from workflows.failures import classify_failure


def close_turn(run: RunContext) -> None:
    """Add the results of the turn to the conversation, in the order of its tool uses."""
    for call in run.state.calls:
        run.transcript.append(call_part(call))
    if refused := [call for call in run.state.calls if was_refused(call)]:
        events.trace_refused_calls(run, refused)
    before = run.state.sighted
    closed = loop.settle_turn(run.state)
    run.state = closed.state
    for thrash in closed.seen:
        figures = {"tier": thrash.tier, "tool": thrash.tool, "count": thrash.count, "level": run.state.rung}
        advanced = thrash.is_barren and closed.escalated_to is not None
        is_news = advanced or detection_key(thrash) not in before
        events.emit_event(run, "agent.loop.detected", is_traced=is_news, **figures, advanced=advanced)
    if closed.escalated_to is not None:
        events.emit_event(
            run, "agent.guardrail.escalated", ladder="thrash", rung=run.state.rung, stage=closed.escalated_to
        )
    if closed.note:
        run.transcript.append(note_part(closed.note))


async def take_in_messages(run: RunContext) -> None:
    """Add the user's messages to the conversation; a run that was about to finish continues.

    Notify the lane, so that it does not repeat them in the next turn.
    """
    messages = run.inbox.take_messages()
    run.state = loop.reopen_run(run.state)
    for message in messages:
        run.transcript.append(said_part(message.text))
    if run.state.is_turn and run.state.conversation_id is not None:
        lane = workflow.get_external_workflow_handle(ids.conversation_workflow_id(run.state.conversation_id))
        for message in messages:
            try:
                await lane.signal("steered", Steered(request_id=message.request_id).model_dump())
            except ApplicationError as error:
                workflow.logger.warning("the lane is gone: %s", error.message)


async def report_end(run: RunContext) -> None:
    """Signal the workflows that wait for the run's end. One that is not reached looks at the run by itself."""
    while run.state.watchers:
        watcher = workflow.get_external_workflow_handle(run.state.watchers[0])
        run.state = state.remove_first_watcher(run.state)  # before the signal: it may ask again
        with suppress(ApplicationError):  # it has ended
            await watcher.signal("run_ended", EndedRun(run_id=run.state.run_id).model_dump())


def fail_run(run: RunContext, error: ActivityError, default: RunFailure) -> None:
    """End the run as failed, with the kind that the activity named, or the default.

    Raises CancelledError if the run is to stop anyway.
    """
    if classify_failure(error) is FailureKind.cancelled or run.cancellation.reason is not None:
        raise asyncio.CancelledError from None
    cause = error.cause
    text, reason = f"{error.activity_type} did not end in time", default
    if isinstance(cause, ApplicationError):
        text = cause.message
        reason = next((kind for kind in RunFailure if kind == cause.type), default)
    run.state = state.record_failure(run.state, text, reason)
