"""Every fault of the scorecard, as small as still means something (`make kills`); `make chaos` has them at full size.

A failure tells the seed: PERDURE_CHAOS_SEED plays it again, and a seed that found something stays in `KEPT`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client

from tests.chaos.__main__ import new_seed
from tests.chaos.context import Row, ScenarioContext
from tests.chaos.scenarios import SCENARIOS, Scenario

AT_A_TIME = 3  # most of a scenario is waiting for the heartbeat of somebody dead
SHORT = [scenario for scenario in SCENARIOS if scenario.short is not None]
KEPT: dict[str, tuple[int, ...]] = {}  # seeds that found something once, by scenario
PLAYS = [
    pytest.param(scenario, seed, id=f"{scenario.name}-{seed}" if seed else scenario.name)
    for scenario in SHORT
    for seed in (None, *KEPT.get(scenario.name, ()))
]

Ask = Callable[[Scenario, int | None], Awaitable[Row]]


@pytest.fixture(scope="module")
async def ask(
    request: pytest.FixtureRequest,
    client: Client,
    short_history_client: Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Ask]:
    """A scenario's row. Those whose tests come next begin with it: of several processes each has tests of its own."""
    drawn = new_seed()

    async def play(scenario: Scenario, seed: int) -> Row:
        context = ScenarioContext(tmp_path_factory.mktemp(scenario.name), seed, client, short_history_client)
        try:
            return await scenario.run(context, scenario.short or {})
        except Exception as error:
            error.add_note(f"PERDURE_CHAOS_SEED={seed}")
            raise

    tests = [t for t in request.session.items if isinstance(t, pytest.Function) and t.originalname == TEST]
    params: list[Any] = [test.callspec.params for test in tests]
    order: list[tuple[Scenario, int | None]] = [(each["scenario"], each["seed"]) for each in params]
    tasks: dict[tuple[str, int | None], asyncio.Task[Row]] = {}

    async def row(scenario: Scenario, seed: int | None) -> Row:
        first = order.index((scenario, seed))
        for after, own in order[first : first + AT_A_TIME]:
            if (after.name, own) not in tasks:
                tasks[after.name, own] = asyncio.create_task(play(after, own or drawn))
        return await tasks[scenario.name, seed]

    yield row
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


TEST = "test_no_fault_repeats_or_loses_an_effect"


@pytest.mark.timeout(900)  # three at a time on a busy machine
@pytest.mark.parametrize(("scenario", "seed"), PLAYS)
async def test_no_fault_repeats_or_loses_an_effect(scenario: Scenario, seed: int | None, ask: Ask) -> None:
    row = await ask(scenario, seed)
    assert not row.violations, "\n".join((f"PERDURE_CHAOS_SEED={row.seed}", *row.violations))
    assert row.runs > 0
