"""The notices of a run, and the channels that get them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from perdure.contracts.failures import Escalation
from perdure.contracts.people import NoticeKind, NoticeRoute
from perdure.contracts.run.signals import Question
from perdure.contracts.run.state import Ending, RunState, RunStatus
from perdure.decisions.ids import notice_workflow_id
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import cut_text, render_visible
from perdure.features.notices.contract import Notice, NoticeRequest

MAX_TITLE = 150  # characters; Slack's header has 150
MAX_TEXT = 1500  # characters of a card
_BUDGETS = (Escalation.token_budget, Escalation.money_budget, Escalation.shared_budget)
_ENDED = (RunStatus.completed, RunStatus.escalated, RunStatus.cancelled, RunStatus.timed_out, RunStatus.failed)
PATIENCE = timedelta(hours=1)  # before `waiting_long`, by default


def question_request(state: RunState, question: Question, kind: NoticeKind) -> NoticeRequest | None:
    """Return the notice that a question is open or has expired, or None if no channel wants it."""
    kinds = (kind, NoticeKind.waiting_long) if kind is NoticeKind.waiting else (kind,)
    action = "waits for a person" if kind is NoticeKind.waiting else "got no answer in time"
    is_cut = len(render_visible(question.text)) + sum(map(len, question.options)) > MAX_TEXT
    notice = _new_notice(state, kind, f"{action}: {QUESTIONS[question.kind].title}", question.text).evolve(
        question_id=question.id,
        group=question.group,
        revision=question.revision,
        call=question.call,
        is_cut=is_cut,
        options=() if is_cut else question.options,
        asked_at=question.asked_at,
    )
    return _request(notice, state.notify, kinds)


def end_request(state: RunState, ending: Ending | None) -> NoticeRequest | None:
    """Return the notice of a run's end; a run without an ending is cancelled."""
    if ending is None:
        return _request(_new_notice(state, NoticeKind.ended, "is cancelled", ""), state.notify, (NoticeKind.ended,))
    kind = NoticeKind.ended
    if ending.status in (RunStatus.failed, RunStatus.timed_out):
        kind = NoticeKind.failed
    elif ending.reason in _BUDGETS:
        kind = NoticeKind.budget
    kinds = (kind, NoticeKind.ended) if kind is NoticeKind.budget else (kind,)
    reason = f": {ending.reason}" if ending.reason else ""
    return _request(_new_notice(state, kind, f"is {ending.status}{reason}", ending.text), state.notify, kinds)


def wedged_request(run_id: str, agent: str, found: str, routes: Iterable[NoticeRoute]) -> NoticeRequest | None:
    """Return the notice that a run's workflow tasks fail."""
    notice = Notice(kind=NoticeKind.wedged, run_id=run_id, agent=agent, title=f"{agent} is stuck", text=found)
    return _request(notice, tuple(routes), (NoticeKind.wedged,))


@dataclass(frozen=True)
class CutOffRun:
    """A run that Temporal ended. `status` is its last one; `state` is None if no worker can tell."""

    run_id: str
    agent: str
    status: str
    is_timed_out: bool
    reason: str
    state: RunState | None


def cut_off_request(run: CutOffRun, routes: Sequence[NoticeRoute]) -> NoticeRequest | None:
    """Return the notice of a run that was terminated or timed out, under the id that its own would have.

    None if the run had announced its end before, or no channel wants it. `routes` are those of a run without a state.
    """
    state = run.state
    if (state.status if state else run.status) in _ENDED:
        return None
    kind, action = (NoticeKind.failed, "timed out") if run.is_timed_out else (NoticeKind.ended, "terminated")
    notice = Notice(
        kind=kind,
        run_id=run.run_id,
        agent=run.agent,
        conversation_id=state.conversation_id if state else None,
        title=truncate(f"{run.agent} is {action}", MAX_TITLE),
        text=truncate(render_visible(run.reason[: 2 * MAX_TEXT]), MAX_TEXT),
    )
    request = _request(notice, state.notify if state else routes, (kind,))
    owner = (state.key_id if state else "") or run.run_id
    return request and request.evolve(id=notice_workflow_id(owner, kind))


def request_id(state: RunState, notice: Notice) -> str:
    """Return the id of the workflow that delivers the notice: one for each event of a run.

    A question is announced again to its next group, and as often as its call is changed.
    """
    question = f"{notice.question_id}.{notice.group}" if notice.group else notice.question_id
    question = f"{question}~{notice.revision}" if notice.revision else question
    return notice_workflow_id(state.key_id or state.run_id, notice.kind, question)


def overdue_routes(routes: Iterable[NoticeRoute]) -> list[tuple[timedelta, NoticeRoute]]:
    """Return the routes of `waiting_long` with their patience, the shortest first."""
    waiting = [(route.patience or PATIENCE, route) for route in routes if NoticeKind.waiting_long in route.on]
    return sorted(waiting, key=lambda pair: (pair[0], pair[1].channel))


def overdue_notice(notice: Notice, patience: timedelta) -> Notice:
    """Return the notice that the question is still open."""
    title = truncate(f"{notice.title} (still open after {_format_time(patience)})", MAX_TITLE)
    return notice.evolve(kind=NoticeKind.waiting_long, title=title)


def _new_notice(state: RunState, kind: NoticeKind, action: str, text: str) -> Notice:
    return Notice(
        kind=kind,
        run_id=state.run_id,
        agent=state.agent,
        conversation_id=state.conversation_id,
        title=truncate(f"{state.agent} {action}", MAX_TITLE),
        text=cut_text(render_visible(text[: 2 * MAX_TEXT]), MAX_TEXT),
    )


def _request(notice: Notice, routes: Sequence[NoticeRoute], kinds: Sequence[NoticeKind]) -> NoticeRequest | None:
    concerned = tuple(route for route in routes if not set(kinds).isdisjoint(route.on))
    return NoticeRequest(notice=notice, routes=concerned) if concerned else None


def _format_time(time: timedelta) -> str:
    """Format a time that was set: "45 s", "90 min", "6 h"."""
    seconds = time.total_seconds()
    if seconds % 60:
        return f"{seconds:g} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h" if minutes >= 120 and minutes % 60 == 0 else f"{minutes} min"
