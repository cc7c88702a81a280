"""A model call, live or in a batch. The context may be full, the worker lost, or the agent's definition changed."""

import asyncio
from contextlib import suppress
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from activities.model.batches import BatchTurns
from activities.model.turn import Turns
from contracts.failures import RunFailure, Stop
from contracts.model_settings import Pace
from contracts.run.batch import BatchedTurnRequest, FailedTurn, LeaveRequest, PooledCall
from contracts.run.compaction import ContextFull
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision
from contracts.run.turn import ModelTurn, TurnRequest
from decisions import ids
from decisions.run import call_state
from decisions.run.limits import budgets_left
from decisions.run.recovery import MAX_LOST, FailureKind, is_recovery_used_up
from decisions.run.reply import take_turn
from decisions.run.state import mark_batched, mark_interrupted, record_failure, reject_definition, restore_ending
from decisions.run.transcript import note_part, reply_part
from workflows.agent_run import events
from workflows.agent_run.compaction import free_context
from workflows.agent_run.context import RunContext
from workflows.agent_run.start import take_snapshot
from workflows.agent_run.turn import check_calls, close_turn, fail_run
from workflows.agent_run.waiting import ask_instead_of_model, ask_person
from workflows.execution import execute_activity
from workflows.failures import classify_failure
from workflows.policies import BATCHED_TURN, model_turn_policy

BatchedReply = ModelTurn | ContextFull | FailedTurn


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
    activity = Turns.plan if run.state.turns == 0 else Turns.reflect
    for _ in range(MAX_LOST):
        run.cancellation.raise_if_cancelled()  # before the request takes the trace lines
        summary, policy = f"turn {run.state.turns + 1}", model_turn_policy(run.state.limits)
        try:
            if run.state.pace is Pace.batch:
                return await _request_in_batch(run, turn_request(run), summary)
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


async def _request_in_batch(run: RunContext, request: TurnRequest, summary: str) -> ModelTurn | ContextFull | None:
    """Return the reply from a batch, unless the run failed.

    Raises ActivityError, and CancelledError of asyncio.
    """
    entry, phase = workflow.uuid4().hex[:20], "reflect" if run.state.turns else "plan"
    asked = BatchedTurnRequest.model_validate({**dict(request), "entry": entry, "phase": phase})
    written = await run.execute_locally(BatchTurns.write_batch_request, asked, f"{summary}: write the request")
    if isinstance(written, ContextFull):
        return written
    run.state = mark_batched(run.state, workflow.now())
    run.publish_details()
    try:
        reply = await _await_reply(run, asked, written, summary)
    except (ActivityError, asyncio.CancelledError):  # not `finally`, which an evicted workflow would run
        run.state = mark_batched(run.state, None)
        raise
    run.state = mark_batched(run.state, None)
    if isinstance(reply, FailedTurn):
        kind = next((kind for kind in RunFailure if kind == reply.failure), RunFailure.model_unavailable)
        run.state = record_failure(run.state, reply.message, kind)
        return None
    return reply


async def _await_reply(run: RunContext, asked: BatchedTurnRequest, entry: PooledCall, summary: str) -> BatchedReply:
    """Wait in an activity that no worker runs; the pool completes it by its id.

    It and the signal to the pool are commands of one workflow task, so neither gets lost without the other.
    """
    queue = workflow.info().task_queue
    pool = workflow.get_external_workflow_handle(ids.batch_pool_id(queue))
    waiting: workflow.ActivityHandle[BatchedReply] = workflow.start_activity(
        asked.phase,
        TurnRequest.model_validate(asked.model_dump(exclude={"entry", "phase", "told"})),
        result_type=cast(Any, BatchedReply),
        activity_id=asked.entry,
        task_queue=ids.batch_queue(queue),
        summary=f"{summary}, in a batch",
        **BATCHED_TURN,
    )
    try:
        try:
            await pool.signal("join", entry)
        except ApplicationError:  # it has ended, for nothing waited
            await execute_activity(run.cancellation, BatchTurns.open_pool, entry, "open the pool of batches")
        return await run.cancellation.cancellable(_await_activity(waiting))  # not before: `leave` must follow `join`
    except (asyncio.CancelledError, ActivityError):
        if run.cancellation.reason is not None:
            waiting.cancel()
            with suppress(FailureError):  # the pool has ended
                await pool.signal("leave", LeaveRequest(id=asked.entry))
        raise


async def _await_activity(waiting: workflow.ActivityHandle[BatchedReply]) -> BatchedReply:
    return await waiting


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
