"""Classification of a failed activity: did it run, and may it have had its effect?"""

from enum import StrEnum

from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut

from activities.effects.attempts import WORKER_SHUTDOWN
from contracts.failures import Stop, ToolFault
from contracts.tool import Effect, ToolOutcome, failed


class Fate(StrEnum):
    cancelled = "cancelled"  # stopped before it did anything
    failed = "failed"  # it raised the error itself
    late = "late"  # it used up its time
    lost = "lost"  # its worker died or was shut down
    in_doubt = "in_doubt"  # the ledger has its claim, and no outcome
    not_begun = "not_begun"  # the ledger accepts no claim, for now


_STOPS: dict[str, Fate] = {Stop.in_doubt: Fate.in_doubt, Stop.not_begun: Fate.not_begun}


def fate(error: ActivityError) -> Fate:
    """Classify the error of an activity whose cancel waits for its end and stops it only before its effect."""
    cause = error.cause
    if isinstance(cause, CancelledError):
        return Fate.cancelled
    if isinstance(cause, ApplicationError):
        return Fate.lost if cause.type == WORKER_SHUTDOWN else _STOPS.get(cause.type or "", Fate.failed)
    if isinstance(cause, TimedOut):
        return Fate.lost if cause.type is TimeoutType.HEARTBEAT else Fate.late
    return Fate.lost


def told(error: ActivityError, effect: Effect) -> ToolOutcome:
    """Return the failure as an outcome for the model."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        tried = " (it may have happened)" if effect is Effect.once else " (three retries did not help)"
        tried = "" if cause.non_retryable else tried
        return failed(cause.type or ToolFault.tool_error, f"{cause.message}{tried}", retryable=not cause.non_retryable)
    happened = "" if effect is Effect.read else "; it may have happened"
    return failed(ToolFault.timeout, f"the call did not come to an end in time{happened}", retryable=True)
