"""The tool calls of a turn. Each gets exactly one outcome, from a handler of the tables at the end."""

import asyncio
from collections.abc import Awaitable, Callable

from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.tools.call import ToolCalls
from contracts.failures import ToolFault
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision
from contracts.run.state import Call
from contracts.tool import INLINE_ARGUMENTS, RETRY_DELAYS, Effect, ToolCall, ToolKind, ToolOutcome, error_outcome
from decisions.builtin_tools import ASK_HUMAN, CONTROL_TOOLS, DELEGATE, FOLLOW_UP_TOOLS, JOURNAL_TOOLS, SEARCH_TOOLS
from decisions.people.approvals import open_turn_questions
from decisions.run import call_state
from decisions.run.call_state import IN_DOUBT
from decisions.run.recovery import CallRecovery, FailureKind, recover_call
from decisions.run.reply import needs_approval
from decisions.run.resume import origin_of
from decisions.run.state import mark_interrupted
from decisions.text import formatting
from decisions.tool_requests import nonce_of
from workflows.agent_run import events
from workflows.agent_run.builtin_calls import run_delegation, run_followup_tool
from workflows.agent_run.context import RunContext
from workflows.agent_run.queue_tool import run_queue_call, trace_call
from workflows.agent_run.waiting import (
    accept_redefined,
    approve_call,
    ask_person,
    run_ask_human,
    wait_for_result,
)
from workflows.failures import classify_failure, to_tool_outcome
from workflows.policies import tool_call_policy

# A `once` call that ends so has not begun, as its activity has one attempt.
NOT_BEGUN = (FailureKind.cancelled, FailureKind.not_begun)
FIRST_CLAIM_WAIT, MAX_CLAIM_WAIT = 1.0, 60.0  # seconds between attempts while the ledger accepts no claim


