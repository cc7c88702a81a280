"""The release of what a pause held."""

import asyncio
from typing import Self

from temporalio import activity
from temporalio.client import Client

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.effects.held import release_held
from perdure.activities.parts import WorkerParts

PASS_EVERY = 1.0  # seconds
EMPTY_PASSES = 4  # in a row: the server's list, and what a worker knows of pauses, are about a second old


class Releases:
    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.task_queue)

    @activity.defn
    async def release_pause(self, name: str) -> int:
        """Release all activities that a pause holds, also those that it held a moment ago, and return their number."""
        released = empty = 0
        async with heartbeating(lambda: released):
            while empty < EMPTY_PASSES:
                found = await release_held(self._client, self._task_queue, name)
                released, empty = released + found, 0 if found else empty + 1
                await asyncio.sleep(PASS_EVERY if empty < EMPTY_PASSES else 0)
        return released
