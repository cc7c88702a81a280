"""The checks of a run against its expectation: a line for each that fails."""

import json
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from contracts.run.evaluation import Case, Expectation, Facts, Score
from decisions.text.formatting import truncate

MAX_REASON_TEXT = 120  # characters of a text in a reason


def failed_checks(expect: Expectation, facts: Facts) -> tuple[str, ...]:
    if (question := _question_check(expect, facts)) is not None:
        return (question,)
    if facts.unanswered is not None:  # it asked as expected, and was stopped there
        return tuple(_call_checks(expect, facts))
    return (
        *_end_checks(expect, facts),
        *_result_checks(expect, facts),
        *_call_checks(expect, facts),
        *_limit_checks(expect, facts),
    )


def _question_check(expect: Expectation, facts: Facts) -> str | None:
    if facts.unanswered is not None and (expect.asks is None or expect.answer):
        unsettled = ", and no answer settles it" if expect.answer else ""
        return f"it asks a person{unsettled}: {_shorten(facts.unanswered)}"
    if expect.asks is None:
        return None
    if not facts.asked:
        return f"it asks no question; it is {facts.status}: {_shorten(facts.text)}"
    if expect.asks is not True and not any(expect.asks in asked for asked in facts.asked):
        return f"it asks something else: {_shorten(facts.asked[0])}"
    return None


def _end_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    if facts.status != expect.status:
        yield f"it is {facts.status}, not {expect.status}: {_shorten(facts.text)}"
        return
    for text in expect.contains:
        if text not in facts.text:
            yield f"it does not say {_shorten(text)!r}, but {_shorten(facts.text)!r}"
    for text in expect.not_contains:
        if text in facts.text:
            yield f"it says {_shorten(text)!r}"
    for pattern in expect.matches:
        if not re.search(pattern, facts.text):
            yield f"it does not match {_shorten(pattern)!r}: {_shorten(facts.text)!r}"
    for pattern in expect.artifact:
        if not any(fnmatchcase(file, pattern) for file in facts.files):
            files = ", ".join(facts.files) or "none"
            yield f"there is no file {_shorten(pattern)}; there are: {_shorten(files)}"


def _result_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    for path, expected in expect.result.items():
        if (actual := _value_at(facts.result, path)) != expected:
            yield f"its result has {path} = {_shorten(_as_json(actual))}, not {_shorten(_as_json(expected))}"


def _value_at(result: Any, path: str) -> Any:
    """Return the value at a dotted path of names and list positions; None if there is none."""
    for name in path.split("."):
        if isinstance(result, dict):
            result = result.get(name)
        elif isinstance(result, list) and name.isdecimal() and int(name) < len(result):
            result = result[int(name)]
        else:
            return None
    return result


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _call_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    for tool in expect.calls:
        if tool not in facts.made:
            yield f"it does not call {tool}; it calls: {_shorten(', '.join(facts.made) or 'nothing')}"
    for tool in expect.never_calls:
        if tool in facts.tried:
            yield f"it calls {tool}"


def _limit_checks(expect: Expectation, facts: Facts) -> Iterator[str]:
    if expect.max_steps is not None and facts.steps > expect.max_steps:
        yield f"it takes {facts.steps} steps; the limit is {expect.max_steps}"
    if expect.max_cost_usd is None:
        return
    if facts.cost_usd is None:
        yield "its cost is not known: set the price in perdure.toml, [prices.MODEL]"
    elif facts.cost_usd > expect.max_cost_usd:
        yield f"it costs USD {facts.cost_usd:.4f}; the limit is {expect.max_cost_usd:g}"


def pass_rate(scores: Sequence[Score]) -> float:
    """Return the share that passed, 0 to 1."""
    return sum(score.has_passed for score in scores) / len(scores)


def case_name(case: Case) -> str:
    return case.name or truncate(" ".join(case.goal.split()), 60)


def _shorten(text: str) -> str:
    return truncate(" ".join(text.split()), MAX_REASON_TEXT)
