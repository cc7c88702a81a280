"""A call's arguments against the schema of its tool, whoever wrote the one and the other."""

from time import process_time
from typing import Any

import pytest

from activities.arguments import WITHIN, Arguments, NotApplicable

SLOW = "^(a|aa)+$"
LONG = "a" * 60 + "!"


def of(**fields: Any) -> Arguments:
    return Arguments({"type": "object", **fields})


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"properties": {"a": {"type": "string", "pattern": SLOW}}}, {"a": LONG}),
        ({"properties": {"a": {"items": {"pattern": SLOW}}}}, {"a": [LONG] * 1000}),
        ({"patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {LONG: 1}),
    ],
)
def test_a_pattern_that_comes_to_no_end_is_given_up(schema: dict[str, Any], given: dict[str, Any]) -> None:
    began = process_time()
    with pytest.raises(NotApplicable, match="takes too long"):
        of(**schema).fault(given)
    assert process_time() - began < WITHIN + 1  # which is what `regex` counts


@pytest.mark.parametrize(
    ("schema", "given", "fault"),
    [
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": "xx"}, None),
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": "y"}, "a: 'y' does not match '^x+$'"),
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": 7}, None),
        ({"patternProperties": {"^n": {"type": "integer"}}}, {"n1": "x"}, "n1: 'x' is not of type 'integer'"),
        ({"patternProperties": {"^n": {}}, "additionalProperties": False}, {"n1": 1}, None),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1, "b": 2}, "arguments: Additional"),
        ({"additionalProperties": {"type": "integer"}}, {"b": "x"}, "b: 'x' is not of type 'integer'"),
        ({"additionalProperties": True}, {"b": "x"}, None),
        ({"required": ["a"]}, {}, "arguments: 'a' is a required property"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(schema: dict[str, Any], given: dict[str, Any], fault: str | None) -> None:
    told = of(**schema).fault(given)
    assert told == fault or (told is not None and fault is not None and told.startswith(fault))


def test_a_pattern_that_is_none_makes_the_schema_unusable() -> None:
    with pytest.raises(NotApplicable):
        of(properties={"a": {"pattern": "("}}).fault({"a": "x"})
