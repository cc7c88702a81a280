"""One provider's rate limit, as one worker keeps it: calls are spaced, and a 429 holds back all of them, not only one.

The rate is found as TCP finds it: it grows with what gets through, and each refusal halves it. What would wait for long
does not wait in its activity slot: it leaves, and comes back.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.http.retry_after import MOST_WAIT
from contracts.failures import RunFailure

MOST_HELD = 5.0  # seconds that a call waits in its activity slot
MOST_SPREAD = 15.0  # seconds over which those that have left it come back: by then there may be more room
MOST_SHUT = 600.0  # seconds; who has let nothing through for so long is given up by those that wait for it
START = 20.0  # calls a second, before the provider has said anything
LEAST = 1 / 60  # calls a second, whatever was refused
# Calls a second, for each call that got through: until the first refusal, and from then on. Of a limit of 20 a second
# one call in a hundred is refused so. It must not shrink with the rate, or refusals that have nothing to do with ours
# (others use the same limit) would bring it down to nothing.
FAST, SLOW = 1.0, 0.1


class HeldBack(ApplicationError):
    """The model was not asked: its provider takes no more calls for a while. That uses up none of a turn's tries."""


class Pace:
    """`requests_per_minute` is never exceeded by this worker; None: the provider's refusals alone tell its limit."""

    def __init__(
        self, provider: str, requests_per_minute: float | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._most = requests_per_minute / 60 if requests_per_minute else float("inf")
        self._rate = min(START, self._most)
        self._was_refused = False
        self._next = 0.0  # when the next call may begin
        self._closed_until = 0.0
        self._closed_at = 0.0  # what began before is no news
        self._refusals = 0  # since something got through
        self._shut_since: float | None = None
        self._waiting = 0  # calls in their slots
        self._away: dict[str, float] = {}  # callers that have left, and when they come back

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self._rate

    async def enter(self, caller: str, told: Callable[[str], object]) -> float:
        """Waits until a call may begin, and gives that moment for `passed` or `refused`. `told` hears of the wait.

        Raises HeldBack, with the delay, where it would be long; or ApplicationError `RateLimited`, not retryable, where
        the provider has let nothing through for very long.
        """
        comes_back = self._away.pop(caller, None) is not None
        most = MOST_HELD if comes_back or not self._away else MOST_HELD / 2  # who has left before has the rest
        while True:
            now, closed_at = self._clock(), self._closed_at
            at = max(now, self._next, self._closed_until)
            if at - now > most:
                raise self._sent_away(caller, at - now)
            self._next = at + 1 / self._rate
            if at > now:
                told(f"held back by the rate limit of {self._provider}, {at - now:.1f} s")
                await self._wait(at - now)
            if self._closed_at == closed_at and self._closed_until <= self._clock():
                told("")
                return self._clock()

    async def _wait(self, seconds: float) -> None:
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1

    def passed(self, began: float) -> None:
        """A call was not refused: where others wait, they may go faster."""
        if began >= self._closed_at:
            self._refusals, self._shut_since = 0, None
        if not (self._waiting or self._away):
            return
        self._rate = min(self._rate + (SLOW if self._was_refused else FAST), self._most)

    def refused(self, began: float, caller: str, asked: timedelta | None) -> timedelta:
        """A call got a 429, which `asked` for a delay, or for none; gives for how long its caller is to stay away.

        Without one it is a second after the first refusal, twice as long after each further one, `MOST_WAIT` at most.
        """
        now = self._clock()
        if began >= self._closed_at:  # else it was on its way already when another one was refused
            self._was_refused = True
            self._rate = min(max(self._rate / 2, LEAST), self._most)
            self._closed_at = now
            self._refusals += 1
        if self._shut_since is None or now - self._closed_until > MOST_WAIT:  # nobody has asked for a while
            self._shut_since = now
        wait = asked.total_seconds() if asked else min(2.0 ** max(self._refusals - 1, 0), MOST_WAIT)
        self._closed_until = max(self._closed_until, now + wait)
        self._next = self._closed_until
        return self._delay(caller, self._closed_until - now)

    def _sent_away(self, caller: str, wait: float) -> ApplicationError:
        if self._shut_since is not None and self._clock() - self._shut_since > MOST_SHUT:
            message = f"{self._provider} has refused every call for {MOST_SHUT / 60:.0f} minutes, by its rate limit"
            return ApplicationError(message, type=RunFailure.rate_limited, non_retryable=True)
        delay = self._delay(caller, wait)
        return HeldBack(
            f"held back by the rate limit of {self._provider}, {delay.total_seconds():.0f} s",
            type=RunFailure.rate_limited,
            next_retry_delay=delay,
            category=ApplicationErrorCategory.BENIGN,
        )

    def _delay(self, caller: str, wait: float) -> timedelta:
        """Those that are away come back one after the other, as far as chance can do that."""
        now = self._clock()
        self._away = {name: back for name, back in self._away.items() if back > now}
        spread = random.uniform(0.0, len(self._away) / self._rate)  # noqa: S311 - spreads load, guards nothing
        delay = wait + min(spread, MOST_SPREAD)
        self._away[caller] = now + delay
        return timedelta(seconds=delay)
