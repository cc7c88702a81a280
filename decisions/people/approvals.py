"""Questions about a run's calls, and their answers: which are open, which answers are taken, and what they change."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from contracts.people.policy import PolicyVerdict
from contracts.run.question import Question, QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call, RunState
from decisions.builtin_tools import ASK_HUMAN
from decisions.ids import approval_digest, question_id
from decisions.run.call_state import edit_call
from decisions.run.question import (
    QUESTION_DECISIONS,
    answer_rejection,
    expire_question,
    find_question,
    is_same_question,
    person_of,
)
from decisions.run.reply import needs_approval, question_in
from decisions.run.state import open_question
from decisions.text.formatting import format_approval, too_large_to_approve
from decisions.text.visible_text import render_visible

MAX_OPEN_TEXT = 256 * 1024  # characters of the questions that are open at once: a query returns them


def open_turn_questions(state: RunState, now: datetime) -> RunState:
    """Ask about all calls of the turn that need a person first, so that people see and answer them together.

    A question that would be the only one is asked when the call's turn comes.
    """
    asking = [(call, asks) for call in state.calls if call.outcome is None and (asks := _asks_of(state, call))]
    room = MAX_OPEN_TEXT - sum(len(question.text) for question in state.asked)
    for call, (kind, text, options) in asking if len(asking) > 1 else ():
        if any(is_same_question(question, kind, text, call) for question in state.asked):
            continue
        room -= len(text)
        if room < 0 and state.asked:
            break  # the others are asked about when there is room
        state, _ = ask_question(state, kind, text, options, call, now)
    return state


def _asks_of(state: RunState, call: Call) -> tuple[QuestionKind, str, tuple[str, ...]] | None:
    """Return kind, text and options of the question that precedes the call, if there is one."""
    if needs_approval(state, call):
        is_shown = too_large_to_approve(call.tool, call.arguments) is None
        approval = render_visible(format_approval(call.tool, call.arguments, call.verdict))
        return (QuestionKind.approval, approval, ()) if is_shown else None
    text = question_in(call) if call.tool == ASK_HUMAN and state.forced is None else None
    return (QuestionKind.question, render_visible(text), options_in(call)) if text else None


def options_in(call: Call) -> tuple[str, ...]:
    """Return the suggested answers of an `ask_human` call."""
    options = call.arguments.get("options")
    return tuple(option for option in options if isinstance(option, str)) if isinstance(options, list) else ()


def ask_question(  # noqa: PLR0913 - facts
    state: RunState, kind: QuestionKind, text: str, options: Sequence[str], about: Call | None, now: datetime
) -> tuple[RunState, Question]:
    """Open a question, unless the run has asked it already. Return the state and the question."""
    same = (question for question in state.asked if is_same_question(question, kind, text, about))
    if question := next(same, None):
        return state, question
    name = question_id(state.questions + 1)
    digest = timeout = terms = None
    if about and kind is QuestionKind.approval:
        digest = approval_digest((state.run_id, state.execution), name, about.step, about.tool, about.arguments)
        terms = about.verdict.terms if about.verdict else None
        timeout = next(route.approval_timeout for route in state.tools if route.name == about.tool)
        timeout = (terms and terms.expires) or timeout
    decisions = tuple(d for d in QUESTION_DECISIONS[kind] if terms is None or d is not Decision.approve_tool)
    question = Question(
        id=name,
        kind=kind,
        text=text,
        options=decisions or tuple(options),
        step=about and about.step,
        tool=about and about.tool,
        asked_at=now,
        call=digest,
        expires_at=now + timeout if timeout else None,
        terms=terms,
    )
    return open_question(state, question), question


def expire_questions(state: RunState, now: datetime) -> RunState:
    """Close the questions whose time has passed, or put them to the next group."""
    return state.model_copy(update={"asked": tuple(expire_question(question, now) for question in state.asked)})


def judge_answer(
    state: RunState, answer: HumanInput, now: datetime, verdict: PolicyVerdict | None = None
) -> Question | str:
    """Return the open question that the answer is for, or the reason why it is not taken.

    `verdict` is the policy's on a call that the answer changes.
    """
    question = find_question(expire_questions(state, now).asked, answer, expired=state.expired)
    if isinstance(question, str):
        return question
    if verdict is not None:
        question = question.model_copy(update={"terms": verdict.terms})
    return answer_rejection(question, answer, requester_of(state)) or _edit_error(state, question, answer) or question


def requester_of(state: RunState) -> str:
    """Return the name of the person who started the run, or whose request it carries out, if it is known."""
    return (state.sender and (state.sender.token or state.sender.person)) or ""


def _edit_error(state: RunState, question: Question, answer: HumanInput) -> str | None:
    if answer.arguments is None:
        return None
    call = find_call(state, question)
    if call is None or not needs_approval(state, call):
        return f"question {question.id} takes no changed arguments"
    if too_large_to_approve(call.tool, answer.arguments):
        return "the changed arguments are too large: they could not be shown whole"
    return None


def find_call(state: RunState, question: Question) -> Call | None:
    """Return the call that the question is about, if there is one."""
    return next((c for c in state.calls if c.step is not None and c.step == question.step), None)


def record_answer(
    state: RunState, question: Question, answer: HumanInput, now: datetime, verdict: PolicyVerdict | None = None
) -> RunState:
    """Record an answer to a question that takes it.

    The question stays open while more people must approve. Changed arguments replace those of the call, and earlier
    approvals of it lapse. `approve_tool` answers the questions about other calls of the tool, too.
    """
    state = expire_questions(state, now)
    call = find_call(state, question)
    if answer.arguments is not None and call is not None and answer.arguments != call.arguments:
        state, call = edit_call(state, call, answer.arguments, person_of(answer) or "a person", verdict)
        question = _ask_about(state, question, call)
    votes = (*question.votes, answer)
    is_vote = question.terms is not None and answer.decision is Decision.approve and len(votes) < question.terms.quorum
    changes: dict[str, Any] = {"votes": votes} if is_vote else {"answer": answer}
    alike = _alike(state, question) if answer.decision is Decision.approve_tool else {question.id}
    asked = (question if other.id == question.id else other for other in state.asked)
    answered = tuple(other.model_copy(update=changes) if other.id in alike else other for other in asked)
    return state.model_copy(update={"asked": answered})


def _ask_about(state: RunState, question: Question, call: Call) -> Question:
    """Return the question about the changed call, which has no approval yet."""
    start = (state.run_id, state.execution)
    digest = approval_digest(start, question.id, call.step, call.tool, call.arguments)
    changes: dict[str, Any] = {
        "text": format_approval(call.tool, call.arguments, call.verdict),
        "call": digest,
        "votes": (),
    }
    if call.verdict is not None:
        changes["terms"] = call.verdict.terms
    return question.model_copy(update=changes)


def _alike(state: RunState, question: Question) -> set[str]:
    """Return the ids of the questions that a person answers by approving the question's tool for the whole run."""
    call = find_call(state, question)
    if call is None or not needs_approval(state, call):  # it is about a changed definition
        return {question.id}
    approvals = (q for q in state.open_questions if q.kind is QuestionKind.approval and q.terms is None)
    alike = {q.id for q in approvals if (c := find_call(state, q)) and c.tool == call.tool and needs_approval(state, c)}
    return {question.id, *alike}
