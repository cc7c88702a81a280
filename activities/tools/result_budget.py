"""A bound on the bytes of large results that a worker holds at the same time.

A call reads up to `SMALL_BYTES` of a result freely. Before it reads more it takes one share, which has room for the
largest result (`contracts.tool.MAX_RESULT_BYTES`), and returns it when the call ends. A call takes one share at most,
so no two calls can wait for each other.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

MAX_SHARES = 8  # 64 MiB of large results in one worker
SMALL_BYTES = 256 * 1024


class _Share:
    def __init__(self, shares: asyncio.Semaphore) -> None:
        self._shares = shares
        self._is_taken = False

    async def take(self) -> None:
        if not self._is_taken:
            await self._shares.acquire()
            self._is_taken = True

    def release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._shares.release()


_share: ContextVar[_Share | None] = ContextVar("result_share", default=None)


class ResultBudget:
    def __init__(self, shares: int = MAX_SHARES) -> None:
        self._shares = asyncio.Semaphore(shares)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Scope of one tool call: the share it takes with `take_share` is released when the block ends."""
        share = _Share(self._shares)
        token = _share.set(share)
        try:
            yield
        finally:
            _share.reset(token)
            share.release()


async def take_share() -> None:
    """Wait until the current call may hold a large result. Outside of a call there is no limit."""
    if (share := _share.get()) is not None:
        await share.take()


def is_small(value: Any, limit: int = SMALL_BYTES) -> bool:
    """Return True if a result is clearly small. Counting stops at `limit`, so it is cheap for any result."""
    stack, size = [value], 0
    while stack and size <= limit:
        item = stack.pop()
        match item:
            case str() | bytes():
                size += len(item)
            case Mapping() | list() | tuple():
                size += 8 * (1 + len(item))
                if size <= limit:
                    stack += [*item.keys(), *item.values()] if isinstance(item, Mapping) else item
            case _:
                size += 8
    return size <= limit
