"""The values of rules' expressions: quick ones in place, others in a process that has a deadline."""

import asyncio
import os
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.activities import rule_values
from perdure.activities.rule_values import RULES_SECONDS, TOO_SLOW, RuleReading
from perdure.decisions.policy.rules import (
    MAX_ENTRIES,
    MAX_SMALL,
    UnevaluableError,
    check_facts,
    compile_expression,
    find_value,
)

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
SIMPLE = [
    "args.cents > 0 && args.cents <= 2000 && run.calls['refund'] < 3",
    "!run.has_read.exists(s, s == 'web' && run . has_read.all(t, t != 'mail'))",
    "args.to.endsWith('@example.com') || size(args.items) in [1, 2]",
    "args.text == 'x.matches(y) [1].map(z, z)'",
]
NOT_SIMPLE = [
    "args.items.exists(i, i > 0)",
    "args.run.has_read.exists(s, s == 'web') || [1].all(x, x > 0)",
    "args.to.matches('.*@example[.]com')",
    "size(history) > 3",
    "args.a + args.b + args.c + args.d + args.e + args.f == [1]",
    "run.has_read.map(s, args.items.filter(i, i == s)).size() > 0",
]


@pytest.mark.parametrize("text", [*SIMPLE, *NOT_SIMPLE])
def test_an_expression_is_simple_without_loops_patterns_and_history(text: str) -> None:
    assert compile_expression(text).is_simple == (text in SIMPLE)


async def value_of(text: str, facts: dict[str, Any], seconds: float = RULES_SECONDS) -> Any:
    expression, checked = compile_expression(text), check_facts(facts)
    return await RuleReading(seconds).run(lambda find: find(expression, checked), [expression], checked)


def started() -> int:
    return len(rule_values._processes(os.getpid())._idle)


FACTS: dict[str, Any] = {
    "args": {"text": "x", "items": [3, 1, 2], "big": 2**62, "none": None},
    "now": NOW,
    "history": [{"tool": "refund", "args": {"cents": 5}, "outcome": "ok", "at": NOW}],
    "run": {"calls": {"refund": 2}, "has_read": ["web"]},
}


@settings(max_examples=30)
@given(
    st.sampled_from(
        [
            "args.items.exists(i, i > run.calls['refund'])",
            "args.items.filter(i, i > 1)",
            "args.items.map(i, i * 2)[0]",
            "total(args.items.map(i, i * args.big))",
            "args.nope.exists(i, i)",
            "args.text.matches('(')",
            "args.text.matches('x') ? args.text : string(args.big)",
            "history.all(h, h.at <= now && h.args.cents == 5 && h.outcome == 'ok')",
            "args.items.all(i, i > 0) ? null : 1.5",
            "size(history)",
        ]
    )
)
def test_a_value_from_the_process_is_the_one_that_is_found_here(text: str) -> None:
    try:
        here = find_value(compile_expression(text), check_facts(FACTS))
    except UnevaluableError as error:
        with pytest.raises(UnevaluableError, match=f"^{error!s}$"):
            asyncio.run(value_of(text, FACTS))
        return
    there = asyncio.run(value_of(text, FACTS))
    assert there == (here if not isinstance(here, list) else [])


ITEMS = [{"group": 1, **{f"f{n}": "x" for n in range(5)}} for _ in range(MAX_ENTRIES)]
COSTLY = [
    ("size(args.items.map(a, args.items.filter(b, b.group == a.group)).filter(l, size(l) > 300)) > 0", ITEMS),
    ("size(args.items.map(a, args.items.map(b, args.items))) > 0", ITEMS),
    (f"size(args.items.map(a, {' + '.join(['args.text'] * 60)})) > 0", ITEMS),
]


@pytest.mark.parametrize(("text", "items"), COSTLY, ids=range(len(COSTLY)))
async def test_what_takes_too_much_ends_while_the_event_loop_goes_on(text: str, items: Any) -> None:
    ticks = 0
    running = asyncio.create_task(value_of(text, {"args": {"items": items, "text": "x" * 200_000}}))
    while not running.done():
        await asyncio.sleep(0.001)
        ticks += 1
    with pytest.raises(UnevaluableError, match=TOO_SLOW):
        await running
    assert ticks > 20
    assert await value_of("args.items.exists(i, i == 1)", {"args": {"items": [1]}}) is True


async def test_simple_expressions_over_large_arguments_leave_the_event_loop_and_small_ones_start_nothing() -> None:
    before = started()
    assert await value_of("args.text == 'x'", {"args": {"text": "x"}}) is True
    assert started() == before
    assert await value_of("args.text == 'x'", {"args": {"text": "x" * MAX_SMALL}}) is False
    assert started() >= 1


async def test_the_rules_of_a_reply_have_their_time_together() -> None:
    with pytest.raises(UnevaluableError, match="the rules before it took too long"):
        await value_of("args.items.exists(i, i == 1)", {"args": {"items": [1]}}, seconds=0)
