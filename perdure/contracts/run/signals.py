"""Questions to people, and their messages: answers and cancel requests."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from perdure.contracts.media import Attachments
from perdure.contracts.models import (
    FrozenModel,
    JsonResult,
    StrictModel,
    check_schema_bounds,
    omit_default,
    replace_surrogates,
)
from perdure.contracts.people import Sender
from perdure.contracts.policy import ApprovalTerms


class Decision(StrEnum):
    """A person's decision. `perdure.decisions.run.question` defines the decisions that each kind of question
    accepts.
    """

    approve = "approve"  # make this call
    approve_tool = "approve_tool"  # allow this tool for the rest of the run
    deny = "deny"  # do not make the call; the run continues
    run_again = "run_again"  # make the call again, although it may have taken effect
    use_result = "use_result"  # the result is `text`
    give_up = "give_up"  # the model learns that the call may have taken effect
    use_new = "use_new"  # continue with the new definition
    keep_old = "keep_old"  # continue with the old definition
    proceed = "continue"  # continue as before
    stop = "stop"  # end the run


ChangedArguments = Annotated[
    dict[str, JsonResult], BeforeValidator(replace_surrogates), AfterValidator(check_schema_bounds)
]


ANSWER_REPORT = "agent.answer.signal"  # the trace line that says whether the run took an answer by signal
QUESTION_CLOSED = "agent.question.closed"  # the trace line with a question that is not open any more
MAX_SHOWN = 40_000  # characters: those of the longest question about a call


class HumanInput(StrictModel):
    """The body of the signal `human_input` and of the update `answer`.

    `question_id` and `call`, the digest of a call to approve, are optional: if given, they must match what is open. An
    answer without either is for the question that is open when the run handles it: sent twice, it may answer two.
    """

    question_id: str | None = Field(default=None, max_length=200)
    """An open question; required if several are open."""
    call: str | None = Field(default=None, max_length=200)
    """The digest of the call to approve. If set, it must match the question's. Required once a person has changed the
    call; optional before."""
    text: str | None = Field(default=None, max_length=200_000)
    """The answer, the reason for a denial, or the result for `use_result`."""
    option: str | None = Field(default=None, max_length=100, exclude_if=lambda option: option is None)
    """The option of a [project question](../approvals.md#project-questions), to which `text` may add something."""
    attachments: Attachments = omit_default(())
    """Images and PDF that belong to the answer of a `question`."""
    decision: Decision | None = None
    """A decision that the [question](#decisions) accepts."""
    arguments: ChangedArguments | None = Field(default=None, exclude_if=lambda arguments: arguments is None)
    """With `approve`: the arguments to make the call with, in place of the proposed ones."""
    shown: str | None = Field(default=None, max_length=MAX_SHOWN, exclude_if=lambda shown: shown is None)
    """The text of the question as the person saw it. Set by what showed it, for the record alone."""
    message_id: str | None = Field(default=None, max_length=200, exclude_if=lambda named: named is None)
    """The id of the message that brought it, by which a door finds a repeat. Set by Perdure."""
    by: str | None = Field(default=None, max_length=200)
    """The person who answers, self-declared."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""
    signature: str | None = Field(default=None, max_length=200, exclude_if=lambda signature: signature is None)
    """`KEY:BASE64`, over all fields, the run and its execution. Required if the run has `answer_keys`."""


class EndWatcher(StrictModel):
    """The body of the signal `watch_end`: a workflow that waits for the run's end."""

    workflow_id: str = Field(min_length=1, max_length=1000)
    """The workflow to signal `run_ended` as the run ends."""


class EndedRun(StrictModel):
    """The body of the signal `run_ended`, which a run sends to its watchers as it ends."""

    run_id: str = Field(min_length=1, max_length=1000)
    """The run; its workflow closes next."""


class CancelRequest(StrictModel):
    """The body of the signal `cancel`. The body and its fields are optional."""

    reason: str | None = Field(default=None, max_length=2000)
    """Shown with the run."""
    by: str | None = Field(default=None, max_length=200)
    """The person who cancels, self-declared."""
    sender: Sender | None = omit_default(None)
    """The entry point that it came through. Set by Perdure."""


WAKE_SIGNAL = "wake"  # has no effect but a workflow task, in which a workflow that sleeps sees the current build


class QuestionKind(StrEnum):
    """The subject of a question. The comment of each kind is part of the reference.

    A new kind has a row of `QUESTIONS` (`perdure/decisions/run/question.py`), each of its decisions a row of
    `DECISION_HELP` (`perdure/terminal/prompt.py`), and a place in the workflow that asks it.
    """

    question = "question"  # the agent asks
    approval = "approval"  # a tool wants to run
    resume_unsafe = "resume_unsafe"  # a call may have taken effect
    definition_changed = "definition_changed"  # the agent's definition changed since the run began
    thrash = "thrash"  # the agent is in a loop
    choice = "choice"  # a choice before the work begins
    recovery = "recovery"  # the context fills up faster than it can be cleared
    project = "project"  # many runs wait for one answer, such as a login
    input = "input"  # the server of a tool asks, before it goes on with a call


class AskedTerms(ApprovalTerms):
    """Terms of a rule that a question has to meet, and the people whose approval counts for them so far.

    `group` is the index of the approvers asked now, if they are asked one after the other. At `expires_at` the next
    group is asked, or the question closes unanswered.
    """

    group: int = omit_default(0)
    expires_at: datetime | None = omit_default(None)
    approved_by: tuple[str, ...] = omit_default(())


class Question(FrozenModel):
    """A question. `options` are the decisions or suggested texts that answer it; if empty, any text does.

    `call` is the digest of the call to approve. The question closes unanswered at `expires_at`. It is open until it has
    an `answer`, which is empty if it has expired; the run then takes the answer when the call's turn comes.

    `terms` are those of the rules that ask. The call is approved once all of them are met. `revision` counts the
    changes of the call: from the first one on, an answer must name the call that it is about. `form` is the schema of
    the answer of kind `input`.
    """

    id: str
    kind: QuestionKind
    text: str
    options: tuple[str, ...] = ()
    step: int | None = None
    tool: str | None = None
    tool_use_id: str | None = omit_default(None)
    asked_at: datetime
    call: str | None = omit_default(None)
    expires_at: datetime | None = omit_default(None)
    answer: HumanInput | None = omit_default(None)
    terms: tuple[AskedTerms, ...] = omit_default(())
    revision: int = omit_default(0)
    form: dict[str, Any] | None = omit_default(None)

    @property
    def group(self) -> int:
        """How often it was put to another group of people."""
        return sum(terms.group for terms in self.terms)
