"""The base classes: what lies in history is read tolerantly, what comes from outside strictly."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Value(BaseModel):
    """A frozen value. Unknown fields are ignored, so that old workers can read newer histories."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Edge(BaseModel):
    """A frozen value from a file, a person or another program. Unknown fields are refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CamelValue(Value):
    """A value whose source writes `workflowId`; here it is `workflow_id`, and either is read."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )


class CamelEdge(CamelValue):
    """The same from outside. Unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


MOST_DEPTH = 50  # of a value from outside: a payload nested 200 deep is not read any more, and it gets wrapped


def depth(value: Any) -> int:
    """How many lists and objects lie in each other."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


class Undecodable(Value):
    """Stands for a value from outside that could not be read at all."""

    reason: str
