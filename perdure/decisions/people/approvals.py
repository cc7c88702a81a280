"""Questions about a run's calls, and their answers: which are open, which answers are taken, and what they change."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from perdure.contracts.policy import PolicyVerdict
from perdure.contracts.run.signals import AskedTerms, Decision, HumanInput, Question, QuestionKind
from perdure.contracts.run.state import Call, RunState
from perdure.decisions.ids import approval_digest, question_id
from perdure.decisions.people.plan import take_from_plan, vote_of_plan
from perdure.decisions.people.terms import (
    ask_terms,
    count_approval,
    expire_question,
    first_expiry,
    person_of,
    postpone_question,
    requesters_of,
    unmet_terms,
)
from perdure.decisions.run.call_state import changes_something, edit_call, record_approval
from perdure.decisions.run.next_calls import needs_approval
from perdure.decisions.run.question import (
    QUESTIONS,
    answer_rejection,
    find_question,
    is_same_question,
)
from perdure.decisions.run.reply import question_in
from perdure.decisions.run.state import open_question
from perdure.decisions.text.formatting import format_approval, too_large_to_approve
from perdure.decisions.text.visible_text import render_visible
from perdure.decisions.tools import ASK_HUMAN

MAX_OPEN_TEXT = 256 * 1024  # characters of the questions that are open at once: a query returns them
MAX_OPTIONS = 20  # suggested answers of a question
MAX_OPTION = 500  # characters of one; whoever picks it sends all of it


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
    if text is None or options_error(options := options_in(call)):
        return None
    return QuestionKind.question, render_visible(text), options


def options_in(call: Call) -> tuple[str, ...]:
    """Return the suggested answers of an `ask_human` call as people see them, without blank and repeated ones."""
    options = call.arguments.get("options")
    texts = [text for text in options if isinstance(text, str)] if isinstance(options, list) else []
    return tuple(dict.fromkeys(render_visible(text) for text in texts if text.strip()))


def options_error(options: Sequence[str]) -> str | None:
    """Return the reason why a person cannot choose among these: each is shown whole, wherever it is offered."""
    if len(options) <= MAX_OPTIONS and all(len(option) <= MAX_OPTION for option in options):
        return None
    return (
        f"`options`: at most {MAX_OPTIONS}, of {MAX_OPTION} characters each as they are shown; write what is longer "
        "into the question"
    )


def ask_question(  # noqa: PLR0913 - facts
    state: RunState,
    kind: QuestionKind,
    text: str,
    options: Sequence[str],
    about: Call | None,
    now: datetime,
    form: dict[str, Any] | None = None,
) -> tuple[RunState, Question]:
    """Open a question, unless the run has asked it already. Return the state and the question."""
    same = (question for question in state.asked if is_same_question(question, kind, text, about))
    if question := next(same, None):
        return state, question
    question = _build_question(state, kind, text, options, about, now).evolve(form=form)
    if about is not None and needs_approval(state, about):  # else it is about a changed definition
        question = _count_plan(state, question, about)
    return open_question(state, question), question


def _build_question(  # noqa: PLR0913 - facts
    state: RunState, kind: QuestionKind, text: str, options: Sequence[str], about: Call | None, now: datetime
) -> Question:
    name = question_id(state.questions + 1)
    digest, expires_at = None, None
    terms: tuple[AskedTerms, ...] = ()
    if about and kind is QuestionKind.approval:
        digest = approval_digest((state.run_id, state.execution), name, about.step, about.tool, about.arguments)
        timeout = approval_timeout(state, about.tool)
        terms = ask_terms(about.verdict.terms if about.verdict else (), now, timeout)
        expires_at = first_expiry(terms) if terms else now + timeout if timeout else None
    decisions = tuple(d for d in QUESTIONS[kind].decisions if not terms or d is not Decision.approve_tool)
    return Question(
        id=name,
        kind=kind,
        text=text,
        options=decisions or tuple(map(render_visible, options)),
        step=about and about.step,
        tool=about and about.tool,
        tool_use_id=about and about.tool_use_id,
        asked_at=now,
        call=digest,
        expires_at=expires_at,
        terms=terms,
    )


def take_planned_call(state: RunState, call: Call, now: datetime) -> tuple[RunState, Call]:
    """Take the call from the run's plan, and record its approval if that of the plan's starter is enough."""
    state, call = take_from_plan(state, call)
    if not call.plan or call.approval is not None:
        return state, call
    question = _count_plan(state, _build_question(state, QuestionKind.approval, "", (), call, now), call)
    return (state, call) if question.answer is None else record_approval(state, call)


def take_planned_calls(state: RunState, batch: Sequence[Call], now: datetime) -> tuple[RunState, tuple[Call, ...]]:
    """Take the planned calls among the open calls of the turn, before any of them is asked about."""
    for call in state.calls:
        if call.outcome is None and changes_something(call):
            state, _ = take_planned_call(state, call, now)
    names = {call.tool_use_id for call in batch}
    return state, tuple(call for call in state.calls if call.tool_use_id in names)


def _count_plan(state: RunState, question: Question, about: Call) -> Question:
    """Count the approval of the plan's starter, if the plan has the call and this person may approve it."""
    vote = vote_of_plan(state, about, question)
    if vote is None or answer_rejection(question, vote, requesters_of(state)) is not None:
        return question
    question = count_approval(question, vote, requesters_of(state))
    return question if unmet_terms(question) else question.evolve(answer=vote)


