"""The answers that each kind of question accepts."""

from datetime import datetime

from contracts.run.question import Question, QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call

# The decisions that each kind of question accepts. If empty, the answer is a text.
QUESTION_DECISIONS: dict[QuestionKind, tuple[Decision, ...]] = {
    QuestionKind.question: (),
    QuestionKind.approval: (Decision.approve, Decision.approve_tool, Decision.deny),
    QuestionKind.resume_unsafe: (Decision.run_again, Decision.use_result, Decision.give_up),
    QuestionKind.definition_changed: (Decision.use_new, Decision.keep_old, Decision.stop),
    QuestionKind.thrash: (Decision.proceed, Decision.stop),
    QuestionKind.recovery: (Decision.proceed, Decision.stop),
    QuestionKind.choice: (),
}

# The title of each kind, shown to people with the question: its own text may imitate another kind.
TITLES: dict[QuestionKind, str] = {
    QuestionKind.question: "the agent asks",
    QuestionKind.approval: "approve a call",
    QuestionKind.resume_unsafe: "a call may have happened",
    QuestionKind.definition_changed: "the agent's definition has changed",
    QuestionKind.thrash: "the agent goes in circles",
    QuestionKind.recovery: "the agent loses context",
    QuestionKind.choice: "an input has to be chosen",
}

# Kinds that a text answers; for a choice, one of the options.
TEXTUAL = (QuestionKind.question, QuestionKind.choice)

# Kinds that also accept a text: another direction.
DIRECTED = (QuestionKind.thrash, QuestionKind.recovery)


def is_same_question(question: Question, kind: QuestionKind, text: str, about: Call | None) -> bool:
    """Return whether the question is the one that the run is about to ask again."""
    return (question.kind, question.text, question.step) == (kind, text, about and about.step)


def answer_rejection(
    question: Question | None, answer: HumanInput, *, expired: str | None = None, now: datetime | None = None
) -> str | None:
    """Return the reason why this answer does not fit this question, if any.

    `expired` is the id of the latest question, if it expired without an answer; `now` shows whether the open one has.
    """
    if question is not None and now is not None and question.expires_at is not None and now >= question.expires_at:
        expired, question = question.id, None
    if question is not None:
        return _names_another(question, answer) or _does_not_fit(question, answer)
    if expired is not None and answer.question_id in (expired, None):
        return f"question {expired} has expired without an answer"
    return "no question is open on this run"


def _names_another(question: Question, answer: HumanInput) -> str | None:
    if answer.question_id not in (None, question.id):
        return f"question {answer.question_id} is not open; the open one is {question.id}"
    if answer.call not in (None, question.call):
        return f"question {question.id} is not about the call {answer.call}"
    return None


def _does_not_fit(question: Question, answer: HumanInput) -> str | None:
    decisions = QUESTION_DECISIONS[question.kind]
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
