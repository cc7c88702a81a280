"""A table of goals and what should come of each, to see how well an agent does (`perdure eval`)."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from contracts.conversation import MAX_ID_LENGTH
from contracts.models import Edge, Value
from contracts.run.limits import LimitOverrides
from contracts.run.state import RunStatus


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# One text, or a list of them.
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_several)]


class Expectation(Edge):
    """What must hold at a run's end. What is not set is not looked at, but for `status`.

    `contains`, `not_contains` and `matches` (a regular expression) are about what the run says at its end. `artifact`
    names files of its folder, by path or pattern. `calls` are tools that were called, each at least once, `never_calls`
    those that the model did not even try to call. `asks` says that the run has to ask a person, with these words in
    the question (or true: with any), and `answer` what is answered to its questions, in their order; where `answer` is
    left out, the question is the end of it.
    """

    status: Literal["completed", "escalated", "failed", "timed_out", "cancelled"] = RunStatus.completed.value
    contains: Texts = ()
    not_contains: Texts = ()
    matches: Texts = ()
    artifact: Texts = ()
    calls: Texts = ()
    never_calls: Texts = ()
    max_steps: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    asks: str | Literal[True] | None = None
    answer: Texts = ()

    @field_validator("matches")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return patterns


class Case(Edge):
    """One goal. `name` is what the report calls it; the goal itself where it is left out."""

    name: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    goal: str = Field(min_length=1, max_length=200_000)
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    context: dict[str, Any] = Field(default_factory=dict)
    limits: LimitOverrides = LimitOverrides()
    expect: Expectation = Expectation()


class Facts(Value):
    """What a run came to. `text` is what it said at its end; `asked` are the questions it put to a person.

    `made` are the tools that were called, `tried` those that the model asked for. Steps, tokens and cost are with all
    that it delegated; `cost_usd` is None where a price is not known.
    """

    status: str
    text: str = ""
    asked: tuple[str, ...] = ()
    unanswered: str | None = None  # the question that nobody was to answer; the run was cancelled then
    files: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    steps: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0


class Score(Value):
    """How one run of a case ended: passed where `why` is empty."""

    run_id: str
    why: tuple[str, ...]
    facts: Facts
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.why
