"""The reads of a turn and the model call after them, in one activity with one attempt.

The activity builds the hash chain of the conversation as the run does. The run takes the reply only if it would make
the same model call now. Whatever is left undone is done as usual, in activities of its own.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.model.fused_turn import FusedTurns
from contracts.run.fused_turn import FusedRead, FusedTurn, FusedTurnRequest
from contracts.run.state import Call
from contracts.run.turn import ModelTurn, TurnRequest
from decisions.run import call_state, loop
from decisions.run.limits import time_left_ms
from decisions.run.recovery import FailureKind
from decisions.run.state import add_reply_cost, add_trace_lines, mark_interrupted
from decisions.text.formatting import fused_summary
from workflows.agent_run import events
from workflows.agent_run.context import RunContext
from workflows.agent_run.model_turn import apply_reply, turn_request
from workflows.agent_run.tool_calls import call_request, make_calls
from workflows.agent_run.turn import close_turn
from workflows.failures import classify_failure
from workflows.policies import fused_turn_policy

_LOST = "its worker was lost"


async def read_and_think(run: RunContext, batch: tuple[Call, ...]) -> None:
    """Make the reads of a turn, close it, and apply the reply to the next turn."""
    run.state = call_state.issue_calls(run.state, batch, workflow.now())
    run.publish_details()
    turn = turn_request(run)
    done = await _request_turn(run, batch, turn)
    if done is None:
        run.state = add_trace_lines(run.state, turn.told)  # which may not have been written
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
        return await run.execute(FusedTurns.read_and_reflect, request, summary, policy)
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
