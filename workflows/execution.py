"""Activities as a workflow runs them: on a worker that can decrypt them, cancelled in order, or local first.

A local activity runs in the worker that has the workflow, and costs the server one line of history: no task of its own,
and no further workflow task. But while it runs it is shown nowhere, and no signal is handled. So it has little time and
one attempt; a full disk or a share that hangs is waited out by a normal activity.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError
from temporalio.workflow import ActivityHandle

from activities.run.status import RunWatcher
from contracts.conversation import Ended
from workflows.cancellation import Cancellation
from workflows.policies import FILES, LOCAL_ACTIVITY, WAIT_FOR_END, WATCHING, Policy

Q = TypeVar("Q")
R = TypeVar("R")

KEY_WAIT = timedelta(seconds=10)  # people add keys and restart workers
_UNKNOWN_KEY = "UnknownKeyError"  # the codec's own error, as Temporal names it


async def execute_activity(
    cancellation: Cancellation,
    activity: Callable[[Any, Q], Awaitable[R]],
    request: Q,
    summary: str,
    policy: Policy = FILES,
) -> R:
    """Run an activity, and again until a worker can decrypt its request. Raises ActivityError if it fails.

    A worker without the run's key has not begun it, so this repeats whatever the retry policy allows. A cancel of this
    task asks the activity to stop, and waits for how it ends.
    """
    named: Any = activity

    while True:
        try:
            result: R = await workflow.execute_activity(
                named, request, summary=summary, cancellation_type=WAIT_FOR_END, **policy
            )
            return result
        except ActivityError as error:
            if not _was_undecryptable(error):
                raise
        await cancellation.cancellable(workflow.sleep(KEY_WAIT, summary="a worker lacks the key of this run"))


def _was_undecryptable(error: ActivityError) -> bool:
    """Return whether the arguments could not be decrypted, so that nothing has happened."""
    cause = error.cause.cause if isinstance(error.cause, ApplicationError) else None
    return isinstance(cause, ApplicationError) and cause.type == _UNKNOWN_KEY


async def execute_locally_first(
    cancellation: Cancellation, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str
) -> R:
    """Run a repeatable activity as a local one, and if that fails as a normal one.

    Raises ActivityError, and asyncio.CancelledError.
    """
    named: Any = activity
    try:
        result: R = await workflow.execute_local_activity(named, request, summary=summary, **LOCAL_ACTIVITY)
    except FailureError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # by the run itself; a worker that shuts down cancels, too
            raise asyncio.CancelledError from None
    else:
        return result
    return await execute_activity(cancellation, activity, request, summary)


def start_watch(workflow_id: str, summary: str, *, is_ending: bool = False) -> ActivityHandle[Ended]:
    """Begin to wait for the end of a workflow that this one has no handle for, since it did not start it."""
    args: list[Any] = [workflow_id, *([True] if is_ending else [])]
    return workflow.start_activity_method(RunWatcher.watch_run, args=args, summary=summary, **WATCHING)


async def watch_or_cancel(workflow_id: str, summary: str) -> None:
    """Wait for the end of a workflow; a cancel of the wait cancels that workflow, and still waits for its end."""
    try:
        await start_watch(workflow_id, summary)
    except ActivityError as error:
        if not isinstance(error.cause, CancelledError):
            raise
        with suppress(ApplicationError):  # it has ended
            await workflow.get_external_workflow_handle(workflow_id).cancel()
        await start_watch(workflow_id, summary)
