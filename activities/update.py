"""Workflow updates: with a deadline, and with a start of the workflow if needed.

The SDK raises one error for a deadline and for the caller's own cancellation. Here they are separate again.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

MOMENT = 0.05  # seconds in which the operation's future is done, if ever

T = TypeVar("T")


async def answered(update: Awaitable[T], seconds: float) -> T:
    """Return the update's result. Raises TimeoutError after `seconds`, and the update's errors."""
    try:
        async with asyncio.timeout(seconds):
            try:
                return await update
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                raise_if_cancelled()
                raise TimeoutError from None  # the server gave up first
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def raise_if_cancelled() -> None:
    """Raise CancelledError if the current task is being cancelled."""
    if (caller := asyncio.current_task()) is not None and caller.cancelling():
        raise asyncio.CancelledError from None


async def update_with_start(client: Client, name: str, body: Any, start: dict[str, Any], result_type: type[T]) -> T:
    """Run an update, starting the workflow if needed. `start`: the arguments of WithStartWorkflowOperation.

    Raises WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, RPCError.
    """
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(**start)
    try:
        answer: T = await client.execute_update_with_start_workflow(
            name, body, start_workflow_operation=operation, result_type=result_type
        )
    except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The SDK also sets the error on a future, which would log a traceback if it were never awaited.
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT):
                await asyncio.gather(operation.workflow_handle(), return_exceptions=True)
        raise_if_cancelled()
        raise
    return answer
