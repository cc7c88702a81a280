"""Carrying out the calls of a turn: each goes where its kind says, and ends with exactly one outcome."""

import asyncio
from typing import Any

from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.tools.call import ToolCalls
from contracts.failures import ToolFault
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call
from contracts.tool import (
    CALL_MARGIN,
    RETRY_DELAYS,
    Effect,
    ToolCall,
    ToolError,
    ToolKind,
    ToolOutcome,
    ToolRoute,
    failed,
)
from decisions.builtin_tools import ASK_HUMAN, CONTROL, DELEGATE, FOLLOW_UP, JOURNAL
from decisions.run import call_state
from decisions.run.call_state import IN_DOUBT
from decisions.run.calls import needs_approval, question_in
from decisions.run.resume import origin_of
from decisions.text import formatting
from decisions.tool_requests import nonce_of
from workflows.agent_run import events
from workflows.agent_run.context import LiveRun
from workflows.agent_run.delegate import delegate
from workflows.agent_run.followup_tools import follow_up
from workflows.agent_run.queue_tool import queued
from workflows.agent_run.turn import direction
from workflows.encryption import readable
from workflows.failures import Fate, fate, told
from workflows.policies import HEARTBEAT, MOST_LOST, TOOL_RETRIES, WAIT_FOR_END

INLINE_ARGUMENTS = 8 * 1024  # bytes; larger ones are named by the cursor, since history holds them already
UNBEGUN = (Fate.cancelled, Fate.not_begun)  # of a `once` call, whose activity has one attempt
FIRST_WAIT, MOST_WAIT = 1.0, 60.0  # seconds between tries to write to a ledger that takes no claim


