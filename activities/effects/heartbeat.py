"""Heartbeats of an activity. Without them a dead worker is detected only when the call times out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity

ALIVE_EVERY = 1.0  # seconds; a cancel arrives with a heartbeat, so a read continues for this long after one
PROGRESS_CHECK_EVERY = 0.25  # seconds between checks for new progress


@asynccontextmanager
async def heartbeating(progress: Callable[[], Any]) -> AsyncIterator[None]:
    """Heartbeat while the block runs. `progress` returns the details that a watcher sees; changes are sent at once.

    A local activity sends none: its workflow task already shows that the worker is alive.
    """
    if activity.info().is_local:
        yield
        return
    task = asyncio.create_task(_send_heartbeats(progress))
    try:
        yield
    finally:
        task.cancel()


async def _send_heartbeats(progress: Callable[[], Any]) -> None:
    last, silent = None, 0.0
    while True:
        await asyncio.sleep(PROGRESS_CHECK_EVERY)
        silent += PROGRESS_CHECK_EVERY
        details = progress()
        if silent >= ALIVE_EVERY or details != last:
            activity.heartbeat(details)
            last, silent = details, 0.0
