"""How far a run may go. Nearest wins: run over agent over file over default, up or down."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import Field

from contracts.duration import Duration
from contracts.models import Edge, Value, sparse


class LimitOverrides(Edge):
    """Limits as a caller, an agent definition or `perdure.toml` may set them. None: not set here."""

    max_steps: int | None = Field(default=None, ge=1, le=100_000)
    """Calls beyond it are not made; the run escalates if it asks for another."""
    max_turns: int | None = Field(default=None, ge=1, le=100_000)
    """Model turns; then the run escalates."""
    max_reframes: int | None = Field(default=None, ge=0, le=1000)
    """How often the agent may change its frame; then the run escalates."""
    turn_timeout: Duration | None = None
    """Without progress in a model turn: no byte from the model's server. Then it is asked again, five times at most."""
    turn_limit: Duration | None = None
    """Of a whole model turn whose reply keeps coming; then the run fails (`TurnLimit`)."""
    soft_limit: Duration | None = None
    """Active time; then one last turn without tools, whose outcome is delivered as `"partial": true`."""
    hard_limit: Duration | None = None
    """Active time; then the run fails (`HardLimit`), and can be resumed with as much time again."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """All that were sent or received, summaries too; then the run escalates."""
    budget_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The same in money. Without a known price there is no such limit, and the run says "USD unknown"."""
    directive_tool: str | None = Field(default=None, min_length=1, max_length=64)
    """The tool that the model must call where a first hint did not end a loop."""
    max_depth: int | None = Field(default=None, ge=0, le=10)
    """Delegations below each other, as the first run has it; a run there is not offered `delegate`."""
    max_fanout: int | None = Field(default=None, ge=1, le=100)
    """Subtasks of one delegation; more are refused, and the model is told."""
    max_follow_ups: int | None = Field(default=None, ge=0, le=1000)
    """Follow-ups of a run and of all that resumes from them; more are refused, and the model is told."""


def limits_in(context: Mapping[str, Any]) -> LimitOverrides:
    """The limits that a start event's free-form `context` carries. Raises pydantic's ValidationError."""
    known = LimitOverrides.model_fields.keys() & context.keys()
    return LimitOverrides.model_validate({name: context[name] for name in sorted(known)})


class Limits(Value):
    """The limits in force for a run."""

    max_steps: int
    max_turns: int
    max_reframes: int
    turn_timeout: Duration  # without progress
    turn_limit: Duration = timedelta(minutes=15)  # of active time, for the whole turn
    soft_limit: Duration = timedelta(minutes=15)  # of active time; then one last turn
    hard_limit: Duration = timedelta(minutes=20)
    budget_tokens: int | None = sparse(None)  # all that were sent or received; None: no limit
    budget_usd: float | None = sparse(None)
    directive_tool: str = "reframe"  # forced where a nudge did not end a thrash
    max_depth: int = 3  # of delegations, below the run that nobody delegated: what that one says holds for all
    max_fanout: int = 10  # subtasks of a delegation
    max_follow_ups: int = 10  # of the run, and of the whole chain that resumes from them
