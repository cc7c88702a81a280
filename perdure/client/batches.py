"""The pool of batches of a task queue, as commands show it."""

from datetime import UTC, datetime

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from contracts.run.batch import PoolView
from decisions import ids
from perdure.client.runs import STATE_QUERY_TIMEOUT

MAX_SHOWN = 5  # open batches in a line


async def query_pool(client: Client, task_queue: str, call: str | None = None) -> PoolView | None:
    """Return the pool, with the batch of one call only if it is given. None if there is none, or no worker answers."""
    pool = client.get_workflow_handle(ids.batch_pool_id(task_queue))
    try:
        view: PoolView = await pool.query(
            "state", args=[call] if call else [], result_type=PoolView, rpc_timeout=STATE_QUERY_TIMEOUT
        )
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None
    return view


def is_batched(pending: PendingActivityInfo, task_queue: str) -> bool:
    """Return whether it is a model call that waits for a batch."""
    return bool(pending.activity_options.task_queue.name == ids.batch_queue(task_queue))


def format_pool(pool: PoolView) -> str:
    """Format the pool in one line: `3 model calls wait to be sent; msgbatch_1: 14 since 2026-11-25 09:30 UTC`."""
    sent = [
        f"{batch.id}: {batch.calls:,} since {datetime.fromtimestamp(batch.since / 1000, UTC):%Y-%m-%d %H:%M} UTC"
        for batch in pool.open[:MAX_SHOWN]
    ]
    hidden = len(pool.open) - len(sent)
    more = [f"{hidden:,} more open batches"] if hidden else []
    return "; ".join([f"{pool.waiting:,} model calls wait to be sent", *sent, *more])


def format_batch_wait(pool: PoolView) -> str:
    """Format what one call waits for; `pool` has its batch only."""
    took = pool.latest_seconds
    latest = "" if took is None else f" · the last one took {max(round(took / 60), 1)} min"
    if pool.open:
        return f"waiting for a batch of {pool.open[0].calls:,}{latest}"
    return f"waiting for a batch to be sent{latest}"
