"""Budgets of many holders and workers, in virtual time (`tests.simulated_fleet`)."""

import asyncio
from collections import Counter
from random import Random
from statistics import quantiles

import pytest

from perdure.features.budgets.contract import Every, Measure, Terms
from perdure.features.budgets.purse import Need, Purse, UsedUpError
from perdure.features.budgets.rules import key_of
from tests.simulated_fleet import Entity, play

HOUR = 3600
MOST = 50_000  # micro-USD of a call, at most; 10,000 on average


class Spenders:
    """Workers whose calls spend from the allowances of many customers for an hour."""

    def __init__(self, workers: int, keys: int, limit_calls: int, *, is_keyed: bool) -> None:
        self.entity = Entity()
        self.random = Random(2)  # noqa: S311 - a test's
        self.terms = Terms(limit=limit_calls * 10_000, every=Every.hour, has_credit=is_keyed)
        self.keys = [key_of("b", Measure.usd, f"c{number}" if is_keyed else "") for number in range(keys)]
        self.purses = [self.entity.open_purse(number) for number in range(workers)]
        self.spent: Counter[str] = Counter()
        self.calls = self.refused = 0
        self.waits: list[float] = []

    async def spend(self, calls_a_second: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        serving = [asyncio.create_task(purse.serve()) for purse in self.purses]
        calls = []
        for number in range(int(calls_a_second * seconds)):
            await asyncio.sleep(max(number / calls_a_second - loop.time(), 0))
            calls.append(asyncio.create_task(self._call()))
        await asyncio.gather(*calls)
        for task in serving:
            task.cancel()

    async def _call(self) -> None:
        purse: Purse = self.random.choice(self.purses)
        key = self.random.choice(self.keys)
        began = asyncio.get_running_loop().time()
        try:
            reservation = await purse.reserve({key: Need(self.terms, MOST)})
        except UsedUpError:
            self.refused += 1
            return
        self.waits.append(asyncio.get_running_loop().time() - began)
        await asyncio.sleep(self.random.uniform(0.5, 4.0))
        cost = min(int(self.random.expovariate(1 / 10_000)), MOST)
        purse.charge(reservation, {key: cost})
        self.spent[key] += cost
        self.calls += 1

    @property
    def p99(self) -> float:
        return quantiles(self.waits, n=100)[98]


def spend(patch: pytest.MonkeyPatch, it: Spenders, calls_a_second: float, seconds: float) -> Spenders:
    async def scene() -> Spenders:
        await it.spend(calls_a_second, seconds)
        return it

    return play(patch, scene())


@pytest.mark.parametrize(("workers", "most_turns"), [(4, 0.15), (50, 1.2)])
def test_ten_thousand_allowances(monkeypatch: pytest.MonkeyPatch, workers: int, most_turns: float) -> None:
    """A worker's credit covers calls without a turn; that of fifty is too small, and each call takes one."""
    it = spend(monkeypatch, Spenders(workers, 10_000, 100, is_keyed=True), 20, 600)
    assert it.entity.turns / it.calls <= most_turns
    assert max(it.spent.values()) <= 100 * 10_000
    assert it.p99 <= 0.05


def test_one_allowance_of_fifty_workers_is_never_exceeded_and_hardly_left(monkeypatch: pytest.MonkeyPatch) -> None:
    it = spend(monkeypatch, Spenders(50, 1, 15_000, is_keyed=False), 20, 1000)
    limit = 15_000 * 10_000
    assert it.refused
    assert 0.97 * limit <= it.spent.total() <= limit
    assert it.entity.turns / it.calls <= 0.1
    assert it.p99 <= 0.05
