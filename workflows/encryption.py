"""Rules for runs with encrypted payloads, which the workflow itself sees decrypted.

Search attributes are never encrypted, so an encrypted run puts no texts there. An activity that a worker without the
run's key takes has not begun: it is scheduled again, whatever its retry policy allows, until a worker with the key
takes it.
"""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from workflows.cancellation import Cancellation

KEY_WAIT = timedelta(seconds=10)  # people add keys and restart workers

_CONFIDENTIAL = "perdure_is_confidential"
_UNKNOWN_KEY = "UnknownKey"  # the codec's own error, as Temporal names it

T = TypeVar("T")


class ConfidentialInterceptor(Interceptor):
    """Marks the runs of a worker with a codec as encrypted."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the name that the SDK gives it
    ) -> type[WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions[_CONFIDENTIAL] = bool
        return None


def is_confidential() -> bool:
    """Return whether the payloads of this run are encrypted."""
    return _CONFIDENTIAL in workflow.extern_functions()


async def retry_until_decryptable(cancellation: Cancellation, schedule: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Schedule an activity until a worker takes it that can decrypt it, and return its result."""
    while True:
        try:
            return await schedule()
        except ActivityError as error:
            if not _was_undecryptable(error):
                raise
        await cancellation.cancellable(workflow.sleep(KEY_WAIT, summary="a worker lacks the key of this run"))


def _was_undecryptable(error: ActivityError) -> bool:
    """Return whether the arguments could not be decrypted, so that nothing has happened."""
    cause = error.cause.cause if isinstance(error.cause, ApplicationError) else None
    return isinstance(cause, ApplicationError) and cause.type == _UNKNOWN_KEY
