"""A model call, and what to do if the context is full, the worker is lost, or the agent's definition has changed."""

from temporalio.exceptions import ActivityError, ApplicationError

from activities.model.turn import Turns
from contracts.failures import RunFailure, Stop
from contracts.run.compaction import ContextFull
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision
from contracts.run.turn import ModelTurn, TurnRequest
from decisions.run import call_state
from decisions.run.limits import budgets_left
from decisions.run.recovery import MAX_LOST, FailureKind, is_recovery_used_up
from decisions.run.reply import take_turn
from decisions.run.state import mark_interrupted, reject_definition, restore_ending
from decisions.run.transcript import note_part, reply_part
from workflows.agent_run import events
from workflows.agent_run.compaction import free_context
from workflows.agent_run.context import RunContext
from workflows.agent_run.start import take_snapshot
from workflows.agent_run.turn import close_turn, fail_run
from workflows.agent_run.waiting import ask_instead_of_model, ask_person
from workflows.failures import classify_failure
from workflows.policies import model_turn_policy


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


async def _request_reply(run: RunContext) -> ModelTurn | ContextFull | None:
    """Return the reply, unless the run has changed instead: it failed, or its definition has changed."""
    activity = Turns.plan if run.state.turns == 0 else Turns.reflect
    for _ in range(MAX_LOST):
        run.cancellation.raise_if_cancelled()  # before the request takes the trace lines
        summary, policy = f"turn {run.state.turns + 1}", model_turn_policy(run.state.limits)
        try:
            return await run.execute(activity, turn_request(run), summary, policy)
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
        told=events.take_trace_lines(run),
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
