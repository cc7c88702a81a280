"""Schemas of tools as the Chat Completions API wants them: it refuses some that JSON Schema and MCP servers know.

Additions change nothing of what a schema allows.
"""

from typing import Any

Json = dict[str, Any]

_PARTS = {"items", "prefixItems", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else"}
_PARTS |= {"anyOf", "oneOf", "allOf"}
_TABLES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def to_chat_schema(schema: Json) -> Json:
    """Return the schema of a tool with properties, and with items in each array."""
    return {"properties": {}, **_with_items(schema)}


def _with_items(schema: Any) -> Any:
    """Return the schema with items in each array, and with a table in place of a schema that is `true`."""
    if isinstance(schema, list):
        return [_with_items(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    fixed = dict(schema)
    for name in fixed.keys() & _PARTS:
        fixed[name] = _with_items(fixed[name])
    for name in _TABLES:
        if isinstance(fixed.get(name), dict):
            fixed[name] = {key: {} if each is True else _with_items(each) for key, each in fixed[name].items()}
    if "items" not in fixed and _allows_array(fixed.get("type")):
        fixed["items"] = {}
    return fixed


def _allows_array(kind: Any) -> bool:
    return kind == "array" or (isinstance(kind, list) and "array" in kind)
