"""A model call, and what to do if the context is full, the worker is lost, or the agent's definition has changed."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.model.turn import Turns
from contracts.failures import RunFailure, Stop
from contracts.run.compaction import ContextFull
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision
from contracts.run.turn import ModelTurn, TurnRequest
from decisions.run import call_state
from decisions.run.recovery import is_used_up
from decisions.run.reply import take_turn
from decisions.run.transcript import note_part, reply_part
from decisions.text import formatting
from workflows.agent_run import events
from workflows.agent_run.compaction import make_room
from workflows.agent_run.context import LiveRun
from workflows.agent_run.start import take_snapshot
from workflows.agent_run.turn import close_turn, fail
from workflows.agent_run.waiting import ask, ask_in_its_place
from workflows.failures import Fate, fate
from workflows.policies import MOST_LOST, model_turn_policy


async def think(run: LiveRun) -> None:
    """Call the model once, and apply its reply to the run."""
    run.tell()
    turn = await _reply(run)
    if turn is None:
        return
    forced, ending = run.state.forced, run.state.ending
    taken = take_turn(run.state, turn)
    run.state = taken.state
    run.update(interrupted=False)
    if taken.keep:
        run.transcript.append(reply_part(turn))
    if taken.note:
        run.transcript.append(note_part(taken.note))
    if run.cancellation.reason is not None:
        run.update(ending=ending)  # a reply does not end a run that is to stop
        run.cancellation.check()
    if forced is not None and forced.asks and run.state.forced is None and run.state.ending is None:
        # It was to ask a person and did something else: some providers do not enforce a forced tool.
        run.state = call_state.refused_before(run.state, "not made: a person is asked first", workflow.now())
        close_turn(run)
        await ask_in_its_place(run, forced)


async def _reply(run: LiveRun) -> ModelTurn | None:
    """Return the reply, unless the run has changed instead: it failed, or its definition or context has changed.

    Compaction costs tokens and time, so the loop checks the limits before the next call.
    """
    reply = await _answered(run)
    if not isinstance(reply, ContextFull):
        return reply
    run.cancellation.check()
    await make_room(run, reply)
    return None


async def _answered(run: LiveRun) -> ModelTurn | ContextFull | None:
    activity = Turns.plan if run.state.turns == 0 else Turns.reflect
    for _ in range(MOST_LOST):
        run.cancellation.check()  # before the request takes the trace lines
        summary, policy = formatting.turn_summary(run.state), model_turn_policy(run.state.limits)
        try:
            return await run.execute(activity, _request(run), summary, policy)
        except ActivityError as error:
            last = error
        if fate(last) is not Fate.lost:
            break
        run.update(interrupted=True)
    if isinstance(last.cause, ApplicationError) and last.cause.type == Stop.definition_changed:
        await _settle_definition(run, *last.cause.details)
    else:
        fail(run, last, RunFailure.model_unavailable)
    return None


def _request(run: LiveRun) -> TurnRequest:
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
        unchecked=is_used_up(state.recoveries) or (forced is not None and forced.asks is QuestionKind.recovery),
        turn_timeout=state.limits.turn_timeout,
        told=events.untold(run),
    )


async def _settle_definition(run: LiveRun, new: str, difference: str) -> None:
    """Let a person decide, as the agent's definition has changed since the run began (B10)."""
    events.emit(run, "agent_run.resume_unsafe", definition=new)
    answer = await ask(run, QuestionKind.definition_changed, difference)
    run.update(interrupted=False)
    match answer.decision:
        case Decision.use_new:
            await take_snapshot(run, new)
            run.update(interrupted=run.state.definition != new)  # it has changed again: ask again
        case Decision.stop:
            run.cancellation.request(f"stopped by {answer.by or 'a person'}: the definition has changed")
        case _:
            run.update(refused_definition=new)
