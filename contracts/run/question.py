"""The one open question of a run. Whatever its cause, it is answered the same way."""

from datetime import datetime
from enum import StrEnum

from contracts.models import Value, sparse


class QuestionKind(StrEnum):
    question = "question"  # the agent asks
    approval = "approval"  # a tool wants to run
    resume_unsafe = "resume_unsafe"  # a call may have happened
    definition_changed = "definition_changed"  # the agent is defined otherwise now than when the run began
    thrash = "thrash"  # the agent goes in circles
    choice = "choice"  # something has to be chosen before the work begins
    recovery = "recovery"  # the context fills up faster than it can be cleared


class Question(Value):
    """`options` are the decisions, or suggested texts, that answer it; empty means any text does.

    `call` is the digest of the call that an approval is asked for; `expires_at`, when the question closes unanswered.
    """

    id: str
    kind: QuestionKind
    text: str
    options: tuple[str, ...] = ()
    step: int | None = None
    tool: str | None = None
    asked_at: datetime
    call: str | None = sparse(None)
    expires_at: datetime | None = sparse(None)
