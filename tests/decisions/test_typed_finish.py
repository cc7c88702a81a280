"""The built-in `finish` of a run with an output schema accepts exactly the results that the schema accepts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from perdure.decisions.tools import FINISH, builtin_schemas

LINKED = {"properties": {"next": {"$ref": "#"}, "name": {"type": "string"}}, "required": ["name"]}
TREE = {
    "$defs": {"Node": {"properties": {"below": {"items": {"$ref": "#/$defs/Node"}}}, "required": ["below"]}},
    "$ref": "#/$defs/Node",
}
NAMES = ("next", "name", "below", "$ref", "const")
REFERENCES = ("#", "#/$defs/A", "#/definitions/B", "#/properties/name", "#here")


def finish_schema(output_schema: dict[str, Any]) -> dict[str, Any]:
    tools = builtin_schemas(delegates=False, journal=False, follow_ups=False, output_schema=output_schema)
    return next(tool.input_schema for tool in tools if tool.name == FINISH)


def json_values() -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(("a", "#"))
    return st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
        max_leaves=6,
    )


def schemas_within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    by_name = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    return st.one_of(
        st.fixed_dictionaries({"properties": by_name}),
        st.fixed_dictionaries({"items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
    )


# A reference is always below a property or an item, so that none refers to itself without end.
LEAVES = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": st.sampled_from(("string", "integer", "object", "array", "null"))}),
    st.fixed_dictionaries({"const": json_values() | st.just({"$ref": "#"})}),
    st.fixed_dictionaries({"items": st.builds(lambda to: {"$ref": to}, st.sampled_from(REFERENCES))}),
    st.fixed_dictionaries({"properties": st.fixed_dictionaries({"next": st.just({"$ref": "#"})})}),
)
SCHEMAS = st.recursive(LEAVES, schemas_within, max_leaves=5)


@given(SCHEMAS, SCHEMAS, SCHEMAS, json_values())
def test_finish_accepts_what_the_output_schema_accepts(root: Any, one: Any, other: Any, result: Any) -> None:
    own = {
        "allOf": [root],
        "$defs": {"A": one, "Here": {"$anchor": "here", "type": "string"}},
        "definitions": {"B": other},
        "properties": {"name": {"type": "string"}},
    }
    arguments = {"outcome": "done", "result": result}
    Draft202012Validator.check_schema(finish_schema(own))
    assert Draft202012Validator(finish_schema(own)).is_valid(arguments) == Draft202012Validator(own).is_valid(result)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (LINKED, {"name": "a", "next": {"name": "b"}}, {"name": "a", "next": {"next": {}}}),
        (TREE, {"below": [{"below": []}]}, {"below": [{}]}),
        ({"const": {"$ref": "#"}}, {"$ref": "#"}, {"$ref": "#/properties/result"}),
        ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "#"}, {"$ref": 1}),
        ({"$id": "urn:order", **LINKED}, {"name": "a"}, {"next": {}, "name": "a"}),
    ],
    ids=["recursive", "definition", "constant", "property", "id"],
)
def test_references_keep_their_targets(schema: dict[str, Any], good: Any, bad: Any) -> None:
    validator = Draft202012Validator(finish_schema(schema))
    assert validator.is_valid({"outcome": "done", "result": good})
    assert not validator.is_valid({"outcome": "done", "result": bad})
    assert not validator.is_valid({"outcome": "done"})