async def make_calls(run: RunContext, batch: tuple[Call, ...]) -> None:
    """Make the calls of a batch concurrently. All of them have ended when this returns or raises."""
    run.state = call_state.issue_calls(run.state, batch, workflow.now())
    if run.state.planned is not None:
        run.state, batch = call_state.take_planned_calls(run.state, batch)
    if not run.state.dry_run:
        run.state = open_turn_questions(run.state, workflow.now())
    if len(run.state.open_questions) > 1:
        run.show_waits()
    run.publish_details()
    ends = await asyncio.gather(*(_settle_call(run, call) for call in batch), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _settle_call(run: RunContext, call: Call) -> None:
    if decide := _DECIDED.get(call.tool):  # the outcome is a decision about the run itself
        run.state = decide(run.state, call)
        return
    outcome = await _dispatch_call(run, call)
    if run.state.policy and outcome.at is None:
        outcome = outcome.model_copy(update={"at": workflow.now()})
    events.count_call(call, outcome)
    run.state = call_state.settle_call(run.state, call, outcome)


async def _dispatch_call(run: RunContext, call: Call) -> ToolOutcome:
    if call_state.changes_something(call):  # the one place that every such call passes
        if run.state.dry_run:
            run.state, outcome = call_state.skip_call(run.state, call)
            trace_call(run, call, outcome)
            return outcome
        run.state, call = call_state.take_planned_call(run.state, call)
    if needs_approval(run.state, call):
        with run.inbox.pausing_results(call.step or 0):
            approved = await approve_call(run, call)
        if isinstance(approved, ToolOutcome):
            return approved
        call = approved
    built_in = _BUILT_IN.get(call.tool) if call.kind is ToolKind.builtin else None  # a replay answers some itself
    handler = built_in or _BY_KIND.get(call.kind, _run_until_settled)
    return await handler(run, call)


async def _run_until_settled(run: RunContext, call: Call) -> ToolOutcome:
    """Make a call. One that may have happened is repeated only if a person says so (B9)."""
    while True:
        outcome = await _ATTEMPTS.get(call.kind, _call_tool)(run, call)
        if outcome is None:
            outcome = await _settle_doubt(run, call)
            if outcome is not None:
                return outcome
            run.state, call = call_state.repeat_call(run.state, call)
        elif outcome.error is not None and outcome.error.definition is not None:
            accepted = await accept_redefined(run, call, outcome.error)
            if isinstance(accepted, ToolOutcome):
                return accepted
            call = accepted
        else:
            return outcome
        run.state = call_state.reissue_call(run.state, call.step or 0, workflow.now())


async def _call_tool(run: RunContext, call: Call) -> ToolOutcome | None:
    """Return the outcome of the activity `call_tool`, unless only a person can settle the call."""
    lost, wait = 0, FIRST_CLAIM_WAIT
    while True:
        outcome = await _attempt_call(run, call, lost)
        if isinstance(outcome, ToolOutcome):
            return outcome
        error, end = outcome, classify_failure(outcome)
        if end in NOT_BEGUN and call.effect is Effect.once and not (lost or _may_have_begun(run, call)):
            run.clear_in_flight(call)
        match recover_call(end, call.effect, lost):
            case CallRecovery.stop:
                raise asyncio.CancelledError
            case CallRecovery.wait:
                reason = f"{call.tool} · step {call.step}: {formatting.truncate(str(error.cause), 80)}"
                await run.cancellation.cancellable(workflow.sleep(wait, summary=reason))
                wait = min(2 * wait, MAX_CLAIM_WAIT)
            case CallRecovery.look_up:
                lost += 1
                run.state = call_state.reissue_call(mark_interrupted(run.state), call.step or 0, workflow.now())
            case CallRecovery.ask:
                return None
            case CallRecovery.fail:
                run.clear_in_flight(call)
                return to_tool_outcome(error, call.effect)


async def _attempt_call(run: RunContext, call: Call, lost: int) -> ToolOutcome | ActivityError:
    # Else a cancel between two attempts would leave in doubt a call that is not in flight.
    run.cancellation.raise_if_cancelled()
    run.mark_in_flight(call)
    summary = formatting.call_summary(call, was_lost=lost > 0)
    policy = tool_call_policy(run.route_of(call), call.effect)
    try:
        outcome = await run.execute(ToolCalls.call_tool, call_request(run, call), summary, policy)
    except ActivityError as error:
        return error
    run.clear_in_flight(call)
    if outcome.interrupted:
        run.state = mark_interrupted(run.state)
    return outcome


def _may_have_begun(run: RunContext, call: Call) -> bool:
    """Return whether the call has begun before this run, or before a person said "run again"."""
    return call.tool_use_id in run.state.doubtful or call.generation > 1


def call_request(run: RunContext, call: Call) -> ToolCall:
    large = len(to_json(call.arguments)) > INLINE_ARGUMENTS and call.changed_by is None
    origin = origin_of(run.state, call.step or 0)
    needs_schemas = call.tool == SEARCH_TOOLS or run.route_of(call).is_searched
    return ToolCall(
        step=call.step or 0,
        tool=call.tool,
        tool_use_id=call.tool_use_id,
        arguments=None if large else call.arguments,
        effect=call.effect,
        attempt=call.generation,
        length=run.transcript.length if large else 0,
        head=run.transcript.head if large else "",
        owner=origin.run_id if origin else None,
        execution=(origin or run.state).execution if call.effect is Effect.once else None,
        key_id=(origin or run.state).key_id or None,
        approval=call.approval,
        accepts=call.accepts or run.state.accepted.get(call.tool),
        nonce=nonce_of(run.state, call),
        changed_by=call.changed_by,
        definition=run.state.definition if needs_schemas else None,
    )


async def _settle_doubt(run: RunContext, call: Call) -> ToolOutcome | None:
    """Ask a person about a call that may have happened. Return its outcome, unless it is to be run again."""
    text = f"`{formatting.call_line(call.tool, call.arguments)}` was interrupted and may have happened. Run it again?"
    events.emit_event(run, "agent_run.resume_unsafe", **events.call_figures(call))
    run.state = mark_interrupted(run.state)
    answer = await ask_person(run, QuestionKind.resume_unsafe, text, about=call)
    run.clear_in_flight(call)
    if call.step in run.inbox.results:
        return ToolOutcome(result="handed out")  # as its result has come
    if answer.decision is Decision.run_again:
        return None
    if answer.decision is Decision.use_result:
        outcome = ToolOutcome(result=answer.text)
        if call.kind is ToolKind.signal:
            run.inbox.results[call.step or 0] = outcome
        return outcome
    return IN_DOUBT


async def _run_signal_call(run: RunContext, call: Call) -> ToolOutcome:
    """Send the request and wait for the result, a signal; retry an error that may pass (A11)."""
    timeout, step = run.route_of(call).timeout, call.step or 0
    for attempt, delay in enumerate((*RETRY_DELAYS, None), start=1):
        if call_state.handed_out_at(run.state, step) is None:  # else an earlier execution has sent it
            handed_out = await _run_until_settled(run, call)
            if handed_out.status == "error":
                return handed_out
            run.state = call_state.mark_handed_out(run.state, step, workflow.now())
        run.mark_in_flight(call)
        # Another execution could not tell a later attempt's result from one that was judged before.
        outcome = await wait_for_result(run, step, call.tool, timeout, moves=attempt == 1 and run.fits_input())
        run.clear_in_flight(call)
        if outcome is None:
            happened = "" if call.effect is Effect.read else "; it was handed out, and may have happened"
            return error_outcome(ToolFault.timeout, f"no result came within {timeout}{happened}")
        again = outcome.error is not None and outcome.error.retryable and call.effect is not Effect.once
        if not again or delay is None:
            return outcome
        events.emit_event(
            run, "agent.tool.retry", **events.call_figures(call), attempt=attempt + 1, delay_seconds=delay
        )
        with run.inbox.pausing_results(step):
            sleep = workflow.sleep(delay, summary=f"retry {attempt} of {call.tool} · step {step}")
            await run.cancellation.cancellable(sleep)
        run.state = call_state.reissue_call(run.state, step, workflow.now())
    raise AssertionError("the last attempt returns")


CallHandler = Callable[[RunContext, Call], Awaitable[ToolOutcome]]

_DECIDED = {
    **dict.fromkeys(CONTROL_TOOLS, call_state.run_control_call),
    **dict.fromkeys(JOURNAL_TOOLS, call_state.run_journal_call),
}
_BUILT_IN: dict[str, CallHandler] = {
    ASK_HUMAN: run_ask_human,
    DELEGATE: run_delegation,
    **dict.fromkeys(FOLLOW_UP_TOOLS, run_followup_tool),
}
_BY_KIND: dict[ToolKind, CallHandler] = {ToolKind.signal: _run_signal_call}  # others: `_run_until_settled`
_ATTEMPTS = {ToolKind.queue: run_queue_call}  # one attempt of a call; others: `_call_tool`
