"""Runs under shared budgets, and the entity that has them, in the scenarios."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from perdure.contracts.people import NoticeKind, NoticeRoute
from perdure.features.budgets.contract import BudgetChange, BudgetTurn, KeyTurn, Terms
from perdure.features.notices.channels import Channel
from tests.replay.people_plays import SilentSender
from tests.workflows.budgeted import Budgeted, budget
from tests.workflows.conftest import Run, World

KEY = "team/usd/"
TERMS = Terms(limit=100, warn_at=80, waits=True)


def begins_budgeted(**terms: Any) -> Callable[[World], Awaitable[Run]]:
    """A run of a worker with a budget, on a task queue of its own. One that waits goes on once the budget is raised."""

    async def begin(it: World) -> Run:
        other = replace(it, queue=f"{it.queue}-budgeted", started=it.started)
        has = Budgeted(other, (budget(**terms),), None)
        async with has.worker():
            run = await other.start()
            if terms.get("when_used_up") == "wait":
                await other.until_activity(run, lambda pending: pending.paused)
                await has.change(KEY, 10_000_000)
            await run.result()
        await other.clear()
        return run

    return begin


async def begins_over_runs(it: World) -> Run:
    """A run that a budget of runs does not let begin."""
    other = replace(it, queue=f"{it.queue}-budgeted", started=it.started)
    has = Budgeted(other, (budget(runs=1),), None)
    async with has.worker():
        await other.run_to_end()
        run = await other.start()
        await run.result()
    await other.clear()
    return run


def begins_budgets(turns: int = 3) -> Callable[[World], Awaitable[Run]]:
    """The entity: it leases, tells that an allowance is used up, and is raised and reset."""

    async def begin(it: World) -> Run:
        route = NoticeRoute(channel="ops", on=(NoticeKind.budget,))
        object.__setattr__(it.project, "parts", {"notices": (Channel(route, ("*",), SilentSender()),)})
        entity = await it.start_raw(workflow_type="Budgets", id=f"perdure-budgets:{it.queue}")
        for seq in range(1, turns + 1):
            asked = KeyTurn(window=0, spent=seq, keep=seq, want=200, most=99)
            turn = BudgetTurn(worker="w1", seq=seq, terms={"team/usd": TERMS}, keys={KEY: asked})
            await entity.execute_update("turn", turn)
        for amount in (50, 0):
            await entity.execute_update("change_allowance", BudgetChange(key=KEY, amount=amount, terms=TERMS))
        await asyncio.sleep(5)  # the release of runs that wait looks twice
        await entity.cancel()
        return entity

    return begin
