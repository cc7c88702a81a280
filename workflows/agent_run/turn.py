"""The edges of a turn: a user's messages, the close of the turn, its failure, the check and report of a run's end."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.conversation import Steered
from perdure.contracts.failures import Escalation, RunFailure, Stop
from perdure.contracts.media import Attached, Attachments, AttachRequest
from perdure.contracts.models import NO_RESULT
from perdure.contracts.policy import PolicyCheckRequest, PolicyVerdict
from perdure.contracts.run.signals import EndedRun
from perdure.contracts.run.state import Call
from perdure.contracts.run.turn import AcceptRequest
from perdure.decisions import ids
from perdure.decisions.people.terms import add_requester, sources_of_start
from perdure.decisions.run import call_state, loop, state
from perdure.decisions.run.limits import longest_turn
from perdure.decisions.run.loop_detection import detection_key
from perdure.decisions.run.outcome import (
    drop_unaccepted,
    escalate_run,
    escalate_unchecked,
    rejection_note,
    settle_acceptance,
)
from perdure.decisions.run.recovery import FailureKind
from perdure.decisions.run.reply import was_refused
from perdure.decisions.run.transcript import call_part, note_part, said_part
from perdure.decisions.text import formatting
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run import events
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.execution import classify_failure, summary_policy


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
    attached = [await take_attachments(run, message.attachments) for message in tuple(run.inbox.messages)]
    messages = run.inbox.take_messages(len(attached))
    run.state = loop.reopen_run(run.state)
    for message, files in zip(messages, attached, strict=True):
        run.transcript.append(said_part(message.text, files.media, files.refused, sources_of_start(message.sender)))
        run.state = add_requester(run.state, message.sender)
    if run.state.is_turn and run.state.conversation_id is not None:
        lane = workflow.get_external_workflow_handle(ids.conversation_workflow_id(run.state.conversation_id))
        for message in messages:
            try:
                await lane.signal("steered", Steered(request_id=message.request_id).model_dump())
            except ApplicationError as error:
                workflow.logger.warning("the lane is gone: %s", error.message)


async def check_calls(run: RunContext) -> None:
    """Have the policy decide about open calls of the turn that it has not seen: their reply came without verdicts."""
    if calls := call_state.calls_without_verdict(run.state):
        verdicts = await _request_verdicts(run, calls)
        for call in calls:
            run.state = call_state.record_verdict(run.state, call, verdicts.get(call.tool_use_id))


async def judge_change(run: RunContext, call: Call, arguments: dict[str, Any]) -> PolicyVerdict | None:
    """Return the policy's verdict on a call with changed arguments, if a policy is about the run or the call."""
    if call.verdict is None and not run.state.policy:
        return None
    return (await _request_verdicts(run, (call,), {call.tool_use_id: arguments})).get(call.tool_use_id)


async def _request_verdicts(
    run: RunContext, calls: Sequence[Call], edits: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, PolicyVerdict]:
    changed = [call for call in run.state.calls if call.changed_by is not None]
    request = PolicyCheckRequest(
        length=run.transcript.length,
        head=run.transcript.head,
        definition=run.state.definition,
        context=call_state.policy_context(run.state),
        calls=tuple(call.tool_use_id for call in calls),
        edits={call.tool_use_id: call.arguments for call in changed} | dict(edits or {}),
        unmade=tuple(call.tool_use_id for call in run.state.calls if call.step is None),
    )
    summary = f"policy: {formatting.truncate(', '.join(call.tool for call in calls), 80)}"
    judged = await run.execute(Activities.check_policy, request, summary)
    run.state = state.add_review_costs(run.state, judged.reviews)
    return judged.verdicts


async def check_outcome(run: RunContext) -> None:
    """Check the outcome by the agent's `accept`. A rejected one goes back to the model; without a check, escalate."""
    limits = run.state.limits
    ending = run.state.ending
    request = AcceptRequest(
        definition=run.state.definition,
        goal=run.state.goal,
        outcome=ending.text if ending else "",
        result=ending.result if ending else NO_RESULT,
        artifacts=run.state.artifacts,
        timeout=limits.turn_timeout,
        limit=longest_turn(limits),
        trace=events.take_trace_lines(run),
    )
    summary = f"check the outcome · {run.state.accept}"
    try:
        acceptance = await run.execute(Activities.accept_outcome, request, summary, summary_policy(limits))
    except ActivityError as error:
        if classify_failure(error) is FailureKind.cancelled or run.cancellation.reason is not None:
            raise asyncio.CancelledError from None
        if isinstance(error.cause, ApplicationError) and error.cause.type == Stop.budget_used_up:
            run.state = escalate_run(drop_unaccepted(run.state), Escalation.shared_budget, error.cause.message)
        else:
            run.state = escalate_unchecked(run.state, str(error.cause or error))
        return
    run.state = settle_acceptance(state.add_reply_cost(run.state, acceptance), acceptance.rejection)
    if acceptance.rejection is not None:
        run.transcript.append(note_part(rejection_note(acceptance.rejection)))


async def take_attachments(run: RunContext, attachments: Attachments, definition: str | None = None) -> Attached:
    """Check the attachments of a message, and store them with the run. With a `definition`, those of its start.

    Raises ActivityError, and CancelledError of asyncio.
    """
    if not attachments:
        return Attached()
    request = AttachRequest(attachments=attachments, definition=definition)
    names = formatting.truncate(", ".join(attachment.name for attachment in attachments), 80)
    return await run.execute(Activities.take_attachments, request, f"read {names}")


async def report_end(run: RunContext) -> None:
    """Signal the workflows that wait for the run's end. One that is not reached checks the run by itself."""
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
    if isinstance(cause, ApplicationError) and cause.type == Stop.budget_used_up:
        run.state = escalate_run(run.state, Escalation.shared_budget, cause.message)
        return
    text, reason = f"{error.activity_type} did not end in time", default
    if isinstance(cause, ApplicationError):
        text = cause.message
        reason = next((kind for kind in RunFailure if kind == cause.type), default)
    run.state = state.record_failure(run.state, text, reason)
