"""Every fault of the scorecard, as small as still means something; `make chaos` has them at full size.

A failure prints the seed. PERDURE_CHAOS_SEED plays it again, and a seed that found something stays here.
"""

from pathlib import Path

import pytest
from temporalio.client import Client

from tests.chaos.__main__ import new_seed
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.chaos.stage import Stage

SEED = new_seed()
SHORT = [scenario for scenario in SCENARIOS if scenario.short is not None]


@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
async def test_whatever_fails_nothing_happens_twice_and_nothing_is_lost(
    scenario: Scenario, client: Client, short_history_client: Client, tmp_path: Path
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - shown with a failure
    row = await scenario.run(Stage(tmp_path, SEED, client, short_history_client), scenario.short or {})
    assert row.violations == [], f"PERDURE_CHAOS_SEED={SEED}"
    assert row.runs > 0
