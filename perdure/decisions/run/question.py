"""The answers that a question accepts: by its kind, its time, and the people that it is for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.contracts.run.signals import Decision, HumanInput, Question, QuestionKind
from perdure.contracts.run.state import Call
from perdure.decisions.ids import json_digest
from perdure.decisions.people.form import read_form
from perdure.decisions.people.terms import may_not_answer


@dataclass(frozen=True)
class QuestionRow:
    """A kind of question as people see it, and the answers that it accepts."""

    title: str
    """Shown with the question: its own text may imitate another kind."""
    waits_for: str
    """The search attribute `WaitingFor`, with the question's `{text}`, or its `{tool}` and the `{groups}` asked."""
    decisions: tuple[Decision, ...] = ()
    """If there are none, a text answers it: one of the options, or the person's own."""
    takes_own_words: bool = False
    """Whether a text of the person's own answers it: of a kind with decisions, another direction in their place."""
    needs_person: bool = False
    """`True`: no program may answer it in the place of a person."""

    @property
    def is_textual(self) -> bool:
        return not self.decisions


QUESTIONS: Mapping[str, QuestionRow] = {
    QuestionKind.question: QuestionRow("the agent asks", "asks: {text}", takes_own_words=True),
    QuestionKind.approval: QuestionRow(
        "approve a call", "approve {tool}{groups}", (Decision.approve, Decision.approve_tool, Decision.deny)
    ),
    QuestionKind.resume_unsafe: QuestionRow(
        "a call may have happened", "settle {tool}", (Decision.run_again, Decision.use_result, Decision.give_up)
    ),
    QuestionKind.definition_changed: QuestionRow(
        "the agent's definition has changed",
        "settle the changed definition",
        (Decision.use_new, Decision.keep_old, Decision.stop),
    ),
    QuestionKind.thrash: QuestionRow(
        "the agent goes in circles", "going in circles", (Decision.proceed, Decision.stop), takes_own_words=True
    ),
    QuestionKind.recovery: QuestionRow(
        "the agent loses context", "losing context", (Decision.proceed, Decision.stop), takes_own_words=True
    ),
    QuestionKind.choice: QuestionRow("an input has to be chosen", "choose: {text}"),
    QuestionKind.project: QuestionRow("the project asks", "asks: {text}"),
    QuestionKind.input: QuestionRow(
        "the server of a tool asks",
        "input for {tool}",
        (Decision.proceed, Decision.deny),
        takes_own_words=True,
        needs_person=True,
    ),
}

HAS_CHANGED = "a person has changed its arguments; look at the call as it is now, and answer with its digest"


def is_same_question(question: Question, kind: QuestionKind, text: str, about: Call | None) -> bool:
    """Return whether the question is the one that the run is about to ask again. A call has one question at a time."""
    asks_alike = question.text == text or about is not None
    return asks_alike and (question.kind, question.step) == (kind, about and about.step)


def find_question(questions: Sequence[Question], answer: HumanInput, *, expired: str | None = None) -> Question | str:
    """Return the open question that the answer is for, or the reason why there is none.

    `expired` is the id of the latest question that has expired and was closed.
    """
    still_open = {question.id: question for question in questions if question.answer is None}
    late = {question.id for question in questions if question.answer == HumanInput()} | {expired} - {None}
    named = [q for q in still_open.values() if answer.question_id in (None, q.id) and answer.call in (None, q.call)]
    if len(named) == 1:
        return named[0]
    asked = answer.question_id
    if asked in late or (asked is None and late and not still_open):
        return f"question {asked or max(late, key=str)} has expired without an answer"
    if not still_open:
        return "no question is open on this run"
    if asked is not None and asked not in still_open:
        is_one, ids = len(still_open) == 1, ", ".join(still_open)
        return f"question {asked} is not open; {'the open one is' if is_one else 'open:'} {ids}"
    if named:
        return f"several questions are open, so name one of them: {', '.join(still_open)}"
    about = asked or (next(iter(still_open)) if len(still_open) == 1 else None)
    reason = f"{f'question {about} is not' if about else 'no open question is'} about the call {answer.call}"
    return f"{reason}: {HAS_CHANGED}" if about is not None and still_open[about].revision else reason


def answer_digest(answer: HumanInput) -> str:
    """Return a digest of an answer, by which the run's report on it is found."""
    return json_digest(answer.model_dump(mode="json", exclude_defaults=True))


def answer_rejection(question: Question, answer: HumanInput, requesters: Sequence[str] = ()) -> str | None:
    """Return the reason why this answer does not fit this question, if any."""
    if question.revision and answer.call is None:
        return f"question {question.id} needs the digest of the call that is answered: {HAS_CHANGED}"
    fits = _does_not_fill if question.kind is QuestionKind.input else _does_not_fit
    does_not_fit = fits(question, answer) or _is_beyond_the_call(question, answer)
    return does_not_fit or may_not_answer(question, answer, requesters)


def _is_beyond_the_call(question: Question, answer: HumanInput) -> str | None:
    if answer.option is not None and question.kind is not QuestionKind.project:
        return f"question {question.id} takes no option"
    approves = (question.kind, answer.decision) == (QuestionKind.approval, Decision.approve)
    if answer.arguments is not None and not approves:
        return f"question {question.id} takes changed arguments only with the approval of a call"
    if question.terms and answer.decision is Decision.approve_tool:
        return f"question {question.id} is about this call alone: a rule decides on each one"
    return None


def _does_not_fit(question: Question, answer: HumanInput) -> str | None:
    row = QUESTIONS[question.kind]
    if answer.attachments and question.kind is not QuestionKind.question:
        return f"question {question.id} takes no attachments"
    if question.kind in (QuestionKind.choice, QuestionKind.project):
        is_one = (answer.option or answer.text) in question.options
        return None if is_one else f"question {question.id} takes one of: {', '.join(question.options)}"
    says_something = bool((answer.text or "").strip() or answer.attachments)
    if row.is_textual:
        return None if says_something else f"question {question.id} takes a text"
    is_directed = row.takes_own_words and answer.decision is None and says_something
    if answer.decision not in row.decisions and not is_directed:
        or_text = ", or a text" if row.takes_own_words else ""
        return f"question {question.id} takes one of: {', '.join(row.decisions)}{or_text}"
    if answer.decision is Decision.use_result and answer.text is None:
        return "use_result needs the result as text"
    return None


def _does_not_fill(question: Question, answer: HumanInput) -> str | None:
    """Return the reason why the answer does not fill in the form of the question, if any."""
    text = (answer.text or "").strip()
    if answer.attachments:
        return f"question {question.id} takes no attachments"
    if answer.decision is Decision.deny:
        return None
    if answer.decision not in (None, Decision.proceed) or not (text or answer.decision):
        or_values = ", or the values of its fields" if question.form else ""
        return f"question {question.id} takes one of: {', '.join(QUESTIONS[question.kind].decisions)}{or_values}"
    if question.form is None:
        return f"question {question.id} takes no text: continue, or deny" if answer.decision is None else None
    values = read_form(question.form, text)
    return f"question {question.id}: {values}" if isinstance(values, str) else None


def announcement_of(question: Question) -> tuple[str, int, int]:
    """Identify an announcement of a question: it has one for each group that is asked, and each change of its call."""
    return question.id, question.group, question.revision
