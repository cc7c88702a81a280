"""The base classes: what lies in history is read tolerantly, what comes from outside strictly."""

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


class Undecodable(Value):
    """Stands for a value from outside that could not be read at all."""

    reason: str
