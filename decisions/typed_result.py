"""The built-in `finish` of a run with an output schema: it takes the run's `result`."""

from typing import Any

from contracts.agent import ToolSchema

_AT = "#/properties/result"
_DEFINITIONS = ("$defs", "definitions")


def add_result_parameter(finish: ToolSchema, output_schema: dict[str, Any]) -> ToolSchema:
    """Return `finish` with the required parameter `result`.

    Definitions move to the top, where models and servers expect them; other references are adjusted.
    """
    schema = finish.input_schema
    own = {name: value for name, value in output_schema.items() if name not in (*_DEFINITIONS, "$schema", "$id")}
    definitions = {name: _adjust_references(output_schema[name]) for name in _DEFINITIONS if name in output_schema}
    changes = {
        "properties": {**schema["properties"], "result": _adjust_references(own)},
        "required": [*schema["required"], "result"],
    }
    return finish.model_copy(update={"input_schema": {**schema, **changes, **definitions}})


def _adjust_references(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_adjust_references(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _adjust_reference(inner) if name == "$ref" and isinstance(inner, str) else _adjust_references(inner)
        for name, inner in schema.items()
    }


def _adjust_reference(reference: str) -> str:
    is_definition = reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS))
    return reference if is_definition or not reference.startswith("#") else _AT + reference[1:]
