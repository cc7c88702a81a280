"""The common part of the workers on Temporal: they serve until they are killed, and name their attempts by a key."""

import asyncio

from temporalio import activity
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from bench.crash.tools import SETTINGS, report

ONE_ATTEMPT = RetryPolicy(maximum_attempts=1)


async def serve(worker: Worker) -> None:
    async with worker:
        await asyncio.to_thread(report, ready=True)
        await asyncio.Event().wait()


def idempotency_key() -> str | None:
    """Of the activity that runs: stable over its attempts, as Temporal's documentation advises."""
    info = activity.info()
    return f"{info.workflow_run_id}-{info.activity_id}" if SETTINGS.is_keyed else None
