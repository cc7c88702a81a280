"""A provider's rate limit, as one worker keeps it. Time is the test's own: what waits lets it pass."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.providers import rate_limit
from perdure.activities.providers.rate_limit import (
    MAX_RETURN_SPREAD,
    MAX_SHUT_TIME,
    MAX_SLOT_WAIT,
    MIN_RATE,
    SLOW_GAIN,
    START_RATE,
    RateLimitedError,
    RateLimiter,
)

ONE = timedelta(seconds=1)


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._due: list[tuple[float, asyncio.Event]] = []
        monkeypatch.setattr(rate_limit, "sleep", self._sleep)  # of that module alone: other threads have loops, too

    def __call__(self) -> float:
        return self.now

    async def _sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._due.append((self.now + seconds, woken))
        await woken.wait()

    async def run(self, seconds: float) -> None:
        """Wakes those who are due by then, one after the other."""
        end = self.now + seconds
        await run_ready_tasks()
        while due := sorted((each for each in self._due if each[0] <= end), key=lambda each: each[0]):
            self._due.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][1].set()
            await run_ready_tasks()
        self.now = end


async def run_ready_tasks() -> None:
    """What can go on goes on."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for _ in range(5):
        loop.call_soon(done.set)
        await done.wait()
        done.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def ignore_text(_: str) -> None:
    return None


async def start_callers(
    it: RateLimiter, clock: Clock, number: int, seconds: float
) -> tuple[list[float], list[ApplicationError]]:
    """When so many callers at once begin, and who was sent away."""
    start = clock.now
    tasks = [asyncio.create_task(it.await_slot(f"c{n}", ignore_text)) for n in range(number)]
    await clock.run(seconds)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    away = [each for each in ended if isinstance(each, ApplicationError)]
    return [each - start for each in ended if isinstance(each, float)], away


async def test_the_first_call_begins_at_once_without_a_notice(clock: Clock) -> None:
    notes: list[str] = []
    assert await RateLimiter("p", clock=clock).await_slot("a", notes.append) == clock.now
    assert notes == [""]


async def test_calls_at_once_are_spaced(clock: Clock) -> None:
    at, away = await start_callers(RateLimiter("p", clock=clock), clock, 5, 60)
    assert at == pytest.approx([n / START_RATE for n in range(5)])
    assert away == []


async def test_requests_per_minute_are_never_exceeded(clock: Clock) -> None:
    it = RateLimiter("p", 60, clock)
    at, away = await start_callers(it, clock, 9, 60)
    assert at == pytest.approx([0, 1, 2, 3, 4, 5])
    assert len(away) == 3
    for _ in range(100):
        it.record_success(clock.now)
    assert it.rate == 1


async def test_a_wait_and_its_end_are_reported(clock: Clock) -> None:
    it, notes = RateLimiter("nearby", 30, clock), list[str]()
    await it.await_slot("a", ignore_text)
    waiting = asyncio.create_task(it.await_slot("b", notes.append))
    await clock.run(2)
    await waiting
    assert notes == ["held back by the rate limit of nearby, 2.0 s", ""]


async def test_who_would_wait_for_long_leaves_its_slot_and_comes_back_when_there_is_room(clock: Clock) -> None:
    it = RateLimiter("nearby", 6, clock)
    await it.await_slot("a", ignore_text)
    with pytest.raises(RateLimitedError) as held:
        await it.await_slot("b", ignore_text)
    delay = held.value.next_retry_delay
    assert delay == timedelta(seconds=10)
    assert held.value.message == "held back by the rate limit of nearby, 10 s"
    assert (held.value.type, held.value.non_retryable) == ("RateLimited", False)
    assert held.value.category is ApplicationErrorCategory.BENIGN  # no line of the log for each of them
    await clock.run(10)
    assert await it.await_slot("b", ignore_text) == clock.now


async def test_those_that_are_sent_away_come_back_over_a_while(clock: Clock) -> None:
    it = RateLimiter("p", 60, clock)
    _, away = await start_callers(it, clock, 60, 0)
    delays = [each.next_retry_delay.total_seconds() for each in away if isinstance(each, RateLimitedError)]  # type: ignore[union-attr]
    assert min(delays) > MAX_SLOT_WAIT
    assert max(delays) <= MAX_SLOT_WAIT + 1 + MAX_RETURN_SPREAD
    assert max(delays) - min(delays) > 8


