"""A provider's rate limit within one worker: calls are spaced, and a 429 holds back all of them.

The rate adapts as in TCP: it grows with each success, and each 429 halves it. A call with a long wait leaves its
activity slot and is retried.
"""

import random
from asyncio import sleep
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.contracts.bounds import MAX_RETRY_AFTER, Backoff
from perdure.contracts.failures import RunFailure

REFUSAL_PAUSES = Backoff(1.0, MAX_RETRY_AFTER)  # if a 429 asks for none
MAX_SLOT_WAIT = 5.0  # seconds that a call waits in its activity slot
MAX_RETURN_SPREAD = 15.0  # seconds over which calls that left their slot return
MAX_SHUT_TIME = 600.0  # seconds; calls fail for good if the provider accepts none for so long
START_RATE = 20.0  # calls a second, before the first 429
MIN_RATE = 1 / 60  # calls a second, after any number of 429s
# Calls a second, added by each success: until the first 429, and after it. With a limit of 20 a second, one call in a
# hundred gets a 429. The gain must not shrink with the rate: 429s caused by other users of the same limit would
# reduce the rate to nothing.
FAST_GAIN, SLOW_GAIN = 1.0, 0.1


class RateLimitedError(ApplicationError):
    """The model was not called, because of its provider's rate limit. This does not use up an attempt."""


class RateLimiter:
    """Spaces one worker's calls to a provider. `requests_per_minute` is the upper bound."""

    def __init__(
        self, provider: str, requests_per_minute: float | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._limit = requests_per_minute / 60 if requests_per_minute else float("inf")
        self._rate = min(START_RATE, self._limit)
        self._was_refused = False
        self._next = 0.0  # when the next call may begin
        self._closed_until = 0.0
        self._closed_at = 0.0  # calls that began earlier change nothing
        self._refusals = 0  # since the last success
        self._shut_since: float | None = None
        self._waiting = 0  # calls in their slots
        self._away: dict[str, float] = {}  # callers that left their slot: when they return

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self._rate

    @property
    def waiting(self) -> int:
        """The calls that wait in their slots, and those that left theirs."""
        return self._waiting + len(self._away)

    def change_limit(self, calls_a_second: float) -> None:
        """Change the upper bound. A rate that no 429 has reduced follows it."""
        follows = not self._was_refused or self._rate == self._limit
        self._limit = calls_a_second
        self._rate = calls_a_second if follows else min(self._rate, calls_a_second)

    def close_for(self, seconds: float) -> None:
        """Hold back all calls for so long."""
        self._closed_until = max(self._closed_until, self._clock() + seconds)

    async def await_slot(self, caller: str, report: Callable[[str], object]) -> float:
        """Wait until a call may begin, and return that time, for the `record_…` methods. `report` receives the reason.

        Raises RateLimitedError with the delay if the wait is long, or ApplicationError `RateLimited`, not retryable,
        if the provider has accepted no call for `MAX_SHUT_TIME`.
        """
        has_left = self._away.pop(caller, None) is not None
        limit = MAX_SLOT_WAIT if has_left or not self._away else MAX_SLOT_WAIT / 2  # room for callers that left before
        while True:
            now, closed_at = self._clock(), self._closed_at
            at = max(now, self._next, self._closed_until)
            if at - now > limit:
                raise self._send_away(caller, at - now)
            self._next = at + 1 / self._rate
            if at > now:
                report(f"held back by the rate limit of {self._provider}, {at - now:.1f} s")
                self._waiting += 1
                try:
                    await sleep(at - now)
                finally:
                    self._waiting -= 1
            if self._closed_at == closed_at and self._closed_until <= self._clock():
                report("")
                return self._clock()

    def record_success(self, began: float) -> None:
        """Record a success: if calls wait, raise the rate."""
        if began >= self._closed_at:
            self._refusals, self._shut_since = 0, None
        if not self.waiting:
            return
        self._rate = min(self._rate + (SLOW_GAIN if self._was_refused else FAST_GAIN), self._limit)

    def record_refusal(self, began: float, caller: str, asked: timedelta | None) -> timedelta:
        """Record a 429. Return the caller's delay."""
        now = self._clock()
        if began >= self._closed_at:  # else the call was under way when another one got a 429
            self._was_refused = True
            self._rate = min(max(self._rate / 2, MIN_RATE), self._limit)
            self._closed_at = now
            self._refusals += 1
        if self._shut_since is None or now - self._closed_until > MAX_RETRY_AFTER:  # no call for a while
            self._shut_since = now
        wait = asked.total_seconds() if asked else REFUSAL_PAUSES.seconds(max(self._refusals, 1))
        self._closed_until = max(self._closed_until, now + wait)
        self._next = self._closed_until
        return self._spread_delay(caller, self._closed_until - now)

    def _send_away(self, caller: str, wait: float) -> ApplicationError:
        if self._shut_since is not None and self._clock() - self._shut_since > MAX_SHUT_TIME:
            message = f"{self._provider} has refused every call for {MAX_SHUT_TIME / 60:.0f} minutes, by its rate limit"
            return ApplicationError(message, type=RunFailure.rate_limited, non_retryable=True)
        delay = self._spread_delay(caller, wait)
        return RateLimitedError(
            f"held back by the rate limit of {self._provider}, {delay.total_seconds():.0f} s",
            type=RunFailure.rate_limited,
            next_retry_delay=delay,
            category=ApplicationErrorCategory.BENIGN,
        )

    def _spread_delay(self, caller: str, wait: float) -> timedelta:
        """Return the caller's delay, spread at random so that callers return one after the other."""
        now = self._clock()
        self._away = {name: back for name, back in self._away.items() if back > now}
        spread = random.uniform(0.0, len(self._away) / self._rate)  # noqa: S311 - spreads load, guards nothing
        delay = wait + min(spread, MAX_RETURN_SPREAD)
        self._away[caller] = now + delay
        return timedelta(seconds=delay)
