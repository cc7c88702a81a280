"""The bounds of a run: steps, turns, time, budgets, and its share of one."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from perdure.contracts.models import Duration, FrozenModel, StrictModel, omit_default


class LimitOverrides(StrictModel):
    """Limits set by a caller, an agent definition or `perdure.toml`."""

    max_steps: int | None = Field(default=None, ge=1, le=100_000)
    """Tool calls; then the run escalates if the model asks for another. Set alone, it raises `max_turns` to 80 more."""
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
    """Active time; then the run fails (`HardLimit`). It can be resumed for the same time again. Set alone, it sets
    `soft_limit` to three quarters of it; a `soft_limit` that is set alone raises it."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Tokens sent and received, including summaries; then the run escalates."""
    budget_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Cost in USD; then the run escalates. Tokens of a model without a price do not count."""
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


class Share(FrozenModel):
    """A part of a budget. Unset fields are not limited."""

    steps: int
    """Tool calls."""
    tokens: int | None = None
    """Tokens sent and received."""
    usd: float | None = None
    """Cost in USD."""
    follow_ups: int | None = omit_default(None)
    """Follow-ups of the run and of all work that resumes from them."""


class Spent(FrozenModel):
    """The usage of runs, including their subtasks. `usd` is unset once a model without a known price was used."""

    steps: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    follow_ups: int = omit_default(0)

    def __add__(self, other: "Spent") -> "Spent":
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        follow_ups = self.follow_ups + other.follow_ups
        return Spent(steps=self.steps + other.steps, tokens=self.tokens + other.tokens, usd=usd, follow_ups=follow_ups)


class Assignment(FrozenModel):
    """A run's place in a delegation: a subtask of run `by`, `depth` levels below the first run, with a budget share."""

    by: str
    depth: int
    share: Share


class SubtaskStatus(StrEnum):
    waiting = "waiting"  # not started; final if the delegation has ended
    running = "running"
    done = "done"
    escalated = "escalated"
    failed = "failed"
    timed_out = "timed_out"
    cancelled = "cancelled"
    terminated = "terminated"
