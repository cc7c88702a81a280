"""The type of a JSON Schema that a start or a subtask gives for the result of its run."""

from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import to_json

from contracts.models import MAX_NESTING, nesting_depth

MAX_SCHEMA_BYTES = 64 * 1024


def _check_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    if nesting_depth(schema) > MAX_NESTING:
        raise ValueError(f"nested more than {MAX_NESTING} deep")
    if (size := len(to_json(schema))) > MAX_SCHEMA_BYTES:
        raise ValueError(f"{size:,} bytes; the maximum is {MAX_SCHEMA_BYTES:,}")
    return schema


OutputSchema = Annotated[dict[str, Any], AfterValidator(_check_bounds)]
