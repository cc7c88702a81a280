"""One limit of a provider for a fleet, in virtual time (`tests.simulated_fleet`)."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.fallback import Provider
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.rate_limit import RateLimiter
from perdure.contracts.agent import Definition
from perdure.contracts.failures import RunFailure
from perdure.contracts.run.turn import Usage
from perdure.features.budgets.provider_limits import FleetLimit, limit_terms
from perdure.process.models import FIRST_PART
from perdure.settings.file import ProviderSettings
from tests.simulated_fleet import Entity, play

CALL = ModelCall(
    Definition(agent="a", model="m", system="s", tools=()),
    [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
)
MINUTE = 60


@dataclass
class Bucket:
    """A provider with a bucket of one second's requests."""

    rate: float
    takes: float = 1.0
    tokens: int = 300
    accepted: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    spent: Counter[int] = field(default_factory=Counter)
    _left: float = 0.0
    _at: float = 0.0

    async def reply(self, call: ModelCall) -> ModelReply:
        assert call is CALL
        now = asyncio.get_running_loop().time()
        self._left, self._at = min(self.rate, self._left + (now - self._at) * self.rate), now
        minute = int(now // MINUTE)
        if self._left < 1:
            self.refused[minute] += 1
            raise ApplicationError("slow down", type=RunFailure.rate_limited, next_retry_delay=timedelta(seconds=1))
        self._left -= 1
        self.accepted[minute] += 1
        self.spent[minute] += self.tokens
        await asyncio.sleep(self.takes)
        usage = Usage(input=self.tokens - 100, output=100)
        return ModelReply([{"type": "text", "text": "hi"}], "end_turn", "m", usage)


@dataclass
class Fleet:
    """Workers that share the limit of one provider, and runs whose calls go to any of them."""

    bucket: Bucket
    settings: ProviderSettings
    entity: Entity = field(default_factory=Entity)
    providers: list[Provider] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(1))  # noqa: S311 - a test's
    runs: list["asyncio.Task[None]"] = field(default_factory=list)

    def join(self) -> None:
        purse = self.entity.open_purse(len(self.providers) + 1)
        pace = RateLimiter("p", (self.settings.requests_per_minute or 0) * FIRST_PART, asyncio.get_running_loop().time)
        self.providers.append(Provider(self.bucket, pace, shared=FleetLimit(purse, limit_terms("p", self.settings))))

    def die(self) -> None:
        self.providers.pop(0)

    def start_runs(self, number: int, weights: Any = None) -> None:
        names = range(len(self.runs), len(self.runs) + number)
        self.runs += (asyncio.create_task(self._run(f"r{name}", weights)) for name in names)

    async def _run(self, name: str, weights: Any) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
            which = self.random.choices(self.providers, weights)[0]
            try:
                await self._call(which, name)
            except ApplicationError as error:
                await asyncio.sleep((error.next_retry_delay or timedelta()).total_seconds())

    async def _call(self, provider: Provider, name: str) -> None:
        began = await provider.pace.await_slot(name, lambda _: None)
        try:
            await provider.reply(CALL)
        except ApplicationError as error:
            if error.message == "slow down":
                delay = provider.pace.record_refusal(began, name, error.next_retry_delay)
                raise ApplicationError("slow down", next_retry_delay=delay) from None
            raise
        provider.pace.record_success(began)

    async def pass_minutes(self, number: int) -> None:
        await asyncio.sleep(number * MINUTE)

    @property
    def share_refused(self) -> float:
        refused = self.bucket.refused.total()
        return refused / (refused + self.bucket.accepted.total())

    def used(self, minute: int) -> float:
        return self.bucket.accepted[minute] / (self.bucket.rate * MINUTE)


def fleet(rate: float, size: int, **limits: Any) -> Fleet:
    settings = ProviderSettings(base_url="http://x", shared=True, **(limits or {"requests_per_minute": rate * MINUTE}))
    it = Fleet(Bucket(rate), settings)
    for _ in range(size):
        it.join()
    return it


def test_eight_workers_use_all_of_a_limit_and_are_hardly_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(20, 8)
        it.start_runs(200)
        await it.pass_minutes(6)
        return it

    it = play(monkeypatch, scene())
    assert it.share_refused <= 0.01
    assert all(it.used(minute) >= 0.95 for minute in range(1, 6))
    assert max(it.bucket.accepted.values()) <= 1200
    assert it.entity.turns <= 8 * 6 * 8  # minutes and workers


def test_a_worker_that_dies_or_joins_changes_nothing_for_more_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(20, 8)
        it.start_runs(200)
        await it.pass_minutes(2)
        it.die()
        it.die()
        await it.pass_minutes(3)
        it.join()
        it.join()
        await it.pass_minutes(3)
        return it

    it = play(monkeypatch, scene())
    assert it.share_refused <= 0.01
    used = {minute: it.used(minute) for minute in (1, 3, 4, 6, 7)}
    assert min(used.values()) >= 0.95, used


def test_one_busy_worker_gets_what_the_others_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(20, 4)
        it.start_runs(60, weights=(97, 1, 1, 1))
        await it.pass_minutes(6)
        return it

    it = play(monkeypatch, scene())
    assert it.share_refused <= 0.01
    assert it.used(5) >= 0.7
    assert max(it.bucket.accepted.values()) <= 1200


def test_tokens_stay_within_their_limit_by_the_bounds_of_calls_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(100, 4, tokens_per_minute=600_000)
        it.start_runs(100)
        await it.pass_minutes(5)
        return it

    it = play(monkeypatch, scene())
    assert max(it.bucket.spent.values()) <= 600_000
    assert min(it.bucket.spent[minute] for minute in (2, 3, 4)) >= 0.7 * 600_000


def test_a_call_whose_bound_is_above_the_limit_takes_all_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(100, 2, tokens_per_minute=1000)
        it.start_runs(3)
        await it.pass_minutes(4)
        return it

    it = play(monkeypatch, scene())
    assert it.bucket.accepted.total() >= 3


def test_a_429_halves_the_rate_of_its_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(20, 2)
        it.start_runs(40)
        await asyncio.sleep(2 * MINUTE + 20)
        pace = it.providers[0].pace
        before, other = pace.rate, it.providers[1].pace.rate
        pace.record_refusal(asyncio.get_running_loop().time(), "r", timedelta(seconds=1))
        assert pace.rate == pytest.approx(before / 2)
        await asyncio.sleep(2)
        assert it.providers[1].pace.rate >= other
        await it.pass_minutes(1)
        assert it.providers[0].pace.rate > 0.9 * before
        return it

    play(monkeypatch, scene())


def test_a_worker_goes_on_by_its_last_part_while_the_entity_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(20, 4)
        it.start_runs(100)
        await it.pass_minutes(2)
        it.entity.is_away = True
        await it.pass_minutes(2)
        it.entity.is_away = False
        await it.pass_minutes(2)
        return it

    it = play(monkeypatch, scene())
    assert it.share_refused <= 0.01
    assert min(it.used(2), it.used(3)) >= 0.4
    assert it.used(5) >= 0.8


def test_calls_wait_if_the_entity_was_never_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> Fleet:
        it = fleet(20, 2)
        it.entity.is_away = True
        it.start_runs(10)
        await it.pass_minutes(1)
        assert not it.bucket.accepted.total()
        it.entity.is_away = False
        await it.pass_minutes(2)
        return it

    assert play(monkeypatch, scene()).bucket.accepted.total() > 100
