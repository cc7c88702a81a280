"""How far a run may go. Nearest wins: run over agent over file over default, up or down."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from contracts.duration import Duration
from contracts.value import Edge, Value


class LimitOverrides(Edge):
    """Limits as a caller, an agent definition or `perdure.toml` may set them. None: not set here."""

    max_steps: int | None = Field(default=None, ge=1, le=100_000)
    max_turns: int | None = Field(default=None, ge=1, le=100_000)
    max_reframes: int | None = Field(default=None, ge=0, le=1000)
    turn_timeout: Duration | None = None


def limits_in(context: Mapping[str, Any]) -> LimitOverrides:
    """The limits that a start event's free-form `context` carries. Raises pydantic's ValidationError."""
    known = LimitOverrides.model_fields.keys() & context.keys()
    return LimitOverrides.model_validate({name: context[name] for name in sorted(known)})


class Limits(Value):
    """The limits in force for a run."""

    max_steps: int
    max_turns: int
    max_reframes: int
    turn_timeout: Duration
