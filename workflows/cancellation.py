"""Cancellation of a workflow from outside, without cutting an effect in half (B7).

A workflow is cancelled by Temporal's own cancel, by the signal `cancel`, or by a result that breaks the protocol. Each
cancels the workflow's cancellable tasks. Waits end at once, and so do reads and model calls; an activity that is having
its effect finishes it, and its result counts.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

T = TypeVar("T")

MAX_STOP_TIME = timedelta(minutes=3)  # for running activities to end after a cancel
STOP_TIME_PER_LEVEL = timedelta(seconds=20)  # for each level of runs below it, which has its own files to close


class Cancellation:
    def __init__(self) -> None:
        self.reason: str | None = None
        self.levels = 0  # of runs below this one that have to stop first
        self._stoppable: list[asyncio.Task[Any]] = []
        self._stopped = False
        self._stopping: asyncio.Task[None] | None = None  # kept, since the event loop holds no task

    def request(self, reason: str) -> None:
        """Start nothing from now on, and stop what is cancellable. The first reason stays."""
        if self.reason is None:
            self.reason = reason
            self._stopping = asyncio.create_task(self._cancel_tasks())

    async def _cancel_tasks(self) -> None:
        # A task that is cancelled as its activity ends loses the result, so results of this activation come first.
        await workflow.wait_condition(lambda: True)
        for task in list(self._stoppable):
            task.cancel()
        self._stopped = True

    def raise_if_cancelled(self) -> None:
        """Raises CancelledError once a cancel is requested; to be called before each next step."""
        if self.reason is not None:
            raise asyncio.CancelledError

    async def cancellable(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that a cancel stops. Raises CancelledError if that ended it, or came before it."""
        if self.reason is not None:
            coroutine.close()
            raise asyncio.CancelledError
        task = asyncio.create_task(coroutine)
        self._stoppable.append(task)
        try:
            return await task
        finally:
            self._stoppable.remove(task)

    async def shield(self, coroutine: Coroutine[Any, Any, T], limit: timedelta | None = None) -> T:
        """Await a coroutine to its end, and turn Temporal's cancel into a request.

        Raises CancelledError if it lasts longer than `limit` after a request, or somewhat more with runs below it.
        """
        task = asyncio.create_task(coroutine)
        deadline: float | None = None
        while not task.done():
            if deadline is None and limit is not None and self.reason is not None:
                deadline = workflow.time() + (limit + self.levels * STOP_TIME_PER_LEVEL).total_seconds()
            was_requested = self.reason is not None
            try:
                await workflow.wait_condition(
                    lambda: task.done() or (self._stopped and not was_requested),  # noqa: B023 - awaited in this round
                    timeout=None if deadline is None else max(deadline - workflow.time(), 0.001),
                    timeout_summary="finish what is running, then stop",
                )
            except asyncio.CancelledError:
                self.request(workflow.cancellation_reason() or "cancelled in Temporal")
            except TimeoutError:
                raise asyncio.CancelledError from None
        return task.result()
