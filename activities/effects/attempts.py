"""The attempts of an activity: which of them count, and how the previous one ended."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from temporalio import activity
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.model.rate_limit import RateLimitedError
from activities.storage.store import StoredFileChangedError
from contracts.failures import RunFailure

WORKER_SHUTDOWN = "WorkerShutdown"  # failure type of activities that a stopping worker gives up
HOLDS_KEY = "holds"  # heartbeat key: how many earlier attempts were held back
SPENT_KEY = "spent"  # heartbeat key: seconds that earlier failed attempts took


async def was_lost(client: Client) -> bool:
    """Return True if the previous attempt was lost with its worker, and did not fail by itself."""
    info = activity.info()
    if info.attempt == 1:
        return False
    run = client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    for pending in (await run.describe()).raw_description.pending_activities:
        if pending.activity_id == info.activity_id:
            failure = pending.last_failure
            died = failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
            return died or failure.application_failure_info.type == WORKER_SHUTDOWN
    return False


MAX_FILE_PAUSE = 300.0  # seconds between two checks of a stored file that was changed


@dataclass(frozen=True)
class Attempt:
    """An attempt. `number` counts from 1, without the `holds`: attempts held back before they called the model.

    `spent` is the seconds that earlier failed attempts took. Each heartbeat must carry `told`: the next attempt reads
    both from it.
    """

    number: int
    holds: int
    spent: float = 0.0

    @property
    def beat_details(self) -> dict[str, float]:
        return {name: value for name, value in ((HOLDS_KEY, self.holds), (SPENT_KEY, self.spent)) if value}


def this_attempt() -> Attempt:
    info = activity.info()
    beat = info.heartbeat_details[0] if info.heartbeat_details else None
    known = beat if isinstance(beat, dict) else {}
    holds = known.get(HOLDS_KEY, 0)
    return Attempt(info.attempt - holds, holds, known.get(SPENT_KEY, 0.0))


@contextmanager
def counting_holds(this: Attempt) -> Iterator[None]:
    """If the block fails, report the reason and duration to the next attempt. The block must have stopped its beats.

    A changed stored file counts as a hold: the run waits until the original file is back.
    """
    began = monotonic()
    try:
        try:
            yield
        except StoredFileChangedError as error:
            raise _to_hold(error, this) from None
    except RateLimitedError:
        activity.heartbeat({**this.beat_details, HOLDS_KEY: this.holds + 1})
        raise
    except Exception:
        activity.heartbeat({**this.beat_details, SPENT_KEY: this.spent + monotonic() - began})
        raise


def _to_hold(error: StoredFileChangedError, this: Attempt) -> RateLimitedError:
    pause = timedelta(seconds=min(2.0 ** min(this.holds, 10), MAX_FILE_PAUSE))
    return RateLimitedError(str(error), type=type(error).__name__, next_retry_delay=pause)


@asynccontextmanager
async def counting_attempts(client: Client, limit: int) -> AsyncIterator[Attempt]:
    """Run the block as one of `limit` attempts. Temporal cannot count them: it would include those held back."""
    this = this_attempt()
    if this.number > limit:
        raise await _out_of_attempts_error(client)
    try:
        with counting_holds(this):
            yield this
    except Exception as error:
        if this.number < limit or isinstance(error, RateLimitedError) or getattr(error, "non_retryable", False):
            raise
        raise as_final_error(error) from error.__cause__


def as_final_error(error: Exception) -> ApplicationError:
    """Return the error as one that Temporal does not retry."""
    if isinstance(error, ApplicationError):
        return ApplicationError(error.message, *error.details, type=error.type, non_retryable=True)
    return ApplicationError(str(error), type=type(error).__name__, non_retryable=True)


async def _out_of_attempts_error(client: Client) -> ApplicationError:
    """The error of a last attempt that reported nothing: it was lost with its worker, or timed out."""
    if await was_lost(client):
        return ApplicationError("lost with its worker, again and again", type=WORKER_SHUTDOWN, non_retryable=True)
    message = "the model did not answer in time, again and again"
    return ApplicationError(message, type=RunFailure.model_unavailable, non_retryable=True)
