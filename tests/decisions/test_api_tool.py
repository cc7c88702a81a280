"""What the Messages API takes for a tool, at the root of its schema and in its names."""

from typing import Any

import pytest

from perdure.decisions.tools import MAX_DEFINITION, all_schemas, api_rejection

OBJECT: dict[str, Any] = {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({}, "input_schema.type"),
        ({"type": "array"}, "input_schema.type"),
        ({"type": ["object", "null"]}, "input_schema.type"),
        ({**OBJECT, "anyOf": []}, "input_schema"),
        ({**OBJECT, "oneOf": [OBJECT]}, "input_schema"),
        ({**OBJECT, "allOf": [OBJECT]}, "input_schema"),
        ({**OBJECT, "properties": []}, "input_schema.properties"),
        ({**OBJECT, "properties": {"$filter": {}}}, "input_schema.properties"),
        ({**OBJECT, "properties": {"filter[id]": {}}}, "input_schema.properties"),
        ({**OBJECT, "properties": {"größe": {}}}, "input_schema.properties"),
        ({**OBJECT, "properties": {"a\n": {}}}, "input_schema.properties"),
        ({**OBJECT, "properties": {"": {}}}, "input_schema.properties"),
        ({**OBJECT, "properties": {"x" * 65: {}}}, "input_schema.properties"),
        ({**OBJECT, "description": "x" * MAX_DEFINITION}, "input_schema"),
        ([], "input_schema"),
        (None, "input_schema"),
    ],
)
def test_a_schema_that_the_api_refuses_is_named_by_its_field(schema: Any, field: str) -> None:
    fault = api_rejection("look", "looks", schema)
    assert fault is not None
    assert fault[0] == field


@pytest.mark.parametrize("name", ["", "a b", "a.b", "größe", "look\n", "x" * 65])
def test_a_name_that_the_api_refuses_is_one(name: str) -> None:
    fault = api_rejection(name, "", OBJECT)
    assert fault is not None
    assert fault[0] == "name"


def test_what_lies_below_the_root_is_free() -> None:
    inner = {"anyOf": [{"type": "string"}, {"type": "null"}], "properties": {"filter[id]": {}}}
    assert api_rejection("look", "", {**OBJECT, "properties": {"a.b-C_1": inner}}) is None


def test_each_built_in_tool_is_taken() -> None:
    schemas = all_schemas()
    assert [api_rejection(tool.name, tool.description, tool.input_schema) for tool in schemas] == [
        None for _ in schemas
    ]
