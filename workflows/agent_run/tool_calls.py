"""The tool calls of a turn. Each gets exactly one outcome, from the function in the tables at the end."""

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
from contracts.tool import RETRY_DELAYS, Effect, ToolCall, ToolKind, ToolOutcome, failed
from decisions.builtin_tools import ASK_HUMAN, CONTROL, DELEGATE, FOLLOW_UP, JOURNAL
from decisions.run import call_state
from decisions.run.call_state import IN_DOUBT
from decisions.run.calls import needs_approval
from decisions.run.resume import origin_of
from decisions.text import formatting
from decisions.tool_requests import nonce_of
from workflows.agent_run import events
from workflows.agent_run.approval import accept_redefined, approve_call
from workflows.agent_run.context import LiveRun
from workflows.agent_run.delegate import delegate
from workflows.agent_run.followup_tools import follow_up
from workflows.agent_run.queue_tool import queued
from workflows.agent_run.waiting import ask, ask_human, outside_result
from workflows.failures import Fate, fate, told
from workflows.policies import MOST_LOST, tool_call_policy

INLINE_ARGUMENTS = 8 * 1024  # bytes; larger ones are named by the cursor, since history holds them already
# A `once` call that ends so has not begun, as its activity has one attempt.
UNBEGUN = (Fate.cancelled, Fate.not_begun)
FIRST_WAIT, MOST_WAIT = 1.0, 60.0  # seconds between tries while the ledger accepts no claim


async def act(run: LiveRun, batch: tuple[Call, ...]) -> None:
    """Make the calls of a batch concurrently. All of them have ended when this returns or raises."""
    run.state = call_state.issued(run.state, batch, workflow.now())
    run.tell()
    ends = await asyncio.gather(*(_settle(run, call) for call in batch), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _settle(run: LiveRun, call: Call) -> None:
    if decide := _DECIDED.get(call.tool):  # the outcome is a decision about the run itself
        run.state = decide(run.state, call, workflow.now())
        return
    outcome = await _carry_out(run, call)
    events.count_call(call, outcome)
    run.state = call_state.settled(run.state, call, outcome, workflow.now())


async def _carry_out(run: LiveRun, call: Call) -> ToolOutcome:
    if needs_approval(run.state, call):
        with run.not_awaiting(call.step or 0):
            approved = await approve_call(run, call)
        if isinstance(approved, ToolOutcome):
            return approved
        call = approved
    handler = _BUILT_IN.get(call.tool) or _BY_KIND.get(call.kind, _run_tool)
    return await handler(run, call)


async def _run_tool(run: LiveRun, call: Call) -> ToolOutcome:
    """Make a call. One that may have happened is repeated only if a person says so (B9)."""
    while True:
        outcome = await (queued if call.kind is ToolKind.queue else _made)(run, call)
        if outcome is None:
            outcome = await _settle_doubt(run, call)
            if outcome is not None:
                return outcome
            run.state, call = call_state.made_again(run.state, call)
        elif outcome.error is not None and outcome.error.definition is not None:
            accepted = await accept_redefined(run, call, outcome.error)
            if isinstance(accepted, ToolOutcome):
                return accepted
            call = accepted
        else:
            return outcome
        run.state = call_state.reissued(run.state, call.step or 0, workflow.now())


async def _made(run: LiveRun, call: Call) -> ToolOutcome | None:
    """Return the outcome of the activity `call_tool`, unless only a person can settle the call.

    A call that was lost with its worker is scheduled again, and the ledger is looked up first.
    """
    policy = tool_call_policy(run.route(call), call.effect)
    lost, wait = 0, FIRST_WAIT
    while True:
        # Else a cancel between two tries would leave in doubt a call that is not in flight.
        run.cancellation.check()
        run.in_flight(call)
        summary = formatting.call_summary(call, was_lost=lost > 0)
        try:
            outcome = await run.execute(ToolCalls.call_tool, _request(run, call), summary, policy)
        except ActivityError as error:
            end = fate(error)
            if _is_in_doubt(end, call, lost):
                return None
            if end in UNBEGUN and call.effect is Effect.once and not (lost or _was_begun(run, call)):
                run.landed(call)
            if end is Fate.cancelled:
                raise asyncio.CancelledError from None
            if end is Fate.not_begun:
                reason = f"{call.tool} · step {call.step}: {formatting.cut(str(error.cause), 80)}"
                await run.cancellation.stoppable(workflow.sleep(wait, summary=reason))
                wait = min(2 * wait, MOST_WAIT)
            elif _is_looked_up(end, call, lost):
                lost += 1
                run.update(interrupted=True)
                run.state = call_state.reissued(run.state, call.step or 0, workflow.now())
            else:
                run.landed(call)
                return told(error, call.effect)
        else:
            run.landed(call)
            if outcome.interrupted:
                run.update(interrupted=True)
            return outcome


def _was_begun(run: LiveRun, call: Call) -> bool:
    """Return whether the call has begun before this run, or before a person said "run again"."""
    return call.tool_use_id in run.state.doubtful or call.generation > 1


def _is_in_doubt(end: Fate, call: Call, lost: int) -> bool:
    """Return whether only a person can settle the call: the ledger says so, or every lookup was lost too."""
    unknown = call.effect is Effect.once and end in (Fate.lost, Fate.late)
    return end is Fate.in_doubt or (unknown and not _is_looked_up(end, call, lost))


def _is_looked_up(end: Fate, call: Call, lost: int) -> bool:
    """Return whether another attempt should look up the outcome of this one."""
    return (end is Fate.lost and lost < MOST_LOST) or (end is Fate.late and call.effect is Effect.once and not lost)


def _request(run: LiveRun, call: Call) -> ToolCall:
    large = len(to_json(call.arguments)) > INLINE_ARGUMENTS
    origin = origin_of(run.state, call.step or 0)
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
    )


