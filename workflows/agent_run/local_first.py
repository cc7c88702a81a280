"""What a run does with its own files at its start and end: in passing where that goes, else where everybody sees it.

A local activity is made by the worker that has the run in hand, and costs the server nothing but a line in history: no
task of its own, and no further workflow task. But while it lasts it is shown nowhere, and no signal is heard. So it has
little time and one attempt; whatever hinders it, a full disk or a share that hangs, an ordinary activity waits out.
"""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from workflows.policies import FILES, IN_PASSING, WAIT_FOR_END


async def filed(what: Any, request: Any, summary: str) -> Any:
    """The result of the activity `what`, which may be repeated. Raises ActivityError, and CancelledError of asyncio."""
    try:
        return await workflow.execute_local_activity_method(what, request, summary=summary, **IN_PASSING)
    except FailureError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # by the run itself; a worker that shuts down cancels, too
            raise asyncio.CancelledError from None
    return await filed_in_sight(what, request, summary)


async def filed_in_sight(what: Any, request: Any, summary: str) -> Any:
    """The same, for what may take its time: tried until it is done, and shown meanwhile."""
    return await workflow.execute_activity_method(
        what, request, summary=summary, cancellation_type=WAIT_FOR_END, **FILES
    )
