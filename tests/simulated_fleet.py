"""A fleet of workers in virtual time: real purses and rate limiters, and the rules of the entity behind a queue.

It shows what this machine cannot run: more workers, more allowances, longer times. `python -m tests.chaos R31 fleet`
plays the same with processes, where both can.
"""

import asyncio
import random
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.providers import rate_limit
from perdure.features.budgets import purse
from perdure.features.budgets.contract import BudgetAnswer, BudgetsState, BudgetTurn
from perdure.features.budgets.purse import Purse
from perdure.features.budgets.rules import drop_old, settle_and_lease

EPOCH = 1_800_000_000  # the start of a minute, an hour and a day
TURN = 0.008  # seconds of the entity, as measured
MAX_TURNS = 1000  # of one execution
T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Lets time pass instead of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will happen")
        self.loop.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everything waits."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.loop, self.now = self, 0.0

    def time(self) -> float:
        return self.now


def play(patch: pytest.MonkeyPatch, scene: Coroutine[Any, Any, T]) -> T:
    """Run a scene in virtual time, and cancel what it leaves."""
    loop = VirtualLoop()
    random.seed(1)
    clock = SimpleNamespace(monotonic=loop.time, time_ns=lambda: int((EPOCH + loop.now) * 1e9))
    patch.setattr(purse, "time", clock)
    patch.setattr(rate_limit, "monotonic", loop.time)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(scene)


@dataclass
class Entity:
    """The workflow `Budgets`: one turn at a time. It counts them, and how long callers waited for each."""

    state: BudgetsState = field(default_factory=BudgetsState)
    turns: int = 0
    is_away: bool = False
    waits: list[float] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    async def execute_update(self, name: str, turn: BudgetTurn, **_: object) -> BudgetAnswer:
        assert name == "turn"
        began = self.now
        if self.is_away:
            await asyncio.sleep(TURN)
            raise RPCError("no worker", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        async with self._lock:
            await asyncio.sleep(TURN)
            taken = settle_and_lease(self.state, turn, self.now)
            self.state, self.turns = taken.state, self.turns + 1
            if self.turns % MAX_TURNS == 0:
                self.state = drop_old(self.state, self.now)
        self.waits.append(self.now - began)
        return BudgetAnswer.model_validate_json(taken.answer.model_dump_json())

    async def describe(self) -> SimpleNamespace:
        return SimpleNamespace(memo=self._memo)

    async def _memo(self) -> dict[str, int]:
        return {"changes": self.state.changes}

    def open_purse(self, number: int) -> Purse:
        """Return the purse of a worker without a disk."""
        client = SimpleNamespace(get_workflow_handle=lambda _: self)
        return Purse(cast("Client", client), "q", {}, None, worker=f"w{number}")
