"""A shared budget under load: workers die, the entity is terminated, and the provider's own count stays within it."""

import asyncio
import threading
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from time import time

from temporalio.service import RPCError

from perdure.features.budgets.contract import USD, AllowanceView, BudgetChange, BudgetsState, Terms
from perdure.features.budgets.purse import start_budgets
from perdure.features.budgets.rules import budgets_id, view_all
from perdure.features.pauses.client import count_held
from perdure.testkit.model_server import Reply, ScriptedAnswer
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import PATIENCE, Environment, until
from tests.chaos.task import mixed, script
from tests.waiting import until as until_true

QUEUE = "r31"
KEY = "all/usd/"
INPUT, OUTPUT, MOST = 1.0, 5.0, 1024  # prices in USD per million tokens, and `max_tokens`
BOUND = 30_000  # micro-USD of a call, at most: some 10,000 tokens of input, and `max_tokens`
MOST_UNUSED = 0.03  # of a limit of so many bounds a worker, or more
BOUNDS = 60
WITHIN = timedelta(seconds=10)
PROJECT = """
[model]
default = "scripted"
max_tokens = {most}
[prices.scripted]
input = {input}
output = {output}
cache_read = 0.1
cache_write = 1.0
[[budget]]
name = "all"
usd = {limit}
when_used_up = "wait"
"""


@dataclass
class Provider:
    """A provider that bills each request as it comes, also one whose client dies before it has the reply."""

    random: Random
    billed: int = 0  # micro-USD
    calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Json) -> ScriptedAnswer:
        with self._lock:
            sent, received = self.random.randint(200, 1500), self.random.randint(20, MOST)
            self.billed += round(sent * INPUT + received * OUTPUT)
            self.calls += 1
        reply = script(request)
        usage = {"input_tokens": sent, "output_tokens": received}
        return replace(reply, usage=usage) if isinstance(reply, Reply) else reply


async def limited(context: ScenarioContext, *, runs: int, steps: int, size: int, kills: int, calls: int) -> Row:
    """R31: a budget of about so many `calls`, reached among kills of workers; then it is raised, and all runs end."""
    provider = Provider(Random(context.seed))
    limit = round(calls * (850 * INPUT + MOST / 2 * OUTPUT))
    described = PROJECT.format(most=MOST, input=INPUT, output=OUTPUT, limit=limit / USD)
    async with context.environment(says=provider, more=described) as it, it.person():
        workers = it.start_workers(QUEUE, size)
        for number in range(runs):
            await it.start(mixed(f"{QUEUE}-{number}", it.random, steps, pause=0.2), QUEUE)
        for number in range(kills):
            await until(lambda number=number: provider.calls > (number + 1) * calls / (2 * kills))  # type: ignore[misc]
            await workers.fault("kill")
            if number == kills // 2:
                await it.client.get_workflow_handle(budgets_id(QUEUE)).terminate("a test")
        await until_true(lambda: all_held(it), PATIENCE + calls / 5)
        spent, made = provider.billed, provider.calls
        over, unused = max(spent - limit, 0), max(limit - spent, 0) / limit
        await until_true(lambda: is_settled(it, spent))
        cut_off, left = (await look(it)).used - spent, limit - (await look(it)).used
        terms = Terms(limit=limit, waits=True)
        await start_budgets(it.client, QUEUE, WITHIN)
        change = BudgetChange(key=KEY, amount=100 * USD, terms=terms)
        await it.client.get_workflow_handle(budgets_id(QUEUE)).execute_update("change_allowance", change)
        it.fault(counts=False)
        late = await it.all_ended()
        found = await audit(it, late=late)
        await until_true(lambda: is_settled(it, provider.billed))
        if over:
            found.violations.append(f"{over} micro-USD over a budget of {limit}")
        if left > size * BOUND:
            found.violations.append(f"{left} micro-USD were left, which cover more calls")
        if limit >= BOUNDS * size * BOUND and unused > MOST_UNUSED:
            found.violations.append(f"{unused:.1%} of the budget were not used")
        used = (await look(it)).used
        return row(
            it,
            found,
            f"{spent / USD:.4f} of {limit / USD:.4f} USD spent in {made} calls, {over} over, {unused:.1%} unused, "
            f"{cut_off / limit:.1%} of it counted for calls that a kill cut off; in the end {used / USD:.4f} counted, "
            f"{provider.billed / USD:.4f} billed",
        )


async def look(it: Environment) -> AllowanceView:
    state = await it.client.get_workflow_handle(budgets_id(QUEUE)).query("state", result_type=BudgetsState)
    return next(view for view in view_all(state, time()) if view.name == "all")


async def all_held(it: Environment) -> bool:
    """Each run that is still open waits for the budget."""
    await asyncio.sleep(1)
    described = [await handle.describe() for handle in it.handles.values()]
    still_open = sum(each.close_time is None for each in described)
    return still_open > 0 and (await count_held(it.client, QUEUE)).total() == still_open


async def is_settled(it: Environment, billed: int) -> bool:
    """The workers have settled: no less is counted than the provider bills."""
    try:
        view = await look(it)
    except RPCError:
        return False
    return view.used >= billed and not view.leased and not view.unaccounted
