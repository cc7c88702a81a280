"""Which answers a question takes."""

from datetime import datetime

from contracts.run.question import Question, QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call

# What a person may decide, by the kind of question. None: the answer is a text.
DECISIONS: dict[QuestionKind, tuple[Decision, ...]] = {
    QuestionKind.question: (),
    QuestionKind.approval: (Decision.approve, Decision.approve_tool, Decision.deny),
    QuestionKind.resume_unsafe: (Decision.run_again, Decision.use_result, Decision.give_up),
    QuestionKind.definition_changed: (Decision.use_new, Decision.keep_old, Decision.stop),
    QuestionKind.thrash: (Decision.proceed, Decision.stop),
    QuestionKind.recovery: (Decision.proceed, Decision.stop),
    QuestionKind.choice: (),
}

# How each kind is introduced wherever a person is shown it: a question's own words may imitate another kind.
TITLES: dict[QuestionKind, str] = {
    QuestionKind.question: "the agent asks",
    QuestionKind.approval: "approve a call",
    QuestionKind.resume_unsafe: "a call may have happened",
    QuestionKind.definition_changed: "the agent's definition has changed",
    QuestionKind.thrash: "the agent goes in circles",
    QuestionKind.recovery: "the agent loses context",
    QuestionKind.choice: "an input has to be chosen",
}

# Those that a text answers; of a choice, one of the options.
TEXTUAL = (QuestionKind.question, QuestionKind.choice)

# Those of which a text is an answer as well: another direction.
DIRECTED = (QuestionKind.thrash, QuestionKind.recovery)


def is_same(question: Question, kind: QuestionKind, text: str, about: Call | None) -> bool:
    """Whether a run that comes to ask this has asked it before."""
    return (question.kind, question.text, question.step) == (kind, text, about and about.step)


def refusal(
    question: Question | None, answer: HumanInput, *, expired: str | None = None, now: datetime | None = None
) -> str | None:
    """Why this answer does not answer this question; None if it does.

    `expired` is the id of the latest question, where nobody answered it in time; `now` tells whether the open one is.
    """
    if question is not None and now is not None and question.expires_at is not None and now >= question.expires_at:
        expired, question = question.id, None
    if question is not None:
        return _names_another(question, answer) or _does_not_fit(question, answer)
    if expired is not None and answer.question_id in (expired, None):
        return f"question {expired} has expired: nobody answered it in time"
    return "no question is open on this run"


def _names_another(question: Question, answer: HumanInput) -> str | None:
    if answer.question_id not in (None, question.id):
        return f"question {answer.question_id} is not open; the open one is {question.id}"
    if answer.call not in (None, question.call):
        return f"question {question.id} is not about the call {answer.call}"
    return None


def _does_not_fit(question: Question, answer: HumanInput) -> str | None:
    decisions = DECISIONS[question.kind]
    if question.kind is QuestionKind.choice:
        is_one = answer.text in question.options
        return None if is_one else f"question {question.id} takes one of: {', '.join(question.options)}"
    if not decisions:
        return None if _says_something(answer) else f"question {question.id} takes a text"
    is_directed = question.kind in DIRECTED
    if answer.decision not in decisions and not (is_directed and answer.decision is None and _says_something(answer)):
        or_text = ", or a text" if is_directed else ""
        return f"question {question.id} takes one of: {', '.join(decisions)}{or_text}"
    if answer.decision is Decision.use_result and answer.text is None:
        return "use_result needs the result as text"
    return None


def _says_something(answer: HumanInput) -> bool:
    return bool((answer.text or "").strip())
