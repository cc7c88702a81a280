"""The answers that a project question takes, and its display."""

from datetime import datetime

from perdure.contracts.run.signals import AskedTerms, HumanInput, Question, QuestionKind
from perdure.contracts.run.state import QuestionView, TermsView
from perdure.decisions.ids import QUESTION_PREFIX
from perdure.decisions.people.signature import SignedQuestion, signature_error
from perdure.decisions.people.terms import name_of, person_of
from perdure.decisions.run.question import answer_rejection
from perdure.decisions.text.visible_text import render_visible
from perdure.features.project_questions.contract import ProjectAnswer, QuestionInput, QuestionRules, QuestionState

ROUND_STEPS = (5, 2, 1)


def open_state(question: QuestionInput, execution: str, now: datetime) -> QuestionState:
    state = QuestionState(question=question, execution=execution, asked_at=now)
    terms = (TermsView(approvers=question.approvers),) if question.approvers else ()
    shown = QuestionView(
        id=question.id,
        kind=QuestionKind.project,
        text=render_visible(question.text),
        options=question.options,
        asked_at=now,
        expires_at=question.expires_at,
        terms=terms,
        link=question.link,
    )
    return state.evolve(questions=(shown,))


def add_waiter(state: QuestionState, workflow_id: str) -> QuestionState:
    """Count a workflow that waits, once."""
    if workflow_id in state.waiting:
        return state
    return state.evolve(waiting=state.waiting.add(workflow_id), runs=state.runs + 1)


def judge_answer_of_project(state: QuestionState, rules: QuestionRules, answer: HumanInput) -> str | None:
    """Return the reason why the answer is not taken, if there is one. The first valid answer counts."""
    if state.answer is not None:
        by = f" by {state.answer.by}" if state.answer.by else ""
        return f"it was answered{by}: {state.answer.option or 'it has expired'}"
    if answer.question_id not in (None, state.question.id):
        return f"question {answer.question_id} is not open; the open one is {state.question.id}"
    if state.question.person and name_of(answer.sender) != state.question.person:
        return f"it is for {state.question.person} alone"
    name = f"{QUESTION_PREFIX}{state.question.id}"
    signed = signature_error(rules.answer_keys, SignedQuestion(name, state.execution, state.question.id), answer)
    return signed or answer_rejection(asked_question(state), answer)


def asked_question(state: QuestionState) -> Question:
    """Return the question as those of runs."""
    question = state.question
    return Question(
        id=question.id,
        kind=QuestionKind.project,
        text=question.text,
        options=question.options,
        asked_at=state.asked_at,
        terms=(AskedTerms(approvers=question.approvers),) if question.approvers else (),
    )


def take_answer(state: QuestionState, answer: HumanInput, now: datetime) -> QuestionState:
    """Record an answer that is taken. Without an `option`, its text is the option."""
    option = answer.option or answer.text
    text = answer.text if answer.option else None
    return record_end(state, ProjectAnswer(option=option, text=text, by=person_of(answer), at=now))


def record_end(state: QuestionState, answer: ProjectAnswer) -> QuestionState:
    return state if state.answer is not None else state.evolve(answer=answer, questions=())


def format_runs(runs: int) -> str:
    """Return "3 runs wait", in steps of 1, 2 and 5, so that a list does not change with each run; empty for none."""
    scale = 10 ** (len(str(runs)) - 1)
    shown = next((step * scale for step in ROUND_STEPS if step * scale <= runs), 0)
    if not shown:
        return ""
    return f"{shown}{'+' if shown < runs else ''} {'run waits' if runs == 1 else 'runs wait'}"
