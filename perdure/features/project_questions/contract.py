"""A question of the project, for which many runs wait: its opening, its answer, and its state."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from perdure.contracts.bounds import Latest
from perdure.contracts.models import FrozenModel, StrictModel, omit_default
from perdure.contracts.people import NoticeRoute
from perdure.contracts.run.state import QuestionView

MAX_QUESTION_ID = 200  # characters
Option = Annotated[str, Field(min_length=1, max_length=100)]


class QuestionInput(StrictModel):
    """The input of the workflow `ProjectQuestion`. A question that is opened again under its id stays as it is."""

    id: str = Field(min_length=1, max_length=MAX_QUESTION_ID, pattern=r"^[!-~]+$")
    """The workflow's id without `question:`. Another occasion of the same matter has another id."""
    subject: str = Field(default="", max_length=100)
    """The [feature row](../features.md) that carries out the answer; without one, an answer frees the runs alone."""
    text: str = Field(min_length=1, max_length=20_000)
    """The question."""
    options: tuple[Option, ...] = Field(min_length=1, max_length=20)
    """The answers that it takes."""
    approvers: tuple[str, ...] = Field(default=(), max_length=100)
    """The groups of `[people]` whose members may answer. If empty, everyone may."""
    person: str = Field(default="", max_length=200, exclude_if=lambda person: not person)
    """The token or person who alone may answer, as a requester does about a login of their own."""
    expires_at: datetime | None = None
    """The time at which it closes unanswered."""
    link: str = Field(default="", max_length=2000)
    """A path of the gateway that gives the address at which a person settles the matter, such as a login."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Values for the feature that asked, which applies the answer."""


class RunIds(Latest[str], most=1000):
    """The workflows that wait for an answer."""


class ProjectAnswer(FrozenModel):
    """The result of `ProjectQuestion`. `option` is null if it expired; `note` says what its feature could not do."""

    option: str | None
    text: str | None = omit_default(None)
    by: str = omit_default("")
    at: datetime
    note: str = omit_default("")


class QuestionRules(FrozenModel):
    """The result of `prepare_question`: what a worker's project says of it."""

    notify: tuple[NoticeRoute, ...] = omit_default(())
    answer_keys: dict[str, str] = omit_default({})


class QuestionState(FrozenModel):
    """The answer of the query `state` of a project question."""

    type: Literal["question.continue"] = "question.continue"
    question: QuestionInput
    execution: str
    asked_at: datetime
    rules: QuestionRules | None = omit_default(None)
    """Null until a worker has read them from the project."""
    waiting: RunIds = omit_default(RunIds())
    """The workflows that wait for it, the latest 1,000."""
    runs: int = omit_default(0)
    """The number of runs that have begun to wait for it."""
    answer: ProjectAnswer | None = omit_default(None)
    is_applied: bool = omit_default(default=False)
    questions: tuple[QuestionView, ...] = omit_default(())
    """The question as people see it, while it is open."""


class Waiter(StrictModel):
    """The body of the signal `wait`: a workflow with an activity that is paused until there is an answer."""

    workflow_id: str = Field(min_length=1, max_length=1000)


class Settlement(StrictModel):
    """The body of the signal `settle`: the matter is settled without an answer, as by a login."""

    option: Option
    by: str = Field(default="", max_length=200)


class SettleRequest(FrozenModel):
    """The input of `apply_answer`: the question, and its answer."""

    question: QuestionInput
    answer: ProjectAnswer


class ReleaseRequest(FrozenModel):
    """The input of `release_runs`: the workflows that are known to wait for the question."""

    id: str
    workflows: tuple[str, ...]
