"""What became of an activity that failed: did it run, and may it have done its work?"""

from enum import StrEnum

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    TimeoutType,
)
from temporalio.exceptions import (
    TimeoutError as TimedOut,
)

from contracts.failures import ToolFault
from contracts.tool import Effect, ToolOutcome, failed


class Fate(StrEnum):
    cancelled = "cancelled"
    failed = "failed"  # it said so itself
    in_doubt = "in_doubt"  # nobody knows: the worker died, was shut down, or ran out of time


def fate(error: ActivityError) -> Fate:
    """Valid for activities that a cancel waits for; in doubt matters where there is a single attempt."""
    cause = error.cause
    if isinstance(cause, CancelledError):
        return Fate.cancelled
    if isinstance(cause, ApplicationError) and cause.type != "WorkerShutdown":
        return Fate.failed
    if isinstance(cause, TimedOut) and cause.type is TimeoutType.SCHEDULE_TO_START:
        return Fate.failed
    return Fate.in_doubt


def told(error: ActivityError, effect: Effect) -> ToolOutcome:
    """The failure as an outcome for the model."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        tried = ""
        if not cause.non_retryable:
            tried = " (it may have happened)" if effect is Effect.once else " (three retries did not help)"
        return failed(cause.type or ToolFault.tool_error, f"{cause.message}{tried}", retryable=not cause.non_retryable)
    return failed(ToolFault.timeout, "the call did not come to an end in time", retryable=True)