async def test_a_refusal_holds_back_all_calls_until_the_server_takes_some_again(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    began = await it.await_slot("a", ignore_text)
    assert it.record_refusal(began, "a", 2 * ONE) >= 2 * ONE
    at, away = await start_callers(it, clock, 4, 10)
    assert at == pytest.approx([2 + n / (START_RATE / 2) for n in range(4)])
    assert away == []


async def test_who_waits_when_a_refusal_comes_stands_in_the_queue_again(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    began = await it.await_slot("a", ignore_text)
    waiting = [asyncio.create_task(it.await_slot(f"w{n}", ignore_text)) for n in range(3)]
    await run_ready_tasks()
    start = clock.now
    it.record_refusal(began, "a", 2 * ONE)
    await clock.run(5)
    at = sorted([await each - start for each in waiting])
    assert at == pytest.approx([2.0, 2.1, 2.2])


async def test_who_has_left_before_finds_room_where_others_must_leave(clock: Clock) -> None:
    it = RateLimiter("p", 60, clock)
    _, away = await start_callers(it, clock, 8, 0)  # the first goes, five wait, two leave
    assert len(away) == 2
    clock.now += 1.5  # 3.5 s until the next may begin
    with pytest.raises(RateLimitedError):
        await it.await_slot("new", ignore_text)
    waiting = asyncio.create_task(it.await_slot("c7", ignore_text))
    await clock.run(10)
    assert await waiting <= clock.now


async def test_a_refusal_halves_the_rate_and_those_of_calls_made_before_it_do_not_again(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    it.record_refusal(clock.now, "a", None)
    for caller in "bc":
        it.record_refusal(clock.now - 1, caller, None)
    assert it.rate == START_RATE / 2
    clock.now += 10
    it.record_refusal(clock.now, "d", None)
    assert it.rate == START_RATE / 4


async def test_however_often_it_is_refused_a_call_a_minute_is_tried(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    for _ in range(40):
        clock.now += 1
        it.record_refusal(clock.now, "a", ONE)
    assert it.rate == MIN_RATE
    slow = RateLimiter("p", 0.5, clock)
    slow.record_refusal(clock.now, "a", ONE)
    assert slow.rate == 0.5 / 60


async def test_a_server_that_asks_for_no_delay_is_given_more_with_each_refusal(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    delays = []
    for _ in range(9):
        delays.append(it.record_refusal(clock.now, "a", None).total_seconds())
        clock.now += 200
    assert delays == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])
    it.record_success(clock.now)
    assert it.record_refusal(clock.now, "a", None) == ONE


async def test_it_grows_while_others_wait_fast_at_first_and_slowly_once_refused(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    it.record_success(clock.now)
    assert it.rate == START_RATE  # nobody waits
    await it.await_slot("a", ignore_text)
    waiting = asyncio.create_task(it.await_slot("b", ignore_text))
    await run_ready_tasks()
    it.record_success(clock.now)
    assert it.rate == START_RATE + 1
    it.record_refusal(clock.now, "a", ONE)
    it.record_success(clock.now)
    assert it.rate == pytest.approx((START_RATE + 1) / 2 + SLOW_GAIN)
    await clock.run(10)
    await waiting


async def test_a_provider_that_lets_nothing_through_is_given_up_after_a_while(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    start = clock.now
    while clock.now <= start + MAX_SHUT_TIME:
        it.record_refusal(clock.now, "a", timedelta(seconds=30))
        clock.now += 31
    it.record_refusal(clock.now, "a", timedelta(seconds=30))
    with pytest.raises(ApplicationError, match="p has refused every call for 10 minutes") as failure:
        await it.await_slot("b", ignore_text)
    assert (failure.value.type, failure.value.non_retryable) == ("RateLimited", True)


async def test_a_provider_that_was_not_asked_for_long_is_not_given_up(clock: Clock) -> None:
    it = RateLimiter("p", clock=clock)
    it.record_refusal(clock.now, "a", 30 * ONE)
    clock.now += 10 * MAX_SHUT_TIME
    it.record_refusal(clock.now, "a", 30 * ONE)
    with pytest.raises(RateLimitedError):
        await it.await_slot("b", ignore_text)


async def test_a_call_that_is_given_up_while_it_waits_leaves_nothing_behind(clock: Clock) -> None:
    it, notes = RateLimiter("p", 60, clock), list[Any]()
    await it.await_slot("a", ignore_text)
    waiting = asyncio.create_task(it.await_slot("b", notes.append))
    await run_ready_tasks()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    it.record_success(clock.now)
    assert it.rate == 1
