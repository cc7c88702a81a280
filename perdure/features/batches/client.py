"""The pool of batches of a task queue, as commands show it."""

from datetime import UTC, datetime
from time import monotonic

from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from perdure.client.runs import STATE_QUERY_TIMEOUT
from perdure.decisions.text.formatting import format_duration
from perdure.features.batches.contract import PoolView
from perdure.features.batches.rules import batch_pool_id
from perdure.registry import Check
from perdure.settings import Settings

POLL_INTERVALS = (5.0, 300.0)  # seconds between queries of the pool, until the batch of a call is sent and after
MAX_SHOWN = 5  # open batches in a line


async def query_pool(client: Client, task_queue: str, call: str | None = None) -> PoolView | None:
    """Return the pool, with the batch of one call only if it is given. None if there is none, or no worker answers."""
    pool = client.get_workflow_handle(batch_pool_id(task_queue))
    try:
        view: PoolView = await pool.query(
            "state", args=[call] if call else [], result_type=PoolView, rpc_timeout=STATE_QUERY_TIMEOUT
        )
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None
    return view


class PoolWatch:
    """Reports what the model calls of one run wait for, one after another."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._latest: tuple[str, ...] = ()  # the call, and its batch, as last reported
        self._due = 0.0  # when the pool is queried next

    async def report(self, task_queue: str, call: str) -> str | None:
        """Return what the call waits for, once it waits and once its batch is sent."""
        if monotonic() < self._due and call in self._latest:
            return None
        pool = await query_pool(self._client, task_queue, call)
        self._due = monotonic() + POLL_INTERVALS[bool(pool and pool.open)]
        if pool is None or (latest := (call, *(batch.id for batch in pool.open))) == self._latest:
            return None
        self._latest = latest
        return format_batch_wait(pool)


async def check_pool(client: Client, settings: Settings) -> list[Check]:
    """Say what the pool has, if there is one."""
    pool = await query_pool(client, settings.task_queue)
    return [Check("batches", ok=True, found=format_pool(pool))] if pool else []


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
    latest = "" if took is None else f" · the last one took {format_duration(took)}"
    if pool.open:
        return f"waiting for a batch of {pool.open[0].calls:,}{latest}"
    return f"waiting for a batch to be sent{latest}"
