"""An update that is answered in time, or not at all.

The SDK makes one error of a deadline and of the caller's own cancellation: here each is what it was again.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

T = TypeVar("T")


async def answered(update: Awaitable[T], seconds: float) -> T:
    """Raises TimeoutError where nobody has answered by then, and what the update raises."""
    try:
        async with asyncio.timeout(seconds):
            try:
                return await update
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                must_not_be_cancelled()
                raise TimeoutError from None  # the server gave up first
    except TimeoutError:
        raise TimeoutError(f"nobody has answered within {seconds:g} s") from None


def must_not_be_cancelled() -> None:
    """Raises CancelledError where the caller is being cancelled, whatever the SDK has made of it."""
    if (caller := asyncio.current_task()) is not None and caller.cancelling():
        raise asyncio.CancelledError from None
