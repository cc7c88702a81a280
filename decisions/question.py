"""Which answers a question takes."""

from contracts.question import Question, QuestionKind
from contracts.signals import Decision, HumanInput

# What a person may decide, by the kind of question. None: the answer is a text.
DECISIONS: dict[QuestionKind, tuple[Decision, ...]] = {
    QuestionKind.question: (),
    QuestionKind.approval: (Decision.approve, Decision.approve_tool, Decision.deny),
    QuestionKind.resume_unsafe: (Decision.run_again, Decision.use_result, Decision.give_up),
    QuestionKind.definition_changed: (Decision.use_new, Decision.keep_old, Decision.stop),
}


def refusal(question: Question | None, answer: HumanInput) -> str | None:
    """Why this answer does not answer this question; None if it does."""
    if question is None:
        return "no question is open on this run"
    if answer.question_id not in (None, question.id):
        return f"question {answer.question_id} is not open; the open one is {question.id}: {question.text}"
    decisions = DECISIONS[question.kind]
    if not decisions:
        return None if (answer.text or "").strip() else f"question {question.id} takes a text: {question.text}"
    if answer.decision not in decisions:
        return f"question {question.id} takes one of: {', '.join(decisions)}"
    if answer.decision is Decision.use_result and answer.text is None:
        return "use_result needs the result as text"
    return None
