"""The cases of proof, the facts of runs and plays, the kills of a crash test, and scores."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from perdure.contracts.conversation import Id
from perdure.contracts.models import FrozenModel, JsonResult, StrictModel, omit_no_result
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.run.state import RunStatus
from perdure.contracts.tool import Effect


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


def _to_call(value: Any) -> Any:
    """Return a call that is written as `{tool: arguments}`."""
    if isinstance(value, dict) and len(value) == 1:
        ((tool, arguments),) = value.items()
        return {"tool": tool, "arguments": {} if arguments is None else arguments}
    return value


class ScriptedCall(StrictModel):
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ScriptedReply(StrictModel):
    """A reply of the model: a text, or tool calls with or without a text."""

    text: str = ""
    calls: tuple[Annotated[ScriptedCall, BeforeValidator(_to_call)], ...] = ()

    @model_validator(mode="after")
    def _check_content(self) -> "ScriptedReply":
        if not self.text and not self.calls:
            raise ValueError("a reply has a text or calls")
        return self


class SignalCase(StrictModel):
    """A result from outside, for the next call of a tool of kind `signal`."""

    tool: str = Field(min_length=1)
    result: JsonResult = None


class CrashCase(Case):
    """A case of a crash test: a goal, and all that answers the run.

    `model` is a list with one reply for each turn, or `package.module:function`, which gets each request. `answers` are
    those of a person, in order, and `signals` the results from outside. `check` is a shell command that prints what it
    counts outside the run. `doubt` is one that prints the answer for a call that may have happened.
    """

    model: tuple[ScriptedReply, ...] | str = Field(min_length=1)
    answers: Texts = ()
    signals: tuple[SignalCase, ...] = ()
    check: str | None = Field(default=None, min_length=1)
    doubt: str | None = Field(default=None, min_length=1)


class EndFacts(FrozenModel):
    """The end of a run or a play. `text` is its final text."""

    status: str
    text: str = ""
    result: JsonResult = omit_no_result()


class Facts(EndFacts):
    """The result of a run. `asked` are its questions to a person.

    `made` are the tools that were called, `requested` those that the model asked for. Steps, tokens and cost include
    subtasks; `cost_usd` is None if a price is not known.
    """

    asked: tuple[str, ...] = ()
    unanswered: str | None = None  # the question without an answer, at which the run was cancelled
    files: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
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


@dataclass(frozen=True)
class CaseResult:
    """The result of one run of a case; `number` is the case's, from 1."""

    number: int
    case: Case
    score: Score


Event = Mapping[str, Any]


class Target(StrEnum):
    """The process that is killed."""

    worker = "worker"
    server = "server"


class KillMoment(FrozenModel):
    """A moment of a play. `at` is the id of an event, or of an activity for `begin` and `end`.

    It is in the history of the run, or of a `subtask` (`crashtest.RunTree`).

    `event`: history has the event. `task`: the workflow task that leads to the event has its commands, and the server
    does not. `begin`: a worker has the activity and has done nothing. `end`: the activity is done, and the server does
    not know it.
    """

    kind: Literal["event", "task", "begin", "end"]
    at: int
    subtask: str = ""


class KillPoint(FrozenModel):
    """One kill. The moments of several events can be one kill: a server writes them together."""

    target: Target
    moment: KillMoment

    @property
    def name(self) -> str:
        of = f"-of-{self.moment.subtask}" if self.moment.subtask else ""
        return f"{self.target}-{self.moment.kind}-{self.moment.at}{of}"


class EventRow(FrozenModel):
    """An event of the whole play, with the kills before and after it."""

    event: int
    type: str
    label: str = ""
    subtask: str = ""
    before: KillPoint | None = None
    after: KillPoint | None = None
    server: KillPoint | None = None


class PlayTool(FrozenModel):
    """A tool that a play called, with the number of attempts of the call."""

    tool: str
    effect: Effect
    scheduled: int  # the event
    attempts: int = 1


class PlayFacts(EndFacts):
    """The facts that are compared between plays.

    `requests` counts the model's requests by turn, `doubts` are the calls that a person was asked about, and `error` is
    the reason why a play has no end.
    """

    status: str = ""
    artifacts: dict[str, str] = Field(default_factory=dict)
    requests: dict[str, int] = Field(default_factory=dict)
    check: str | None = None
    doubts: tuple[str, ...] = ()
    tools: tuple[PlayTool, ...] = ()
    was_killed: bool = True
    error: str | None = None


class PlayVerdict(FrozenModel):
    """The verdict on one play: `same`, `asked` (a person was asked about a call), or the `findings`."""

    point: KillPoint
    findings: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def word(self) -> str:
        return "DIFFERS" if self.findings else "asked" if self.asked else "same"


NOT_RECORDED = "-"  # the run had no policy


@dataclass(frozen=True)
class ReplayedCall:
    """A call of a past run: what became of it, the verdict on it then, the same again, and the candidate's."""

    run_id: str
    step: int | None
    tool: str
    call: str
    observed: str
    verdict: str
    as_it_was: str
    candidate: str
    rule: str | None
