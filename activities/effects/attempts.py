"""The attempts of an activity: its heartbeats, which attempts count, and how the previous one ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.storage.store import StoredFileChangedError
from perdure.activities.storage.watchers import CHECK_EVERY, WatchedRuns
from perdure.activities.temporal import own_run_id
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import WORKER_SHUTDOWN, RunFailure
from perdure.contracts.models import HEARTBEAT_TIMEOUT

MARGIN = timedelta(seconds=3)  # for a heartbeat to arrive


def beat_interval(timeout: timedelta) -> timedelta:
    """Return the time between heartbeats: 0.8 of the timeout, or less to leave `MARGIN`, but at least a quarter."""
    return min(timeout * 0.8, max(timeout - MARGIN, timeout / 4))


@dataclass(frozen=True)
class BeatPolicy:
    """A worker's reason to heartbeat more often: the runs that are watched."""

    watched: WatchedRuns | None = None


@dataclass
class Pulse:
    """The heartbeats of one attempt. A wall clock measures the lease, because it also runs while a machine sleeps."""

    timeout: timedelta
    _beat_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _beat_since: float = field(default_factory=monotonic)

    @property
    def seconds_left(self) -> float:
        """Seconds until the next heartbeat is due."""
        every = beat_interval(self.timeout).total_seconds()
        return max(0.0, self._beat_since + every - monotonic())

    @property
    def lease_end(self) -> datetime:
        """The time until which the server cannot have given up the worker, with half the slack left for delays."""
        return self._beat_at + (self.timeout + beat_interval(self.timeout)) / 2

    def beat(self, details: Any) -> None:
        activity.heartbeat(details)
        self._beat_at, self._beat_since = datetime.now(UTC), monotonic()


_policy: ContextVar[BeatPolicy] = ContextVar("_policy", default=BeatPolicy())  # noqa: B039 - it is frozen
_pulse: ContextVar[Pulse | None] = ContextVar("_pulse", default=None)


def beat_policy() -> BeatPolicy:
    return _policy.get()


def start_pulse() -> Pulse:
    """Return the pulse of the current attempt, which begins now."""
    pulse = Pulse(activity.info().heartbeat_timeout or HEARTBEAT_TIMEOUT)
    _pulse.set(pulse)
    return pulse


def current_lease_end() -> datetime:
    """Return `Pulse.lease_end` of the current attempt."""
    return (_pulse.get() or Pulse(HEARTBEAT_TIMEOUT)).lease_end


class BeatInterceptor(Interceptor):
    """Gives a worker's activities its policy, which may change before the worker runs."""

    def __init__(self, policy: BeatPolicy) -> None:
        self.policy = policy

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002 - the SDK's
    ) -> ActivityInboundInterceptor:
        return _Inbound(next, self)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, given: BeatInterceptor) -> None:
        super().__init__(inner)
        self._given = given

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        _policy.set(self._given.policy)
        return await super().execute_activity(input)


PROGRESS_CHECK_EVERY = 0.25  # seconds between checks for new progress of a watched run
HOLDS_KEY = "holds"  # heartbeat key: how many earlier attempts were held back
HOLD_KEY = "hold"  # heartbeat key: the `Hold` of the latest that waited on the server
SPENT_KEY = "spent"  # heartbeat key: seconds that earlier failed attempts took
FILE_PAUSES = Backoff(1.0, 300.0)  # between two checks of a stored file that was changed


@asynccontextmanager
async def heartbeating(progress: Callable[[], Any]) -> AsyncIterator[None]:
    """Heartbeat while the block runs. `progress` returns the details; if the run is watched, changes are sent at once.

    A local activity sends none: its workflow task already shows that the worker is alive.
    """
    if activity.info().is_local:
        yield
        return
    task = asyncio.create_task(_send_heartbeats(progress, start_pulse()))
    try:
        yield
    finally:
        task.cancel()


async def _send_heartbeats(progress: Callable[[], Any], pulse: Pulse) -> None:
    watched, last = beat_policy().watched, progress()
    while True:
        is_watched = watched is not None and await watched.has(own_run_id())
        if not pulse.seconds_left or (is_watched and progress() != last):
            last = progress()
            pulse.beat(last)
        await asyncio.sleep(min(PROGRESS_CHECK_EVERY if is_watched else CHECK_EVERY, pulse.seconds_left))


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


@dataclass(frozen=True)
class Attempt:
    """An attempt. `number` counts from 1, without the `holds`: attempts held back before they began.

    `spent` is the seconds that earlier failed attempts took, and `hold` the latest wait on the server. The next attempt
    reads them from the `beat_details`, which each heartbeat must carry.
    """

    number: int
    holds: int
    spent: float = 0.0
    hold: Mapping[str, Any] | None = None

    @property
    def beat_details(self) -> dict[str, Any]:
        known = ((HOLDS_KEY, self.holds), (SPENT_KEY, self.spent), (HOLD_KEY, self.hold))
        return {name: value for name, value in known if value}


def this_attempt() -> Attempt:
    info = activity.info()
    beat = info.heartbeat_details[0] if info.heartbeat_details else None
    known = beat if isinstance(beat, dict) else {}
    holds = known.get(HOLDS_KEY, 0)
    return Attempt(info.attempt - holds, holds, known.get(SPENT_KEY, 0.0), known.get(HOLD_KEY))


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
            pause = FILE_PAUSES.pause(this.holds + 1)
            raise RateLimitedError(str(error), type=type(error).__name__, next_retry_delay=pause) from None
    except RateLimitedError:
        activity.heartbeat({**this.beat_details, HOLDS_KEY: this.holds + 1})
        raise
    except Exception:
        activity.heartbeat({**this.beat_details, SPENT_KEY: this.spent + monotonic() - began})
        raise


@asynccontextmanager
async def counting_attempts(client: Client, limit: int) -> AsyncIterator[Attempt]:
    """Run the block as one of `limit` attempts. Temporal cannot count them: it would include those held back."""
    this = this_attempt()
    if this.number > limit:
        # The previous attempt reported nothing: it was lost with its worker, or timed out.
        message, kind = "the model did not answer in time, again and again", str(RunFailure.model_unavailable)
        if await was_lost(client):
            message, kind = "lost with its worker, again and again", WORKER_SHUTDOWN
        raise ApplicationError(message, type=kind, non_retryable=True)
    try:
        with counting_holds(this):
            yield this
    except Exception as error:
        if this.number < limit or isinstance(error, RateLimitedError) or getattr(error, "non_retryable", False):
            raise
        if not isinstance(error, ApplicationError):
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error.__cause__
        raise ApplicationError(error.message, *error.details, type=error.type, non_retryable=True) from error.__cause__
