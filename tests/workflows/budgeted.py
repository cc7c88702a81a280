"""A world whose worker has budgets: its purse, and what the entity of the budgets says."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any
from unittest.mock import patch

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from perdure.activities.providers.fallback import FallbackModel, Provider
from perdure.activities.providers.port import Model
from perdure.activities.providers.prices import Price
from perdure.activities.providers.rate_limit import RateLimiter
from perdure.activities.temporal import IgnoreMissing
from perdure.decisions.model_names import DEFAULT
from perdure.features.budgets.admission import METER_TERMS, BudgetAdmission
from perdure.features.budgets.contract import AllowanceView, BudgetChange, BudgetsState, Measure
from perdure.features.budgets.purse import Purse
from perdure.features.budgets.rules import METER, budgets_id, key_of, view_all
from perdure.features.budgets.settings import BudgetSettings
from perdure.process import worker as process
from tests.replaying import replay_history
from tests.workflows.conftest import Run, World

PRICE = Price(input=1.0, output=5.0, cache_read=0.1, cache_write=1.25)
PRICES = {"scripted": PRICE}


def budget(**values: Any) -> BudgetSettings:
    return BudgetSettings.model_validate({"name": "team", **values})


@dataclass
class Budgeted:
    """The budgets of a world. `folder` has the journals of its workers."""

    it: World
    budgets: tuple[BudgetSettings, ...]
    folder: Path | None
    purses: list[Purse] = field(default_factory=list)

    @property
    def entity(self) -> Run:
        return self.it.client.get_workflow_handle(budgets_id(self.it.queue))

    def purse(self, client: Client) -> Purse:
        terms = {f"{each.name}/{measure}": terms for each in self.budgets for measure, terms in each.limits.items()}
        purse = Purse(client, self.it.queue, {**terms, f"{METER}/usd": METER_TERMS}, self.folder)
        self.purses.append(purse)
        return purse

    async def views(self) -> dict[str, AllowanceView]:
        state = await self.entity.query("state", result_type=BudgetsState)
        return {key_of(view.name, view.measure, view.value): view for view in view_all(state, time())}

    async def view(self, key: str) -> AllowanceView | None:
        try:
            return (await self.views()).get(key)
        except RPCError:
            return None

    async def settled(self, key: str) -> AllowanceView:
        """The allowance, once its workers have told what they have spent."""
        for purse in self.purses:
            if not purse._is_closed:
                async with purse._lock:
                    await purse.take_turn({}, gives_back=True)
        view = await self.view(key)
        assert view is not None
        return view

    async def change(self, key: str, amount: int = 0, **sender: Any) -> AllowanceView:
        name, measure, _ = key.split("/", 2)
        terms = next(each.limits[Measure(measure)] for each in self.budgets if each.name == name)
        body = BudgetChange.model_validate({"key": key, "amount": amount, "terms": terms, **sender})
        view: AllowanceView = await self.entity.execute_update("change_allowance", body, result_type=AllowanceView)
        return view

    @asynccontextmanager
    async def worker(self, client: Client | None = None, **options: Any) -> AsyncIterator[Purse]:
        """A worker with a purse of its own."""
        at = client or self.it.client
        purse = self.purse(at)
        admission = BudgetAdmission(at, self.it.project, self.budgets, purse)
        self.it.within = lambda model: with_admission(model, admission)

        def with_budgets(*args: Any) -> Worker:
            config: Any = {"admission": admission}
            return process.build_worker(*args, **config)

        with patch("tests.workflows.conftest.build_worker", with_budgets):
            entered = self.it.worker(client, **options)
            await entered.__aenter__()
        serving = asyncio.create_task(purse.serve())
        try:
            yield purse
            serving.cancel()
            await purse.give_back()
        finally:
            serving.cancel()
            await entered.__aexit__(None, None, None)
            await purse.close()


def with_admission(model: Model, admission: BudgetAdmission) -> Model:
    return FallbackModel({DEFAULT: Provider(model, RateLimiter(DEFAULT))}, admission)


@asynccontextmanager
async def budgeted(
    world: Any, script: Any, *tools: Any, budgets: Sequence[BudgetSettings], folder: Path | None = None, **options: Any
) -> AsyncIterator[Budgeted]:
    """A world with one worker, under these budgets."""
    async with world(script, *tools, works=False, **{"prices": PRICES, **options}) as it:
        has = Budgeted(it, tuple(budgets), folder)
        async with has.worker():
            yield has
        await it.replay()
        with IgnoreMissing():  # nothing was asked of it
            await replay_history(await has.entity.fetch_history(), it.client.data_converter)
