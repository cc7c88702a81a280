"""How a run is stopped from outside without cutting an effect in half (B7).

A halt comes from Temporal's own cancel, from the signal `cancel`, or from a result that breaks the protocol. The root
swallows Temporal's cancel, so that an effect in flight never gets it; what may be stopped at once says so.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from temporalio import workflow

T = TypeVar("T")


class Halt:
    def __init__(self) -> None:
        self.reason: str | None = None
        self._stoppable: list[asyncio.Task[Any]] = []

    def request(self, reason: str) -> None:
        """Stops what may be stopped. The first reason stays."""
        if self.reason is None:
            self.reason = reason
            for task in list(self._stoppable):
                task.cancel()

    def check(self) -> None:
        """Raises CancelledError once a halt is requested; stands before each next thing to do."""
        if self.reason is not None:
            raise asyncio.CancelledError

    async def stoppable(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits what a halt may interrupt: reads, model calls, waits for people and outside results."""
        if self.reason is not None:
            coroutine.close()
            raise asyncio.CancelledError
        task = asyncio.create_task(coroutine)
        self._stoppable.append(task)
        try:
            return await task
        finally:
            self._stoppable.remove(task)

    async def outlast(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits to the end, turning Temporal's cancel into a halt."""
        task = asyncio.create_task(coroutine)
        while not task.done():
            try:
                await workflow.wait_condition(task.done)
            except asyncio.CancelledError:
                self.request(workflow.cancellation_reason() or "cancelled in Temporal")
        return task.result()
