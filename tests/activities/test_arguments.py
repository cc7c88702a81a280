"""A call's arguments against the schema of its tool, whoever wrote the one and the other."""

from time import process_time
from typing import Any

import pytest

from activities.tools import json_schema
from activities.tools.json_schema import MAX_CPU_SECONDS, SchemaNotApplicableError, SchemaValidator

SLOW = "^(a|aa)+$"
LONG = "a" * 60 + "!"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
OLD_SLOW = {"$schema": DRAFT_7, "properties": {"a": {"pattern": SLOW}}}
NO_MORE = {"prefixItems": [{}], "unevaluatedItems": False}
A_AND_B = {"a": 1, "b": 2}


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time that a check may take."""
    monkeypatch.setattr(json_schema, "MAX_CPU_SECONDS", 0.1)


def of(**fields: Any) -> SchemaValidator:
    return SchemaValidator({"type": "object", **fields})


def doubling(keyword: str, **fields: Any) -> dict[str, Any]:
    """Thirty definitions, of which each names the next one twice."""
    twice = {f"a{at}": {keyword: [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(30)}
    return {"$ref": "#/$defs/a0", "$defs": {**twice, "a30": {}}, **fields}


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"properties": {"a": {"type": "string", "pattern": SLOW}}}, {"a": LONG}),
        ({"properties": {"a": {"items": {"pattern": SLOW}}}}, {"a": [LONG] * 1000}),
        ({"patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {LONG: 1}),
        ({"unevaluatedProperties": False, "patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"$ref": "#/$defs/a", "$defs": {"a": OLD_SLOW}}, {"a": LONG}),
        (doubling("allOf"), {}),
        (doubling("allOf", **{"$schema": DRAFT_7}), {}),
        (doubling("anyOf", unevaluatedProperties=False), {"a": 1}),
        ({"properties": {"a": {"contains": {"enum": list(range(10_000))}}}}, {"a": [-1] * 200_000}),
    ],
)
def test_a_pattern_or_schema_without_end_is_given_up(schema: dict[str, Any], given: dict[str, Any]) -> None:
    began = process_time()
    with pytest.raises(SchemaNotApplicableError, match="takes too long"):
        of(**schema).find_error(given)
    assert process_time() - began < 1.1  # which is what `regex` counts


@pytest.mark.parametrize("schema", [{"uniqueItems": True}, {"items": True, "unevaluatedItems": False}])
def test_what_is_asked_of_a_long_list_as_a_whole_takes_one_pass(schema: dict[str, Any]) -> None:
    began = process_time()
    assert of(properties={"a": schema}).find_error({"a": [{"n": n} for n in range(50_000)]}) is None
    assert process_time() - began < MAX_CPU_SECONDS + 1


@pytest.mark.parametrize(
    ("items", "is_unique"),
    [
        ([1, True, 0, False, "1", None], True),
        ([1, 1.0], False),
        ([[1], [True]], True),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([{"a": 1}, {"a": True}, {"a": {"a": 1}}], True),
        ([[["a", 1]], {"a": 1}, []], True),
    ],
)
def test_items_are_alike_where_json_has_them_alike(items: list[Any], is_unique: bool) -> None:
    assert (of(properties={"a": {"uniqueItems": True}}).find_error({"a": items}) is None) == is_unique


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
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 1]}, "a: [1, 1] has non-unique elements"),
        ({"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"a": 1}, None),
        ({"patternProperties": {"^n": {}}, "unevaluatedProperties": False}, {"n1": 1}, None),
        (
            {"if": {"required": ["a"]}, "then": {"properties": {"a": {}}}, "unevaluatedProperties": False},
            {"a": 1},
            None,
        ),
        ({"dependentSchemas": {"a": {"properties": {"b": {}}}}, "unevaluatedProperties": {"const": 1}}, A_AND_B, None),
        ({"unevaluatedProperties": False}, {"a": 1}, "arguments: Unevaluated properties are not allowed ('a')"),
        ({"properties": {"a": NO_MORE}}, {"a": [1, 2]}, "a: Unevaluated items are not allowed (2)"),
        ({"properties": {"a": {**NO_MORE, "contains": {"const": 2}}}}, {"a": [1, 2]}, None),
    ],
)
def test_an_error_in_arguments_is_reported_with_its_place(
    schema: dict[str, Any], given: dict[str, Any], fault: str | None
) -> None:
    told = of(**schema).find_error(given)
    assert told == fault or (told is not None and fault is not None and told.startswith(fault))


def test_a_pattern_that_is_none_makes_the_schema_unusable() -> None:
    with pytest.raises(SchemaNotApplicableError):
        of(properties={"a": {"pattern": "("}}).find_error({"a": "x"})


OBJECT, LIST, TEXT = {"type": "object", "required": ["n"]}, {"type": "array"}, {"type": "string"}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("wanted", "given", "taken"),
    [
        (OBJECT, '{"n": 1}', {"n": 1}),
        (LIST, ' [1, "[2]"]', [1, "[2]"]),
        ({"type": ["array", "null"]}, "[]", []),
        ({"anyOf": [{"$ref": "#/$defs/o"}, NULL]}, '{"n": 1}', {"n": 1}),
        ({"$ref": "#/$defs/o"}, '{"n": 1}', {"n": 1}),
        ({"type": "object", "properties": {"b": LIST}}, {"b": "[1]"}, {"b": [1]}),
        ({"items": OBJECT}, ['{"n": 1}', {"n": "{}"}], [{"n": 1}, {"n": "{}"}]),
        (OBJECT, "{}", {}),  # what is wrong in it is said of the object
        (TEXT, '{"n": 1}', '{"n": 1}'),
        ({}, '{"n": 1}', '{"n": 1}'),
        ({"anyOf": [TEXT, OBJECT]}, '{"n": 1}', '{"n": 1}'),
        (OBJECT, "[1]", "[1]"),
        ({"anyOf": [OBJECT, NULL]}, "{}", "{}"),
        ({"type": "integer"}, "[1]", "[1]"),
        (NULL, "null", "null"),
        (OBJECT, '{"n": 1, "n": 2}', '{"n": 1, "n": 2}'),
        (OBJECT, "{'n': 1}", "{'n': 1}"),
        (LIST, "[" * 60 + "]" * 60, "[" * 60 + "]" * 60),
        ({"type": "object", "$ref": "#/$defs/none"}, '{"n": 1}', '{"n": 1}'),
    ],
)
def test_a_text_is_read_where_the_schema_wants_what_it_holds_and_takes_no_text(
    wanted: dict[str, Any], given: Any, taken: Any
) -> None:
    arguments = of(properties={"a": wanted}, **{"$defs": {"o": OBJECT}})
    before = {"a": given, "b": "{}"}
    assert arguments.read_written_values(before) == {"a": taken, "b": "{}"}
    assert before == {"a": given, "b": "{}"}
