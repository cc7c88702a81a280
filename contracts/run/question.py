"""The open questions of a run. All kinds are answered in the same way."""

from datetime import datetime
from enum import StrEnum

from contracts.models import FrozenModel, omit_default
from contracts.people.policy import ApprovalTerms
from contracts.run.signals import HumanInput


class QuestionKind(StrEnum):
    question = "question"  # the agent asks
    approval = "approval"  # a tool wants to run
    resume_unsafe = "resume_unsafe"  # a call may have taken effect
    definition_changed = "definition_changed"  # the agent's definition changed since the run began
    thrash = "thrash"  # the agent is in a loop
    choice = "choice"  # a choice before the work begins
    recovery = "recovery"  # the context fills up faster than it can be cleared


class Question(FrozenModel):
    """A question. `options` are the decisions or suggested texts that answer it; if empty, any text does.

    `call` is the digest of the call to approve. The question closes unanswered at `expires_at`. It is open until it has
    an `answer`, which is empty if it has expired; the run then takes the answer when the call's turn comes.

    `votes` are the approvals so far, if `terms` require several. `group` is the index of the approvers asked now.
    """

    id: str
    kind: QuestionKind
    text: str
    options: tuple[str, ...] = ()
    step: int | None = None
    tool: str | None = None
    asked_at: datetime
    call: str | None = omit_default(None)
    expires_at: datetime | None = omit_default(None)
    answer: HumanInput | None = omit_default(None)
    terms: ApprovalTerms | None = omit_default(None)
    group: int = omit_default(0)
    votes: tuple[HumanInput, ...] = omit_default(())