async def act(run: LiveRun, batch: tuple[Call, ...]) -> None:
    """Makes the calls of a batch at the same time. All of them have ended when this returns or raises."""
    run.state = call_state.issued(run.state, batch, workflow.now())
    run.tell()
    ends = await asyncio.gather(*(_settle(run, call) for call in batch), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _settle(run: LiveRun, call: Call) -> None:
    if call.tool in CONTROL:
        run.state = call_state.controlled(run.state, call, workflow.now())
    elif call.tool in JOURNAL:
        run.state = call_state.journaled(run.state, call, workflow.now())
    else:
        outcome = await _carry_out(run, call)
        events.count_call(call, outcome)
        run.state = call_state.settled(run.state, call, outcome, workflow.now())


async def _carry_out(run: LiveRun, call: Call) -> ToolOutcome:
    if call.tool == ASK_HUMAN:
        return await _ask(run, call)
    if needs_approval(run.state, call):
        with run.not_awaiting(call.step or 0):
            approved = await _approve(run, call)
        if isinstance(approved, ToolOutcome):
            return approved
        call = approved
    if call.tool in FOLLOW_UP:
        return await follow_up(run, call)
    if call.tool == DELEGATE:
        return await delegate(run, call)
    if call.kind is ToolKind.signal:
        return await _hand_out(run, call)
    return await _run_tool(run, call)


async def _ask(run: LiveRun, call: Call) -> ToolOutcome:
    text = question_in(call)
    if run.state.forced is not None:  # then there is something to ask, whatever the model says to it
        return ToolOutcome(result=await direction(run, run.state.forced, text or "", call))
    if text is None:
        return failed(ToolFault.invalid_arguments, "`question` is required: ask one question, in a sentence")
    offered = call.arguments.get("options")
    options = [o for o in offered if isinstance(o, str)] if isinstance(offered, list) else []
    answer = await run.ask(QuestionKind.question, text, options, about=call)
    return ToolOutcome(result=answer.text)


async def _approve(run: LiveRun, call: Call) -> Call | ToolOutcome:
    """The call with the approval that a person gave to exactly it; or why it is not made."""
    if outcome := formatting.too_large_to_approve(call.tool, call.arguments):
        return outcome
    answer = await _decision(run, call, formatting.format_approval(call.tool, call.arguments))
    if isinstance(answer, ToolOutcome):
        return answer
    if answer.decision is Decision.approve_tool:
        run.update(approved_tools=(*run.state.approved_tools, call.tool))
    run.state, call = call_state.approved(run.state, call)
    return call


async def _accept(run: LiveRun, call: Call, error: ToolError) -> Call | ToolOutcome:
    """The same for a tool whose server defines it otherwise by now. Reads made together are asked about in turn."""
    definition = error.definition or ""
    async with run.asking:
        run.halt.check()
        if run.state.accepted.get(call.tool) != definition:
            events.emit(run, "agent_run.resume_unsafe", **_about(call), definition=definition)
            if outcome := formatting.too_large_to_approve(call.tool, call.arguments):
                return outcome
            wanted = formatting.format_approval(call.tool, call.arguments)
            answer = await _decision(run, call, f"{error.message}\n\nMake this call all the same?\n{wanted}")
            if isinstance(answer, ToolOutcome):
                return answer
            if answer.decision is Decision.approve_tool:
                run.update(accepted={**run.state.accepted, call.tool: definition})
    run.state, call = call_state.accepted(run.state, call, definition)
    return call


async def _decision(run: LiveRun, call: Call, wants: str) -> HumanInput | ToolOutcome:
    """What a person decided for the call; or why it is not made."""
    timeout = _route(run, call).approval_timeout
    answer = await run.ask(QuestionKind.approval, wants, about=call, timeout=timeout)
    if answer.decision is None:
        return _denied(run, call, f"the approval expired: no person decided within {timeout}")
    if answer.decision is Decision.deny:
        return _denied(run, call, f"a person denied this call: {answer.text or 'no reason given'}")
    return answer


def _denied(run: LiveRun, call: Call, why: str) -> ToolOutcome:
    """What was in flight when the run's origin ended must not read as if it had never been made."""
    if call.tool_use_id in run.state.doubtful:
        return failed(ToolFault.in_doubt, f"{why}; but it was in flight in an earlier run, and may have happened")
    return failed(ToolFault.denied, why)


async def _run_tool(run: LiveRun, call: Call) -> ToolOutcome:
    """A call that may have happened is never repeated by the runtime: a person settles it (B9)."""
    while True:
        outcome = await _made(run, call)
        if outcome is None:
            outcome = await _settle_doubt(run, call)
            if outcome is not None:
                return outcome
            run.state, call = call_state.made_again(run.state, call)
        elif outcome.error is not None and outcome.error.definition is not None:
            accepted = await _accept(run, call, outcome.error)
            if isinstance(accepted, ToolOutcome):
                return accepted
            call = accepted
        else:
            return outcome
        run.state = call_state.reissued(run.state, call.step or 0, workflow.now())


async def _made(run: LiveRun, call: Call) -> ToolOutcome | None:
    """The call's outcome; None where only a person can tell."""
    if call.kind is ToolKind.queue:
        return await queued(run, call, _route(run, call))
    return await _made_here(run, call)


async def _made_here(run: LiveRun, call: Call) -> ToolOutcome | None:
    """By the activity `call_tool`. What a lost worker left behind is looked up first."""
    lost, wait = 0, FIRST_WAIT
    while True:
        run.halt.check()  # else a halt between two tries would leave in doubt what is not in flight
        run.in_flight(call)
        try:
            outcome: ToolOutcome = await run.halt.stoppable(_schedule(run, call, was_lost=lost > 0))
        except ActivityError as error:
            end = fate(error)
            if _is_in_doubt(end, call, lost):
                return None
            if end in UNBEGUN and call.effect is Effect.once and not (lost or _was_begun(run, call)):
                run.landed(call)
            if end is Fate.cancelled:
                raise asyncio.CancelledError from None
            if end is Fate.not_begun:
                why = f"{call.tool} · step {call.step}: {formatting.cut(str(error.cause), 80)}"
                await run.halt.stoppable(workflow.sleep(wait, summary=why))
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
    """Before this run, or before a person said "run again"."""
    return call.tool_use_id in run.state.doubtful or call.generation > 1


def _is_in_doubt(end: Fate, call: Call, lost: int) -> bool:
    """Whether only a person can tell: the ledger says so, or it was lost each time that it was looked up."""
    unknown = call.effect is Effect.once and end in (Fate.lost, Fate.late)
    return end is Fate.in_doubt or (unknown and not _is_looked_up(end, call, lost))


def _is_looked_up(end: Fate, call: Call, lost: int) -> bool:
    """Whether another attempt should see what became of this one."""
    return (end is Fate.lost and lost < MOST_LOST) or (end is Fate.late and call.effect is Effect.once and not lost)


async def _schedule(run: LiveRun, call: Call, *, was_lost: bool) -> ToolOutcome:
    route = _route(run, call)
    large = len(to_json(call.arguments)) > INLINE_ARGUMENTS
    origin = origin_of(run.state, call.step or 0)
    request = ToolCall(
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
    return await readable(
        run.halt,
        lambda: workflow.execute_activity_method(
            ToolCalls.call_tool,
            request,
            start_to_close_timeout=route.timeout + CALL_MARGIN,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=TOOL_RETRIES[call.effect],
            cancellation_type=WAIT_FOR_END,
            summary=formatting.call_summary(call, was_lost=was_lost),
        ),
    )


async def _settle_doubt(run: LiveRun, call: Call) -> ToolOutcome | None:
    """None where a person decides to run the call again."""
    text = f"`{formatting.call_line(call.tool, call.arguments)}` was interrupted and may have happened. Run it again?"
    events.emit(run, "agent_run.resume_unsafe", **_about(call))
    run.update(interrupted=True)
    answer = await run.ask(QuestionKind.resume_unsafe, text, about=call)
    run.landed(call)
    if run.has_result(call.step or 0):
        return ToolOutcome(result="handed out")  # since its result has come
    if answer.decision is Decision.run_again:
        return None
    if answer.decision is Decision.use_result:
        outcome = ToolOutcome(result=answer.text)
        if call.kind is ToolKind.signal:
            run.keep_result(call.step or 0, outcome)
        return outcome
    return IN_DOUBT


async def _hand_out(run: LiveRun, call: Call) -> ToolOutcome:
    """The request goes out, the result comes back as a signal; an error that may pass is tried again (A11)."""
    timeout, step = _route(run, call).timeout, call.step or 0
    for attempt, delay in enumerate((*RETRY_DELAYS, None), start=1):
        if call_state.handed_out_at(run.state, step) is None:  # else an execution before this one has done it
            handed_out = await _run_tool(run, call)
            if handed_out.status == "error":
                return handed_out
            run.state = call_state.handed_out(run.state, step, workflow.now())
        run.in_flight(call)
        # Of a later attempt it would not be known whether a result is the one that was judged before.
        outcome = await run.outside_result(step, call.tool, timeout, moves=attempt == 1 and run.fits())
        run.landed(call)
        if outcome is None:
            happened = "" if call.effect is Effect.read else "; it was handed out, and may have happened"
            return failed(ToolFault.timeout, f"no result came within {timeout}{happened}")
        again = outcome.error is not None and outcome.error.retryable and call.effect is not Effect.once
        if not again or delay is None:
            return outcome
        events.emit(run, "agent.tool.retry", **_about(call), attempt=attempt + 1, delay_seconds=delay)
        with run.not_awaiting(step):
            await run.halt.stoppable(workflow.sleep(delay, summary=f"retry {attempt} of {call.tool} · step {step}"))
        run.state = call_state.reissued(run.state, step, workflow.now())
    raise AssertionError("the last attempt returns")


def _about(call: Call) -> dict[str, Any]:
    return {"step": call.step, "tool": call.tool, "tool_use_id": call.tool_use_id}


def _route(run: LiveRun, call: Call) -> ToolRoute:
    return next(route for route in run.state.tools if route.name == call.tool)
