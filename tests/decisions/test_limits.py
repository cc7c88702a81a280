"""Which limit is in force, and which limits can be set at all."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from contracts.limits import LimitOverrides, limits_in
from decisions.limits import DEFAULTS, effective


def test_the_defaults_are_the_sources() -> None:
    assert (DEFAULTS.max_steps, DEFAULTS.max_reframes, DEFAULTS.turn_timeout) == (20, 2, timedelta(seconds=120))


@pytest.mark.parametrize("near", [1, 500])
def test_the_nearest_wins_up_and_down(near: int) -> None:
    limits = effective(
        LimitOverrides(max_steps=near), LimitOverrides(max_steps=7, max_turns=9), LimitOverrides(max_reframes=0)
    )
    assert (limits.max_steps, limits.max_turns, limits.max_reframes) == (near, 9, 0)


def test_what_nobody_sets_is_the_default() -> None:
    assert effective(LimitOverrides(), LimitOverrides()) == DEFAULTS


def test_limits_are_found_among_the_free_entries_of_a_context() -> None:
    found = limits_in({"tone": "constructive", "max_steps": 6, "max_reframes": 0})
    assert found == LimitOverrides(max_steps=6, max_reframes=0)


@pytest.mark.parametrize(
    "wrong", [{"max_steps": 0}, {"max_steps": -1}, {"max_steps": "many"}, {"max_turns": 10**9}, {"max_reframes": -1}]
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        limits_in(wrong)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2h", 7200), ("7d", 604_800), (45, 45), ("PT5S", 5)],
)
def test_a_duration_is_read_as_people_write_it(written: Any, seconds: float) -> None:
    assert LimitOverrides.model_validate({"turn_timeout": written}).turn_timeout == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "written", ["soon", "", "5", "0s", 0, -5, True, "367d", "5 weeks", "PT0S", "-PT5S", "P400D", "0.0001ms"]
)
def test_a_duration_that_is_none_is_refused(written: Any) -> None:
    with pytest.raises(ValidationError, match="duration"):
        LimitOverrides.model_validate({"turn_timeout": written})
