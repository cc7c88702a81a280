"""How far a run may go. Nearest wins: run over agent over file over default, up or down."""

from collections.abc import Mapping
from datetime import timedelta
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
    soft_limit: Duration | None = None
    hard_limit: Duration | None = None
    budget_tokens: int | None = Field(default=None, ge=1)
    budget_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    directive_tool: str | None = Field(default=None, min_length=1, max_length=64)
    max_depth: int | None = Field(default=None, ge=0, le=10)
    max_fanout: int | None = Field(default=None, ge=1, le=100)


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
    soft_limit: Duration = timedelta(minutes=15)  # of active time; then one last turn
    hard_limit: Duration = timedelta(minutes=20)
    budget_tokens: int | None = None  # all that were sent or received; None: no limit
    budget_usd: float | None = None
    directive_tool: str = "reframe"  # forced where a nudge did not end a thrash
    max_depth: int = 3  # of delegations, below the run that nobody delegated: what that one says holds for all
    max_fanout: int = 10  # subtasks of a delegation
