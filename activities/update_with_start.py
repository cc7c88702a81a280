"""Updates with a deadline, and updates that start their workflow if it does not run.

The SDK raises the same error for a deadline and for the caller's own cancellation; these functions separate the two.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

FUTURE_TIMEOUT = 0.05  # seconds; the future is done by then, or never will be

T = TypeVar("T")


async def update_with_start(client: Client, name: str, body: Any, start: dict[str, Any], result_type: type[T]) -> T:
    """Send an update, and start the workflow if needed. `start` holds the arguments of WithStartWorkflowOperation.

    Raises WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, RPCError.
    """
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(**start)
    try:
        answer: T = await client.execute_update_with_start_workflow(
            name, body, start_workflow_operation=operation, result_type=result_type
        )
    except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The SDK also keeps the error in a future; if that is never awaited, asyncio logs it with a traceback.
        with suppress(TimeoutError):
            async with asyncio.timeout(FUTURE_TIMEOUT):
                await asyncio.gather(operation.workflow_handle(), return_exceptions=True)
        _must_not_be_cancelled()
        raise
    return answer


async def await_update(update: Awaitable[T], seconds: float) -> T:
    """Await an update's answer. Raises TimeoutError after `seconds`, and the update's own errors."""
    try:
        async with asyncio.timeout(seconds):
            try:
                return await update
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                _must_not_be_cancelled()
                raise TimeoutError from None  # the server's timeout was shorter
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def _must_not_be_cancelled() -> None:
    """Raise CancelledError if the caller is being cancelled, whatever the SDK raised."""
    if (caller := asyncio.current_task()) is not None and caller.cancelling():
        raise asyncio.CancelledError from None
