"""What encryption asks of a run, whose workflow sees everything decrypted.

Search attributes are never encrypted, so words do not go there where payloads are. And an activity that a worker
without its key takes has not begun: it is scheduled again, whatever its retries allow, until a worker with the key is
there.
"""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from workflows.cancellation import Halt

KEY_WAIT = timedelta(seconds=10)  # people add keys, and start workers anew

_TOLD = "perdure_is_confidential"
_UNKNOWN_KEY = "UnknownKey"  # the codec's own error, as Temporal names it

T = TypeVar("T")


class Confidential(Interceptor):
    """For workers that have a codec: they tell their runs."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name that the SDK gives it
    ) -> type[WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions[_TOLD] = bool
        return None


def is_confidential() -> bool:
    """Whether the payloads of this run are encrypted."""
    return _TOLD in workflow.extern_functions()


async def readable(halt: Halt, schedule: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the activity brings, once it is taken by a worker that can read it."""
    while True:
        try:
            return await schedule()
        except ActivityError as error:
            if not _was_unreadable(error):
                raise
        await halt.stoppable(workflow.sleep(KEY_WAIT, summary="a worker lacks the key of this run"))


def _was_unreadable(error: ActivityError) -> bool:
    """Its arguments could not be decrypted, so nothing of it has happened."""
    why = error.cause.cause if isinstance(error.cause, ApplicationError) else None
    return isinstance(why, ApplicationError) and why.type == _UNKNOWN_KEY
