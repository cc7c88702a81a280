"""The limits of a run. The most specific setting wins, up or down: run, agent, file, default."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from contracts.duration import Duration
from contracts.models import FrozenModel, StrictModel, omit_default


class LimitOverrides(StrictModel):
    """Limits set by a caller, an agent definition or `perdure.toml`."""

    max_steps: int | None = Field(default=None, ge=1, le=100_000)
    """Tool calls; then the run escalates if the model asks for another."""
    max_turns: int | None = Field(default=None, ge=1, le=100_000)
    """Model turns; then the run escalates."""
    max_reframes: int | None = Field(default=None, ge=0, le=1000)
    """Changes of the agent's frame; then the run escalates."""
    turn_timeout: Duration | None = None
    """Time without a byte from the model's server; then the turn is retried, up to five times."""
    turn_limit: Duration | None = None
    """Duration of a model turn whose reply keeps coming; then the run fails (`TurnLimit`)."""
    soft_limit: Duration | None = None
    """Active time; then a last turn without tools, whose outcome is delivered as `"partial": true`."""
    hard_limit: Duration | None = None
    """Active time; then the run fails (`HardLimit`). It can be resumed for the same time again."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Tokens sent and received, including summaries; then the run escalates."""
    budget_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Cost in USD; then the run escalates. Not enforced if a price is not known ("USD unknown")."""
    directive_tool: str | None = Field(default=None, min_length=1, max_length=64)
    """The tool that the model is forced to call if a hint did not end a loop."""
    max_depth: int | None = Field(default=None, ge=0, le=10)
    """Levels of delegation, set by the first run. A run at the limit has no `delegate`."""
    max_fanout: int | None = Field(default=None, ge=1, le=100)
    """Subtasks of one delegation; more are refused with an error to the model."""
    max_follow_ups: int | None = Field(default=None, ge=0, le=1000)
    """Follow-ups of a run and of all runs that resume from them; more are refused with an error to the model."""


def limits_in(context: Mapping[str, Any]) -> LimitOverrides:
    """Return the limits in a start event's free-form `context`. Raises pydantic's ValidationError."""
    known = LimitOverrides.model_fields.keys() & context.keys()
    return LimitOverrides.model_validate({name: context[name] for name in sorted(known)})


def _check_context(context: dict[str, Any]) -> dict[str, Any]:
    limits_in(context)
    return context


# The free-form context of a start or request, with valid limits in it.
Context = Annotated[dict[str, Any], AfterValidator(_check_context)]


class Limits(FrozenModel):
    """The limits in force for a run."""

    max_steps: int
    max_turns: int
    max_reframes: int
    turn_timeout: Duration  # without progress
    turn_limit: Duration = timedelta(minutes=15)  # for the whole turn
    soft_limit: Duration = timedelta(minutes=15)  # of active time; then one last turn
    hard_limit: Duration = timedelta(minutes=20)
    budget_tokens: int | None = omit_default(None)  # sent and received; None: no limit
    budget_usd: float | None = omit_default(None)
    directive_tool: str = "reframe"  # forced if a nudge did not end a loop
    max_depth: int = 3  # of delegations; the first run's setting applies to its whole tree
    max_fanout: int = 10  # subtasks of a delegation
    max_follow_ups: int = 10  # of the run and of the whole chain that resumes from them