def approval_timeout(state: RunState, tool: str) -> timedelta | None:
    return next(route.approval_timeout for route in state.tools if route.name == tool)


def expire_questions(state: RunState, now: datetime) -> RunState:
    """Close the questions whose time has passed, or put them to the next group."""
    return state.evolve(asked=tuple(expire_question(question, now) for question in state.asked))


def postpone_questions(state: RunState, now: datetime) -> RunState:
    """Give the questions whose time has passed their whole time again: the run is held, and so are its answers."""
    asked = (
        postpone_question(question, now, approval_timeout(state, question.tool) if question.tool else None)
        for question in state.asked
    )
    return state.evolve(asked=tuple(asked))


def judge_answer(
    state: RunState, answer: HumanInput, now: datetime, verdict: PolicyVerdict | None = None
) -> Question | str:
    """Return the open question that the answer is for, or the reason why it is not taken.

    `verdict` is the policy's on a call that the answer changes.
    """
    question = find_question(expire_questions(state, now).asked, answer, expired=state.expired)
    if isinstance(question, str):
        return question
    call = find_call(state, question)
    judged = question
    if answer.arguments is not None and call is not None and answer.arguments != call.arguments:
        judged = _ask_again(state, question, call.tool, verdict, now)
    return answer_rejection(judged, answer, requesters_of(state)) or _edit_error(state, question, answer) or question


def _edit_error(state: RunState, question: Question, answer: HumanInput) -> str | None:
    if answer.arguments is None:
        return None
    call = find_call(state, question)
    if call is None or not needs_approval(state, call):
        return f"question {question.id} takes no changed arguments"
    if answer.arguments != call.arguments and (later := _judged_by(state, call)) is not None:
        judged = f"step {later.step} of the same reply was judged by the call as it is"
        return f"question {question.id} takes no changed arguments: {judged}; deny one of the two"
    if too_large_to_approve(call.tool, answer.arguments):
        return "the changed arguments are too large: they could not be shown whole"
    return None


def _judged_by(state: RunState, call: Call) -> Call | None:
    """Return a later call of the reply that is not made yet, and whose verdict depends on the arguments of this one."""
    denied = {q.step for q in state.asked if q.answer is not None and q.answer.decision is Decision.deny}
    later = state.calls[state.calls.index(call) + 1 :]
    return next(
        (
            other
            for other in later
            if other.verdict is not None and "history" in other.verdict.facts
            if other.outcome is None and other.step not in denied
        ),
        None,
    )


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
        question = _ask_about(state, _ask_again(state, question, call.tool, verdict, now), call)
    answer = answer.evolve(shown=None)  # history has it
    if answer.decision is Decision.approve:
        question = count_approval(question, answer, requesters_of(state))
    is_answered = answer.decision is not Decision.approve or not unmet_terms(question)
    alike = _alike(state, question) if answer.decision is Decision.approve_tool else {question.id}
    asked = (question if other.id == question.id else other for other in state.asked)
    answered = tuple(other.evolve(answer=answer) if is_answered and other.id in alike else other for other in asked)
    return state.evolve(asked=answered)


def _ask_again(
    state: RunState, question: Question, tool: str, verdict: PolicyVerdict | None, now: datetime
) -> Question:
    """Return the question about a changed call: on the terms of its verdict, without the approvals so far."""
    timeout = approval_timeout(state, tool)
    terms = ask_terms(question.terms if verdict is None else verdict.terms, now, timeout, before=question.terms)
    return question.evolve(terms=terms, expires_at=first_expiry(terms) if terms else question.expires_at)


def _ask_about(state: RunState, question: Question, call: Call) -> Question:
    start = (state.run_id, state.execution)
    digest = approval_digest(start, question.id, call.step, call.tool, call.arguments)
    text = render_visible(format_approval(call.tool, call.arguments, call.verdict))
    return question.evolve(text=text, call=digest, revision=question.revision + 1)


def _alike(state: RunState, question: Question) -> set[str]:
    """Return the ids of the questions that a person answers by approving the question's tool for the whole run."""
    call = find_call(state, question)
    if call is None or not needs_approval(state, call):  # it is about a changed definition
        return {question.id}
    approvals = (q for q in state.open_questions if q.kind is QuestionKind.approval and not q.terms)
    alike = {q.id for q in approvals if (c := find_call(state, q)) and c.tool == call.tool and needs_approval(state, c)}
    return {question.id, *alike}
