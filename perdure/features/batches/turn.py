"""A run's model turn in a batch: the request is written, and the run waits for the reply of the pool."""

import asyncio
from contextlib import suppress
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from perdure.contracts.failures import RunFailure
from perdure.contracts.run.turn import ContextFull, FailedTurn, ModelTurn, TurnRequest
from perdure.decisions.run.state import record_failure
from perdure.features.batches.activities import BatchTurns
from perdure.features.batches.contract import BatchedTurnRequest, LeaveRequest, PooledCall
from perdure.features.batches.policies import BATCHED_TURN
from perdure.features.batches.rules import batch_pool_id, batch_queue, mark_batched, mark_sent
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.execution import execute_activity

BatchedReply = ModelTurn | ContextFull | FailedTurn


async def request_in_batch(run: RunContext, request: TurnRequest, summary: str) -> ModelTurn | ContextFull | None:
    """Return the reply from a batch, unless the run failed.

    Raises ActivityError, and CancelledError of asyncio.
    """
    entry, phase = workflow.uuid4().hex[:20], "reflect" if run.state.turns else "plan"
    sent = run.state.sent
    asked = BatchedTurnRequest.model_validate({**dict(request), "entry": entry, "phase": phase, "sent": sent})
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
        run.state = record_failure(mark_sent(run.state, written.entry.id, reply), reply.message, kind)
        return None
    run.state = mark_sent(run.state)
    return reply


async def _await_reply(run: RunContext, asked: BatchedTurnRequest, entry: PooledCall, summary: str) -> BatchedReply:
    """Wait in an activity that no worker runs; the pool completes it by its id.

    It and the signal to the pool are commands of one workflow task, so neither gets lost without the other.
    """
    queue = workflow.info().task_queue
    pool = workflow.get_external_workflow_handle(batch_pool_id(queue))
    waiting: workflow.ActivityHandle[BatchedReply] = workflow.start_activity(
        asked.phase,
        TurnRequest.model_validate(asked.model_dump(exclude={"entry", "phase", "sent", "trace"})),
        result_type=cast(Any, BatchedReply),
        activity_id=entry.entry.id,
        task_queue=batch_queue(queue),
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
                await pool.signal("leave", LeaveRequest(id=entry.entry.id))
        raise


async def _await_activity(waiting: workflow.ActivityHandle[BatchedReply]) -> BatchedReply:
    return await waiting
