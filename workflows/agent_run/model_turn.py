"""A model call, at the pace of the run. The context may be full, the worker lost, or the agent's definition changed."""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.failures import RunFailure, Stop
from perdure.contracts.model_settings import Pace
from perdure.contracts.run.signals import Decision, QuestionKind
from perdure.contracts.run.state import Call
from perdure.contracts.run.turn import ContextFull, FusedRead, FusedTurn, FusedTurnRequest, ModelTurn, TurnRequest
from perdure.decisions.run import call_state, loop
from perdure.decisions.run.limits import budgets_left, time_left_ms
from perdure.decisions.run.recovery import MAX_LOST, FailureKind, is_recovery_used_up
from perdure.decisions.run.reply import take_turn
from perdure.decisions.run.state import (
    add_reply_cost,
    add_trace_lines,
    mark_interrupted,
    reject_definition,
    restore_ending,
)
from perdure.decisions.run.transcript import note_part, reply_part
from perdure.decisions.text.formatting import fused_summary
from perdure.registry import load, paces
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run import events
from perdure.workflows.agent_run.compaction import free_context
from perdure.workflows.agent_run.context import RunContext, call_request
from perdure.workflows.agent_run.start import take_snapshot
from perdure.workflows.agent_run.tool_calls import make_calls
from perdure.workflows.agent_run.turn import check_calls, close_turn, fail_run
from perdure.workflows.agent_run.waiting import ask_instead_of_model, ask_person
from perdure.workflows.execution import classify_failure, fused_turn_policy, model_turn_policy


async def take_model_turn(run: RunContext) -> None:
    """Call the model once, and apply its reply to the run."""
    run.publish_details()
    reply = await _request_reply(run)
    if reply is not None:
        await apply_reply(run, reply)


async def apply_reply(run: RunContext, turn: ModelTurn | ContextFull) -> None:
    """Apply a reply to the run, or free its context.

    Compaction costs tokens and time, so the loop checks the limits before the next call.
    """
    if isinstance(turn, ContextFull):
        run.cancellation.raise_if_cancelled()
        await free_context(run, turn)
        return
    forced, ending = run.state.forced, run.state.ending
    taken = take_turn(run.state, turn)
    run.state = mark_interrupted(taken.state, interrupted=False)
    if taken.keep:
        run.transcript.append(reply_part(turn))
    if taken.note:
        run.transcript.append(note_part(taken.note))
    if run.cancellation.reason is not None:
        run.state = restore_ending(run.state, ending)  # a reply does not end a run that is to stop
        run.cancellation.raise_if_cancelled()
    if forced is not None and forced.asks and run.state.forced is None and run.state.ending is None:
        # It was to ask a person and did something else: some providers do not enforce a forced tool.
        run.state = call_state.settle_unmade(run.state, "not made: a person is asked first")
        close_turn(run)
        await ask_instead_of_model(run, forced)
    await check_calls(run)


async def _request_reply(run: RunContext) -> ModelTurn | ContextFull | None:
    """Return the reply, unless the run has changed instead: it failed, or its definition has changed."""
    activity = Activities.plan if run.state.turns == 0 else Activities.reflect
    pace = run.state.pace or Pace.live
    for _ in range(MAX_LOST):
        run.cancellation.raise_if_cancelled()  # before the request takes the trace lines
        summary, policy = f"turn {run.state.turns + 1}", model_turn_policy(run.state.limits)
        try:
            if pace is Pace.live:
                return await run.execute(activity, turn_request(run), summary, policy)
            request_reply = load(paces()[pace].turn)
            reply: ModelTurn | ContextFull | None = await request_reply(run, turn_request(run), summary)
            return reply
        except ActivityError as error:
            last = error
        if classify_failure(last) is not FailureKind.lost:
            break
        run.state = mark_interrupted(run.state)
    if isinstance(last.cause, ApplicationError) and last.cause.type == Stop.definition_changed:
        await _settle_definition(run, *last.cause.details)
    else:
        fail_run(run, last, RunFailure.model_unavailable)
    return None


