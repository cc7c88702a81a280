"""The page of a `make chaos`, for who was not there."""

from datetime import date

from tests.chaos.report import page
from tests.chaos.stage import Row

GOOD = Row(
    "R1 kills at random moments", 7, runs=100, faults=1100, effects=800, recovery=11.5, seconds=90.2, note="fine"
)
BAD = Row("R3 server killed", 7, runs=3, lost=1, violations=["a result | was\nlost"])


def test_it_tells_seed_versions_and_each_scenario() -> None:
    told = page([GOOD], 7, "Perdure 0.1.0 on a machine", date(2026, 11, 3))
    assert "3 November 2026, seed 7 (`PERDURE_CHAOS_SEED=7 make chaos`): no invariant was broken." in told
    assert "Perdure 0.1.0 on a machine." in told
    assert "| R1 kills at random moments | 100 | 1,100 | 800 | 0 | 0 | 0 | 11.5 s | 90 s | ok |" in told
    assert "- **R1 kills at random moments**: fine" in told
    assert "What broke" not in told


def test_it_tells_what_broke() -> None:
    told = page([GOOD, BAD], 7, "a machine", date(2026, 11, 3))
    assert "1 of 2 scenarios broke an invariant" in told
    assert "| 1 | 0 | 0.0 s | 0 s | BROKEN |" in told
    assert "- **R3 server killed**: a result \\| was lost" in told
