"""Reads of lists, which the requests of a few seconds share: a namespace allows 30 of them a second."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

SHARED_SECONDS = 2.0  # a page looks every 8 s, and promises a new question within 10 s

T = TypeVar("T")


class SharedReads:
    def __init__(self) -> None:
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}

    async def read(self, key: Hashable, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a read that is running, or ended just now, else of `start`. Raises its error."""
        task: asyncio.Task[T] | None = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(start())
            task.add_done_callback(lambda done: self._expire_later(key, done))
        return await asyncio.shield(task)  # other requests wait for it, too

    def clear(self) -> None:
        """Share none of the reads that have begun: something has changed."""
        self._reads.clear()

    def _expire_later(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        if not done.cancelled():
            done.exception()  # retrieved, if every request has been cancelled
        asyncio.get_running_loop().call_later(SHARED_SECONDS, self._expire, key, done)

    def _expire(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        if self._reads.get(key) is done:
            del self._reads[key]
