"""Which limit is in force, and which limits can be set at all."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.contracts.failures import Escalation, RunFailure
from perdure.contracts.run.limits import LimitOverrides, Limits, limits_in
from perdure.contracts.run.state import Ending, RunStatus
from perdure.contracts.run.turn import Usage
from perdure.decisions.run.limits import (
    DEFAULTS,
    apply_ceiling,
    apply_requested,
    budget_ending,
    format_excess,
    format_idle,
    is_nearly_out_of_time,
    is_out_of_time,
    limits_in_force,
    longest_turn,
    merge_limits,
    timed_out_ending,
    values_set_in,
)
from perdure.decisions.run.outcome import end_event_name
from tests.decisions.runs import new_state
from tests.drawn import running


def test_the_defaults_are_the_sources() -> None:
    assert (DEFAULTS.max_steps, DEFAULTS.max_reframes, DEFAULTS.turn_timeout) == (20, 2, timedelta(seconds=120))


@pytest.mark.parametrize("near", [1, 500])
def test_the_nearest_wins_up_and_down(near: int) -> None:
    limits = merge_limits(
        LimitOverrides(max_steps=near), LimitOverrides(max_steps=7, max_turns=9), LimitOverrides(max_reframes=0)
    )
    assert (limits.max_steps, limits.max_turns, limits.max_reframes) == (near, 9, 0)


def test_a_limit_that_is_not_set_is_the_default() -> None:
    assert merge_limits(LimitOverrides(), LimitOverrides()) == DEFAULTS


CEILINGS = st.fixed_dictionaries(
    {},
    optional={
        "max_steps": st.integers(1, 100),
        "max_turns": st.integers(1, 200),
        "max_depth": st.integers(0, 5),
        "max_fanout": st.integers(1, 20),
        "turn_limit": st.integers(1, 2000),
        "hard_limit": st.integers(1, 2000),
        "budget_tokens": st.integers(1, 10_000),
        "budget_usd": st.floats(0.01, 10),
    },
)


@given(CEILINGS, CEILINGS, CEILINGS)
def test_no_limit_is_above_the_ceiling_and_the_others_are_as_set(ceiling: Any, agent: Any, asked: Any) -> None:
    wanted = apply_requested(apply_requested(DEFAULTS, agent), asked)
    state = running((), requested=asked, ceiling=ceiling)
    limits = limits_in_force(state, apply_requested(DEFAULTS, agent))
    highest = apply_requested(DEFAULTS, ceiling)
    for name in set(Limits.model_fields) - {"turn_timeout", "soft_limit"}:
        own, most = getattr(wanted, name), getattr(highest, name)
        expected = own if name not in ceiling else most if own is None else min(own, most)
        assert getattr(limits, name) == expected, name
    assert limits.soft_limit <= wanted.soft_limit
    assert limits.soft_limit == wanted.soft_limit or "hard_limit" in ceiling
    if "turn_limit" in ceiling:
        assert longest_turn(limits) <= highest.turn_limit
    assert format_excess(limits, ceiling) == ()
    assert apply_ceiling(limits, ceiling) == limits


def test_a_short_turn_limit_of_the_ceiling_bounds_silence_too() -> None:
    limits = apply_ceiling(apply_requested(DEFAULTS, {"turn_timeout": "10h"}), {"turn_limit": "5m"})
    assert longest_turn(limits) == timedelta(minutes=5)


def test_what_is_above_the_ceiling_is_named_with_both_numbers() -> None:
    limits = apply_requested(DEFAULTS, {"max_steps": 500, "hard_limit": "2h", "budget_usd": 1})
    ceiling = {"max_steps": 50, "hard_limit": "1h", "budget_usd": 2, "budget_tokens": 100, "of_a_newer_version": 1}
    assert format_excess(limits, ceiling) == (
        "max_steps 500 is above the project's ceiling of 50",
        "hard_limit 2:00:00 is above the project's ceiling of 1:00:00",
    )


def test_limits_are_found_among_the_free_entries_of_a_context() -> None:
    found = limits_in({"tone": "constructive", "max_steps": 6, "max_reframes": 0})
    assert found == LimitOverrides(max_steps=6, max_reframes=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_steps": 0},
        {"max_steps": -1},
        {"max_steps": "many"},
        {"max_turns": 10**9},
        {"max_reframes": -1},
        {"max_depth": 50},
    ],
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


@given(
    active=st.integers(0, 10**8),
    soft=st.integers(1, 10**8),
    hard=st.integers(1, 10**8),
    is_closing=st.booleans(),
    has_ended=st.booleans(),
)
def test_time_is_up_at_the_limit_and_not_before(
    active: int, soft: int, hard: int, is_closing: bool, has_ended: bool
) -> None:
    ending = Ending(status=RunStatus.completed, text="done") if has_ended else None
    limits = {"soft_limit": timedelta(milliseconds=soft), "hard_limit": timedelta(milliseconds=hard)}
    state = new_state(active_ms=active, is_closing=is_closing, ending=ending, **limits)
    assert is_out_of_time(state) == (active >= hard and not has_ended)
    assert is_nearly_out_of_time(state) == (active >= soft and not is_closing)
    assert timed_out_ending(state).reason == RunFailure.hard_limit


MONEY = st.one_of(st.none(), st.floats(0, 1000, allow_nan=False))


@given(
    turns=st.integers(0, 50),
    most=st.integers(1, 50),
    usage=st.tuples(*[st.integers(0, 10**6)] * 4),
    budget_tokens=st.one_of(st.none(), st.integers(1, 4 * 10**6)),
    spent=MONEY,
    budget_usd=MONEY,
)
def test_a_run_is_used_up_exactly_where_a_budget_is_reached(
    turns: int, most: int, usage: Any, budget_tokens: Any, spent: Any, budget_usd: Any
) -> None:
    counted = dict(zip(("input", "output", "cache_read", "cache_write"), usage, strict=True))
    limits = {"max_turns": most, "budget_tokens": budget_tokens, "budget_usd": budget_usd}
    state = new_state(turns=turns, usage=Usage(**counted), cost_usd=spent, **limits)
    reached = [
        *([Escalation.turn_budget] if turns >= most else []),
        *([Escalation.token_budget] if budget_tokens is not None and sum(usage) >= budget_tokens else []),
        *([Escalation.money_budget] if budget_usd is not None and (spent or 0.0) >= budget_usd else []),
    ]
    ending = budget_ending(state)
    assert (ending.reason if ending else None) == next(iter(reached), None)
    assert ending is None or (ending.status, "\n" in ending.text) == (RunStatus.escalated, False)


@given(st.data())
def test_what_is_used_up_stays_used_up(data: Any) -> None:
    """Spending more never opens a budget again."""
    numbers = st.integers(0, 1000)
    before = new_state(
        turns=data.draw(numbers),
        usage=Usage(input=data.draw(numbers)),
        cost_usd=data.draw(numbers) / 100,
        active_ms=data.draw(numbers),
        max_turns=500,
        budget_tokens=500,
        budget_usd=5,
        hard_limit=timedelta(milliseconds=500),
    )
    after = before.evolve(
        turns=before.turns + data.draw(numbers),
        usage=before.usage + Usage(output=data.draw(numbers)),
        cost_usd=before.cost_usd + data.draw(numbers) / 100,
        active_ms=before.active_ms + data.draw(numbers),
    )
    assert budget_ending(before) is None or budget_ending(after) is not None
    assert not is_out_of_time(before) or is_out_of_time(after)


DURATIONS = st.one_of(st.none(), st.integers(1, 10**9).map(lambda ms: timedelta(milliseconds=ms)))
OVERRIDES = st.builds(
    LimitOverrides,
    max_steps=st.one_of(st.none(), st.integers(1, 100_000)),
    soft_limit=DURATIONS,
    hard_limit=DURATIONS,
    budget_tokens=st.one_of(st.none(), st.integers(1, 10**9)),
    budget_usd=st.one_of(st.none(), st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)),
)


PAIR = ("soft_limit", "hard_limit")


@given(OVERRIDES, OVERRIDES)
def test_a_limit_that_is_set_alone_is_not_idle(own: LimitOverrides, other: LimitOverrides) -> None:
    """Whatever is set: at the defaults, and over another limit that an agent or the file has set alone."""
    for limits in (merge_limits(own), merge_limits(own, other)):
        is_alone = not (limits.soft_limit >= limits.hard_limit)
        assert is_alone or bool(format_idle(limits))
    alone = merge_limits(LimitOverrides(max_steps=own.max_steps, hard_limit=own.hard_limit))
    assert format_idle(alone) == ()
    assert format_idle(merge_limits(LimitOverrides(soft_limit=own.soft_limit))) == ()


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([{"max_steps": 110}], {"max_steps": 110, "max_turns": 190}),
        ([{"max_steps": 5}], {"max_turns": 100}),
        ([{"max_steps": 300}, {"max_steps": 110}], {"max_turns": 380}),
        ([{"max_steps": 110}, {"max_turns": 30}], {"max_steps": 110, "max_turns": 30}),
        ([{"hard_limit": "1h"}], {"soft_limit": timedelta(minutes=45)}),
        ([{"hard_limit": "4m"}], {"soft_limit": timedelta(minutes=3)}),
        ([{"soft_limit": "30m"}], {"hard_limit": timedelta(minutes=40)}),
        ([{"soft_limit": "5m"}], {"hard_limit": timedelta(minutes=20)}),
        ([{"soft_limit": "30m", "hard_limit": "10m"}], {"soft_limit": timedelta(minutes=30)}),
    ],
)
def test_a_limit_that_is_set_alone_moves_the_other_of_its_pair(
    layers: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    by_run = [apply_requested(merge_limits(*map(LimitOverrides.model_validate, layers[1:])), layers[0])]
    for limits in (merge_limits(*map(LimitOverrides.model_validate, layers)), *by_run):
        assert {name: getattr(limits, name) for name in expected} == expected


def test_limits_that_are_set_against_each_other_are_named() -> None:
    against = {"max_steps": 9, "max_turns": 3, "hard_limit": "5m", "soft_limit": "9m"}
    limits = merge_limits(LimitOverrides.model_validate(against))
    assert format_idle(limits) == (
        "max_steps 9 needs several calls a turn: max_turns is 3",
        "soft_limit 0:09:00 has no effect: hard_limit is 0:05:00",
    )
    assert apply_ceiling(DEFAULTS, {"hard_limit": "4m"}).soft_limit == timedelta(minutes=3)


@given(st.lists(OVERRIDES, max_size=4))
def test_of_every_limit_the_nearest_setting_counts_also_after_a_way_through_json(layers: list[LimitOverrides]) -> None:
    limits = merge_limits(*layers)
    for name in ("max_steps", "soft_limit", "hard_limit", "budget_tokens", "budget_usd"):
        found = [value for layer in layers if (value := getattr(layer, name)) is not None]
        is_moved = name in PAIR and any(getattr(layer, other) for layer in layers for other in PAIR)
        assert (is_moved and not found) or getattr(limits, name) == (found[0] if found else getattr(DEFAULTS, name))
    assert apply_requested(DEFAULTS, values_set_in(LimitOverrides())) == DEFAULTS
    assert type(limits).model_validate_json(limits.model_dump_json()) == limits


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (RunStatus.completed, "agent_run.completed"),
        (RunStatus.escalated, "agent_run.escalated"),
        (RunStatus.failed, "agent_run.failed"),
        (RunStatus.timed_out, "agent_run.failed"),
    ],
)
def test_a_run_at_its_hard_limit_is_reported_as_failed(status: Any, event: str) -> None:
    assert end_event_name(Ending(status=status, text="")) == event
    assert end_event_name(None) == "agent_run.cancelled"
