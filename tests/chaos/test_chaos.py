"""Every fault of the scorecard, as small as still means something; `make chaos` has them at full size.

A failure tells the seed: PERDURE_CHAOS_SEED plays it again, and a seed that found something stays in `KEPT`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from temporalio.client import Client

from tests.chaos.__main__ import new_seed
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.chaos.stage import Row, Stage

AT_A_TIME = 4  # most of a scenario is waiting for the heartbeat of somebody dead
SHORT = [scenario for scenario in SCENARIOS if scenario.short is not None]
KEPT: dict[str, tuple[int, ...]] = {}  # seeds that found something once, by scenario
PLAYS = [
    pytest.param(scenario, seed, id=f"{scenario.name}-{seed}" if seed else scenario.name)
    for scenario in SHORT
    for seed in (None, *KEPT.get(scenario.name, ()))
]

Plays = Mapping[tuple[str, int | None], asyncio.Task[Row]]


@pytest.fixture(scope="module")
async def plays(
    request: pytest.FixtureRequest,
    client: Client,
    short_history_client: Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Plays]:
    """All scenarios that this session is to test, several at the same time."""
    turn = asyncio.Semaphore(AT_A_TIME)
    drawn = new_seed()

    async def play(scenario: Scenario, seed: int) -> Row:
        async with turn:
            stage = Stage(tmp_path_factory.mktemp(scenario.name), seed, client, short_history_client)
            try:
                return await scenario.run(stage, scenario.short or {})
            except Exception as error:
                error.add_note(f"PERDURE_CHAOS_SEED={seed}")
                raise

    tests = [t for t in request.session.items if isinstance(t, pytest.Function) and t.originalname == TEST]
    tasks: dict[tuple[str, int | None], asyncio.Task[Row]] = {}
    for test in tests:
        asked: Any = test.callspec.params
        scenario, seed = asked["scenario"], asked["seed"]
        tasks[scenario.name, seed] = asyncio.create_task(play(scenario, seed or drawn))
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


TEST = "test_whatever_fails_nothing_happens_twice_and_nothing_is_lost"


@pytest.mark.parametrize(("scenario", "seed"), PLAYS)
async def test_whatever_fails_nothing_happens_twice_and_nothing_is_lost(
    scenario: Scenario, seed: int | None, plays: Plays
) -> None:
    row = await plays[scenario.name, seed]
    assert row.violations == [], f"PERDURE_CHAOS_SEED={row.seed}"
    assert row.runs > 0
