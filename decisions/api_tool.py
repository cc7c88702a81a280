"""The Messages API's own rules for a tool: one tool that breaks them makes every request with it fail."""

import json
import re
from typing import Any

MAX_DEFINITION = 64 * 1024  # bytes of a tool's description and schema, which are sent to the model
COMBINATORS = ("anyOf", "oneOf", "allOf")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def api_rejection(name: str, description: str, input_schema: Any) -> tuple[str, str] | None:
    """Return the field that the API rejects, and its rule, if any."""
    if not _NAME.fullmatch(name):
        return "name", "the name must match ^[a-zA-Z0-9_-]{1,64}$"
    if not isinstance(input_schema, dict):
        return "input_schema", "the schema must be an object"
    if error := _schema_rejection(input_schema):
        return error
    if len(json.dumps([description, input_schema]).encode()) > MAX_DEFINITION:
        return "input_schema", f"the definition is larger than {MAX_DEFINITION:,} bytes"
    return None


def _schema_rejection(schema: dict[str, Any]) -> tuple[str, str] | None:
    """Check the root of the schema. Deeper levels may have combinators, and properties of any name."""
    if schema.get("type") != "object":
        return "input_schema.type", 'the schema must have the type "object"'
    if combinators := [word for word in COMBINATORS if word in schema]:
        return "input_schema", f"{combinators[0]} is not supported at the root of the schema"
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return "input_schema.properties", "the properties must be an object"
    bad_name = next((key for key in properties if not _PROPERTY.fullmatch(key)), None)
    if bad_name is not None:
        rule = "names of properties must match ^[a-zA-Z0-9_.-]{1,64}$"
        return "input_schema.properties", f"{rule}, and {bad_name[:100]!a} does not"
    return None
