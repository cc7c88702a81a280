"""A model call, whatever stands in its way: a full window, a lost worker, a definition that has changed."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.model.turn import Turns
from contracts.failures import RunFailure, Stop
from contracts.run.compaction import ContextFull
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision
from contracts.run.turn import TURN_MARGIN, ModelTurn, TurnRequest
from decisions.run import call_state
from decisions.run.limits import turn_limit
from decisions.run.recovery import is_used_up
from decisions.run.reply import take_turn
from decisions.run.transcript import note_part, reply_part
from decisions.text import formatting
from workflows.agent_run import events
from workflows.agent_run.compaction import make_room
from workflows.agent_run.context import LiveRun
from workflows.agent_run.start import take_snapshot
from workflows.agent_run.turn import ask_in_its_place, close_turn, fail
from workflows.encryption import readable
from workflows.failures import Fate, fate
from workflows.policies import HEARTBEAT, MODEL_RETRIES, MOST_LOST, WAIT_FOR_END


async def think(run: LiveRun) -> None:
    """One model call, and what it makes of the run."""
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
    if run.halt.reason is not None:
        run.update(ending=ending)  # a run that is to stop is not ended by what it says
        run.halt.check()
    if forced is not None and forced.asks and run.state.forced is None and run.state.ending is None:
        # It was to ask a person and did something else: some providers force nothing.
        run.state = call_state.refused_before(run.state, "not made: a person is asked first", workflow.now())
        close_turn(run)
        await ask_in_its_place(run, forced)


async def _reply(run: LiveRun) -> ModelTurn | None:
    """None where the run has changed instead: it failed, a person decided what its definition is, or room was made.

    What made room has cost tokens and time, so the limits are looked at before the model is asked again.
    """
    reply = await _answered(run)
    if not isinstance(reply, ContextFull):
        return reply
    run.halt.check()
    await make_room(run, reply)
    return None


async def _answered(run: LiveRun) -> ModelTurn | ContextFull | None:
    for _ in range(MOST_LOST):
        try:
            return await run.halt.stoppable(_asked(run))
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


async def _asked(run: LiveRun) -> ModelTurn | ContextFull:
    state = run.state
    forced = state.forced
    request = TurnRequest(
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
    what: Any = Turns.plan if state.turns == 0 else Turns.reflect
    return await readable(
        run.halt,
        lambda: workflow.execute_activity_method(
            what,
            request,
            start_to_close_timeout=turn_limit(state.limits) + TURN_MARGIN,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=MODEL_RETRIES,
            cancellation_type=WAIT_FOR_END,
            summary=formatting.turn_summary(state),
        ),
    )


async def _settle_definition(run: LiveRun, new: str, difference: str) -> None:
    """The agent is defined otherwise than when the run began: a person decides, nobody guesses (B10)."""
    events.emit(run, "agent_run.resume_unsafe", definition=new)
    answer = await run.ask(QuestionKind.definition_changed, difference)
    run.update(interrupted=False)
    match answer.decision:
        case Decision.use_new:
            await take_snapshot(run, new)
            run.update(interrupted=run.state.definition != new)  # the project has moved on: ask again
        case Decision.stop:
            run.halt.request(f"stopped by {answer.by or 'a person'}: the definition has changed")
        case _:
            run.update(refused_definition=new)
