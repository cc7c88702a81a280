"""How an activity says that it is alive. Without beats a dead worker is found only when the call times out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity

ALIVE_EVERY = 1.0  # seconds; a cancel travels back with a beat, so this is how long a read goes on after one
LOOK_EVERY = 0.25  # seconds between looks for something new to show


@asynccontextmanager
async def beating(progress: Callable[[], Any]) -> AsyncIterator[None]:
    """Beats while the block runs. `progress` gives the details a watcher sees; a change is sent at once.

    A local activity has nobody to beat for: its worker is known to be there by its workflow task.
    """
    if activity.info().is_local:
        yield
        return
    task = asyncio.create_task(_beat(progress))
    try:
        yield
    finally:
        task.cancel()


async def _beat(progress: Callable[[], Any]) -> None:
    last, silent = None, 0.0
    while True:
        await asyncio.sleep(LOOK_EVERY)
        silent += LOOK_EVERY
        details = progress()
        if silent >= ALIVE_EVERY or details != last:
            activity.heartbeat(details)
            last, silent = details, 0.0
