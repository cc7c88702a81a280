"""The two base classes: what lies in history is read tolerantly, what comes from outside strictly."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen value. Unknown fields are ignored, so that old workers can read newer histories."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Edge(BaseModel):
    """A frozen value from a file, a person or another program. Unknown fields are refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Undecodable(Value):
    """Stands for a value from outside that could not be read at all."""

    reason: str
