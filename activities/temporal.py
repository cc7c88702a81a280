"""Requests to the Temporal server, and the ids of the workflow that an activity works for."""

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from decisions.ids import run_id_of_workflow

FUTURE_TIMEOUT = 0.05  # seconds; the future is done by then, or never will be

T = TypeVar("T")


def own_workflow_id() -> str:
    return activity.info().workflow_id or ""


def own_run_id() -> str:
    return run_id_of_workflow(own_workflow_id())


async def cancel_own_workflow(client: Client, reason: str) -> None:
    """Cancel the activity's workflow on the server: only that ends it as Canceled."""
    handle = client.get_workflow_handle(own_workflow_id(), run_id=activity.info().workflow_run_id)
    # Temporal keeps this reason as plain text; if payloads are encrypted, only the signal carries it.
    await handle.cancel(reason=reason if client.data_converter.payload_codec is None else "")


class IgnoreMissing(AbstractContextManager[None, bool]):
    """Ignores the error that the server does not know the workflow."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND


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
    """Raise CancelledError if the caller is being cancelled: the SDK raises the same error for that and a deadline."""
    if (caller := asyncio.current_task()) is not None and caller.cancelling():
        raise asyncio.CancelledError from None