async def _settle_doubt(run: LiveRun, call: Call) -> ToolOutcome | None:
    """Ask a person about a call that may have happened. Return its outcome, unless it is to be run again."""
    text = f"`{formatting.call_line(call.tool, call.arguments)}` was interrupted and may have happened. Run it again?"
    events.emit(run, "agent_run.resume_unsafe", **events.call_figures(call))
    run.update(interrupted=True)
    answer = await ask(run, QuestionKind.resume_unsafe, text, about=call)
    run.landed(call)
    if call.step in run.results:
        return ToolOutcome(result="handed out")  # as its result has come
    if answer.decision is Decision.run_again:
        return None
    if answer.decision is Decision.use_result:
        outcome = ToolOutcome(result=answer.text)
        if call.kind is ToolKind.signal:
            run.results[call.step or 0] = outcome
        return outcome
    return IN_DOUBT


async def _hand_out(run: LiveRun, call: Call) -> ToolOutcome:
    """Send the request and wait for the result, a signal; retry an error that may pass (A11)."""
    timeout, step = run.route(call).timeout, call.step or 0
    for attempt, delay in enumerate((*RETRY_DELAYS, None), start=1):
        if call_state.handed_out_at(run.state, step) is None:  # else an earlier execution has sent it
            handed_out = await _run_tool(run, call)
            if handed_out.status == "error":
                return handed_out
            run.state = call_state.handed_out(run.state, step, workflow.now())
        run.in_flight(call)
        # Another execution could not tell a later attempt's result from one that was judged before.
        outcome = await outside_result(run, step, call.tool, timeout, moves=attempt == 1 and run.fits())
        run.landed(call)
        if outcome is None:
            happened = "" if call.effect is Effect.read else "; it was handed out, and may have happened"
            return failed(ToolFault.timeout, f"no result came within {timeout}{happened}")
        again = outcome.error is not None and outcome.error.retryable and call.effect is not Effect.once
        if not again or delay is None:
            return outcome
        events.emit(run, "agent.tool.retry", **events.call_figures(call), attempt=attempt + 1, delay_seconds=delay)
        with run.not_awaiting(step):
            sleep = workflow.sleep(delay, summary=f"retry {attempt} of {call.tool} · step {step}")
            await run.cancellation.stoppable(sleep)
        run.state = call_state.reissued(run.state, step, workflow.now())
    raise AssertionError("the last attempt returns")


Handler = Callable[[LiveRun, Call], Awaitable[ToolOutcome]]

_DECIDED = {**dict.fromkeys(CONTROL, call_state.controlled), **dict.fromkeys(JOURNAL, call_state.journaled)}
_BUILT_IN: dict[str, Handler] = {ASK_HUMAN: ask_human, DELEGATE: delegate, **dict.fromkeys(FOLLOW_UP, follow_up)}
_BY_KIND: dict[ToolKind, Handler] = {ToolKind.signal: _hand_out}
