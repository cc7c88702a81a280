"""The page of a `make chaos`, for who was not there."""

from datetime import date

from tests.chaos.context import Row
from tests.chaos.report import page

GOOD = Row(
    "R1 kills at random moments", 7, runs=100, faults=1100, effects=800, recovery=11.5, seconds=90.2, note="fine"
)
BAD = Row("R3 server killed", 7, runs=3, lost=1, violations=["a result | was\nlost"])


def test_the_page_has_seed_versions_and_each_scenario() -> None:
    text = page([GOOD], 7, "Perdure 0.1.0 on a machine", date(2026, 11, 3))
    assert "3 November 2026, seed 7 (`PERDURE_CHAOS_SEED=7 make chaos`): no invariant was broken." in text
    assert "Perdure 0.1.0 on a machine." in text
    assert "| R1 kills at random moments | 100 | 1,100 | 800 | 0 | 0 | 0 | 11.5 s | 90 s | ok |" in text
    assert "- **R1 kills at random moments**: fine" in text
    assert "What broke" not in text


def test_the_page_has_the_violations() -> None:
    text = page([GOOD, BAD], 7, "a machine", date(2026, 11, 3))
    assert "1 of 2 scenarios broke an invariant" in text
    assert "| 1 | 0 | 0.0 s | 0 s | BROKEN |" in text
    assert "- **R3 server killed**: a result \\| was lost" in text
