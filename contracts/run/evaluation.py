"""Test cases for agents: goals, expectations and scores (`perdure eval`)."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from contracts.conversation import Id
from contracts.models import FrozenModel, JsonResult, StrictModel, omit_no_result
from contracts.run.limits import LimitOverrides
from contracts.run.state import RunStatus


def _to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# One text, or a list of texts.
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_to_list)]


class Expectation(StrictModel):
    """The conditions that a run must meet at its end. Only `status` has a default; unset fields are not checked.

    `contains`, `not_contains` and `matches` (a regular expression) apply to the run's final text. `result` has values
    of its typed result by path, such as `order.items.0.sku`. `artifact` names files of its folder, by path or pattern.
    `calls` are tools that were called at least once, `never_calls` tools that the model did not even try to call.
    `asks` requires a question to a person that contains this text (true: any), and `answer` lists the answers in
    order; without `answer`, the first question ends the run.
    """

    status: Literal["completed", "escalated", "failed", "timed_out", "cancelled"] = RunStatus.completed.value
    contains: Texts = ()
    not_contains: Texts = ()
    matches: Texts = ()
    result: dict[str, JsonResult] = Field(default_factory=dict)
    artifact: Texts = ()
    calls: Texts = ()
    never_calls: Texts = ()
    max_steps: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    asks: str | Literal[True] | None = None
    answer: Texts = ()

    @field_validator("matches")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return patterns


class Case(StrictModel):
    """One goal. `name` is its name in the report; by default the goal itself."""

    name: Id | None = None
    goal: str = Field(min_length=1, max_length=200_000)
    agent: Id | None = None
    context: dict[str, Any] = Field(default_factory=dict)
    limits: LimitOverrides = LimitOverrides()
    expect: Expectation = Expectation()


class Facts(FrozenModel):
    """The result of a run. `text` is its final text; `asked` are its questions to a person.

    `made` are the tools that were called, `tried` those that the model asked for. Steps, tokens and cost include
    subtasks; `cost_usd` is None if a price is not known.
    """

    status: str
    text: str = ""
    result: JsonResult = omit_no_result()
    asked: tuple[str, ...] = ()
    unanswered: str | None = None  # the question without an answer, at which the run was cancelled
    files: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    steps: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0


class Score(FrozenModel):
    """The score of one run of a case. `why` lists the failed conditions."""

    run_id: str
    why: tuple[str, ...]
    facts: Facts
    seconds: float

    @property
    def has_passed(self) -> bool:
        return not self.why