def turn_request(run: RunContext) -> TurnRequest:
    state = run.state
    forced = state.forced
    return TurnRequest(
        turn=state.turns + 1,
        length=run.transcript.length,
        head=run.transcript.head,
        definition=state.definition,
        interrupted=state.interrupted,
        refused=state.refused_definition,
        force=forced.tool if forced else None,
        is_closing=state.is_closing,
        window=state.window,
        unchecked=is_recovery_used_up(state.recoveries)
        or (forced is not None and forced.asks is QuestionKind.recovery),
        turn_timeout=state.limits.turn_timeout,
        trace=events.take_trace_lines(run),
        policy=call_state.policy_context(state),
        **budgets_left(state),
    )


async def _settle_definition(run: RunContext, new: str, difference: str) -> None:
    """Let a person decide, as the agent's definition has changed since the run began (B10)."""
    events.emit_event(run, "agent_run.resume_unsafe", definition=new)
    answer = await ask_person(run, QuestionKind.definition_changed, difference)
    run.state = mark_interrupted(run.state, interrupted=False)
    match answer.decision:
        case Decision.use_new:
            await take_snapshot(run, new)
            has_changed_again = run.state.definition != new
            run.state = mark_interrupted(run.state, interrupted=has_changed_again)  # so that it is asked again
        case Decision.stop:
            run.cancellation.request(f"stopped by {answer.by or 'a person'}: the definition has changed")
        case _:
            run.state = reject_definition(run.state, new)


_LOST = "its worker was lost"


async def take_fused_turn(run: RunContext, batch: tuple[Call, ...]) -> None:
    """Make the reads of a turn, close it, and apply the reply to the next turn."""
    run.state = call_state.issue_calls(run.state, batch, workflow.now())
    run.publish_details()
    turn = turn_request(run)
    done = await _request_turn(run, batch, turn)
    if done is None:
        run.state = add_trace_lines(run.state, turn.trace)  # which may not have been written
        await make_calls(run, batch)
        return
    if left := _settle_reads(run, batch, done):
        await make_calls(run, left)
        return
    if done.reply is None:
        return
    close_turn(run)
    if _would_ask(run, done.head):
        await apply_reply(run, done.reply)
    elif isinstance(done.reply, ModelTurn):
        run.state = add_reply_cost(run.state, done.reply)


async def _request_turn(run: RunContext, batch: tuple[Call, ...], turn: TurnRequest) -> FusedTurn | None:
    """Return the outcomes, unless the activity was lost or failed. Raises CancelledError of asyncio."""
    reads = tuple(FusedRead(**dict(call_request(run, call)), timeout=run.route_of(call).timeout) for call in batch)
    request = FusedTurnRequest(reads=reads, turn=turn, time_left_ms=time_left_ms(run.state))
    summary, policy = fused_summary(batch, turn.turn), fused_turn_policy(run.state.limits)
    try:
        return await run.execute(Activities.read_and_reflect, request, summary, policy)
    except ActivityError as error:
        if classify_failure(error) is FailureKind.lost:
            run.state = mark_interrupted(run.state)
            for call in batch:
                events.emit_event(
                    run, "agent.tool.retry", **events.call_figures(call), attempt=2, delay_seconds=None, why=_LOST
                )
    return None


def _settle_reads(run: RunContext, batch: Sequence[Call], done: FusedTurn) -> tuple[Call, ...]:
    """Settle the reads that have an outcome, and return the others."""
    left = []
    for call, outcome in zip(batch, done.outcomes, strict=True):
        if outcome is None:
            left.append(call)
        elif outcome.unfinished is not None:
            run.state, followed = call_state.record_unfinished(run.state, call, outcome.unfinished)
            left.append(followed)
        else:
            events.count_call(call, outcome)
            run.state = call_state.settle_call(run.state, call, outcome)
    if done.interrupted:
        run.state = mark_interrupted(run.state)
    return tuple(left)


def _would_ask(run: RunContext, head: str) -> bool:
    """Return whether the next move is the model call that the activity has made. A long history can wait for it."""
    move = loop.next_move(run.state, history_is_long=False, is_spoken_to=bool(run.inbox.messages))
    return isinstance(move, loop.Think) and run.transcript.head == head
