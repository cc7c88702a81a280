"""How a run is stopped from outside without cutting an effect in half (B7).

A halt comes from Temporal's own cancel, from the signal `cancel`, or from a result that breaks the protocol. The root
turns each into a cancel of what is running. Waits end at once, and so do reads and model calls; an activity that is
having its effect finishes it and returns its result, which then counts.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

T = TypeVar("T")

MOST_WAIT = timedelta(minutes=3)  # for what is running to come to its end, once the run is to stop
MORE_WAIT = timedelta(seconds=20)  # for each level of a tree below it, which then has this to close


class Halt:
    def __init__(self) -> None:
        self.reason: str | None = None
        self.levels = 0  # of runs that have to stop first
        self._stoppable: list[asyncio.Task[Any]] = []
        self._stopped = False
        self._stopping: asyncio.Task[None] | None = None  # held, as the loop holds no task

    def request(self, reason: str) -> None:
        """Nothing begins from now on, and what may be stopped is stopped. The first reason stays."""
        if self.reason is None:
            self.reason = reason
            self._stopping = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        # A task that is cancelled as its activity ends loses the result, so what came with the halt is taken in first.
        await workflow.wait_condition(lambda: True)
        for task in list(self._stoppable):
            task.cancel()
        self._stopped = True

    def check(self) -> None:
        """Raises CancelledError once a halt is requested; stands before each next thing to do."""
        if self.reason is not None:
            raise asyncio.CancelledError

    async def stoppable(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits what hears of a halt. Raises CancelledError where that ended it, or came before it."""
        if self.reason is not None:
            coroutine.close()
            raise asyncio.CancelledError
        task = asyncio.create_task(coroutine)
        self._stoppable.append(task)
        try:
            return await task
        finally:
            self._stoppable.remove(task)

    async def outlast(self, coroutine: Coroutine[Any, Any, T], most: timedelta | None = None) -> T:
        """Awaits to the end, turning Temporal's cancel into a halt; after one, for `most` of time, longer above others.

        Raises CancelledError where that was not enough.
        """
        task = asyncio.create_task(coroutine)
        deadline: float | None = None
        while not task.done():
            if deadline is None and most is not None and self.reason is not None:
                deadline = workflow.time() + (most + self.levels * MORE_WAIT).total_seconds()
            halted = self.reason is not None
            try:
                await workflow.wait_condition(
                    lambda: task.done() or (self._stopped and not halted),  # noqa: B023 - awaited in this round
                    timeout=None if deadline is None else max(deadline - workflow.time(), 0.001),
                    timeout_summary="finish what is running, then stop",
                )
            except asyncio.CancelledError:
                self.request(workflow.cancellation_reason() or "cancelled in Temporal")
            except TimeoutError:
                raise asyncio.CancelledError from None
        return task.result()
