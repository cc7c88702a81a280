"""An update of a workflow that is started where there is none."""

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from activities.update import must_not_be_cancelled

MOMENT = 0.05  # seconds; the future is done by then, or never will be

T = TypeVar("T")


async def update_with_start(client: Client, name: str, body: Any, start: dict[str, Any], result_type: type[T]) -> T:
    """`start` are the arguments of WithStartWorkflowOperation.

    Raises WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, RPCError.
    """
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(**start)
    try:
        answer: T = await client.execute_update_with_start_workflow(
            name, body, start_workflow_operation=operation, result_type=result_type
        )
    except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The SDK keeps the error in a future, too, which would tell the log, with a traceback, that nobody looked.
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT):
                await asyncio.gather(operation.workflow_handle(), return_exceptions=True)
        must_not_be_cancelled()
        raise
    return answer
