"""A failed activity, as a kind that decisions know, and as an outcome for the model."""

from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut

from activities.effects.attempts import WORKER_SHUTDOWN
from contracts.failures import Stop, ToolFault
from contracts.tool import RETRIES_USED_UP, Effect, ToolOutcome, error_outcome
from decisions.run.recovery import FailureKind

_KIND_OF_STOP: dict[str, FailureKind] = {Stop.in_doubt: FailureKind.in_doubt, Stop.not_begun: FailureKind.not_begun}


def classify_failure(error: ActivityError) -> FailureKind:
    """Classify the error of an activity whose cancel waits for its end and stops it only before its effect."""
    cause = error.cause
    if isinstance(cause, CancelledError):
        return FailureKind.cancelled
    if isinstance(cause, ApplicationError):
        return (
            FailureKind.lost
            if cause.type == WORKER_SHUTDOWN
            else _KIND_OF_STOP.get(cause.type or "", FailureKind.failed)
        )
    if isinstance(cause, TimedOut):
        return FailureKind.lost if cause.type is TimeoutType.HEARTBEAT else FailureKind.late
    return FailureKind.lost


def to_tool_outcome(error: ActivityError, effect: Effect) -> ToolOutcome:
    """Return the failure as an outcome for the model."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        tried = " (it may have happened)" if effect is Effect.once else RETRIES_USED_UP
        tried = "" if cause.non_retryable else tried
        return error_outcome(
            cause.type or ToolFault.tool_error, f"{cause.message}{tried}", retryable=not cause.non_retryable
        )
    happened = "" if effect is Effect.read else "; it may have happened"
    return error_outcome(ToolFault.timeout, f"the call did not come to an end in time{happened}", retryable=True)
