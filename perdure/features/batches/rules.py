"""The state of a run whose turn waits for a batch, the pool in words, and ids."""

from datetime import UTC, datetime

from perdure.contracts.run.state import RunState
from perdure.contracts.run.turn import FailedTurn, SentTurn
from perdure.features.batches import QUEUE_SUFFIX
from perdure.features.batches.contract import PoolView


def pool_details(pool: PoolView) -> str:
    """Render the details of a pool of batches, in Markdown."""
    lines = [f"**{pool.waiting:,}** model calls wait to be sent"]
    for batch in pool.open[:20]:
        since = datetime.fromtimestamp(batch.since / 1000, UTC)
        lines.append(f"- `{batch.id}`: {batch.calls:,} model calls, sent {since:%Y-%m-%d %H:%M:%S} UTC")
    return "\n".join(lines)


def mark_batched(state: RunState, at: datetime | None) -> RunState:
    """Record since when the model call waits for a batch, or that it does not."""
    return state.evolve(batched_at=at)


def mark_sent(state: RunState, entry: str = "", failed: FailedTurn | None = None) -> RunState:
    """Record the batch that goes on although its turn has failed: a run that resumes this one takes its reply.

    The second failure of one batch removes it, so that the turn can be sent again.
    """
    sent = None
    if failed is not None and failed.batch and (state.sent is None or state.sent.batch != failed.batch):
        sent = SentTurn(run_id=state.run_id, entry=entry, batch=failed.batch, since=failed.since)
    return state.evolve(sent=sent)


def batch_queue(task_queue: str) -> str:
    """Return the task queue of model calls that wait for a batch. No worker polls it."""
    return f"{task_queue}{QUEUE_SUFFIX}"


def batch_pool_id(task_queue: str) -> str:
    """Return the id of the workflow that sends the batches of a task queue."""
    return f"batches:{task_queue}"
