"""When an activity heartbeats, and how long its worker may rely on the server considering it alive.

Temporal bills each heartbeat. Without a watcher, one is sent only when the heartbeat timeout, with which the activity
was scheduled, requires it.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.storage.watchers import WatchedRuns
from contracts.duration import HEARTBEAT_TIMEOUT

ALIVE_EVERY = 5.0  # seconds, if cancels arrive with heartbeats only: a read continues for this long after one
MARGIN = timedelta(seconds=3)  # for a heartbeat to arrive


def beat_interval(timeout: timedelta) -> timedelta:
    """Return the time between heartbeats: 0.8 of the timeout, or less to leave `MARGIN`, but at least a quarter."""
    return min(timeout * 0.8, max(timeout - MARGIN, timeout / 4))


@dataclass(frozen=True)
class BeatPolicy:
    """A worker's reasons to heartbeat more often. `hears_cancels`: the server sends it cancels in worker commands."""

    watched: WatchedRuns | None = None
    hears_cancels: bool = False


@dataclass
class Pulse:
    """The heartbeats of one attempt. A wall clock measures the lease, because it also runs while a machine sleeps."""

    timeout: timedelta
    hears_cancels: bool = False
    _beat_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _beat_since: float = field(default_factory=monotonic)

    @property
    def seconds_left(self) -> float:
        """Seconds until the next heartbeat is due."""
        every = beat_interval(self.timeout).total_seconds()
        every = every if self.hears_cancels else min(every, ALIVE_EVERY)
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
    pulse = Pulse(activity.info().heartbeat_timeout or HEARTBEAT_TIMEOUT, beat_policy().hears_cancels)
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
