"""The contents of the files about a message: its ack (C5), its task state (C8) and the page `task.md` (D8).

An ack or a task state is the previous contents plus the changes. Of a page, only the owner is ever read back.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from perdure.contracts.run.limits import SubtaskStatus
from perdure.contracts.run.state import RunStatus, RunView
from perdure.decisions.text.formatting import truncate
from perdure.features.delegation.contract import DelegationState, DelegationStatus
from perdure.features.mailbox.contract import Ack, InboxMessage, TaskState, Transition

MAX_HISTORY = 100  # changes, or duplicates, that a file holds
MAX_SUMMARY = 500  # characters of a subtask's result
MAX_GOAL = 4000
_ENDS = (TaskState.succeeded, TaskState.failed)

Contents = Mapping[str, Any]


def update_ack(
    before: Contents | None, message: InboxMessage, status: Ack, at: datetime, details: str = ""
) -> dict[str, Any]:
    """Return the ack file with a status. Repeating a status changes nothing; another attempt extends the same file."""
    ack = _ack_of(before, message)
    new = {"status": status, "at": _format_time(at), "attempt": message.attempt}
    history = list(ack["history"])
    known = [(entry.get("status"), entry.get("attempt")) for entry in history]
    if (status, message.attempt) in known:
        new = history[known.index((status, message.attempt))]
        if status is Ack.consumed:  # the status may be a later one by now
            return ack
    else:
        history.append(new)
    ack |= {"status": status, "details": details, "at": new["at"], "history": history[-MAX_HISTORY:]}
    return {**ack, **({"run_id": message.run_id} if message.run_id else {})}


def add_duplicate(before: Contents | None, message: InboxMessage, details: str, at: datetime) -> dict[str, Any]:
    """Return the ack file with a duplicate of the message. The message's own status does not change."""
    ack = _ack_of(before, message)
    if any(entry.get("file") == message.file for entry in ack["duplicates"]):
        return ack
    other = {"status": Ack.succeeded, "details": details, "file": message.file, "at": _format_time(at)}
    return {**ack, "duplicates": [*ack["duplicates"], other][-MAX_HISTORY:]}


def _ack_of(before: Contents | None, message: InboxMessage) -> dict[str, Any]:
    names = ("message_id", "sha256", "plan_id", "task_id", "subtask_id")
    fresh: dict[str, Any] = {
        **{name: getattr(message, name) for name in names},
        "status": None,
        "details": "",
        "history": [],
        "duplicates": [],
    }
    stored = {name: value for name, value in (before or {}).items() if name in {*fresh, "run_id", "at"}}
    lists = {name: stored[name] for name in ("history", "duplicates") if isinstance(stored.get(name), list)}
    return {**fresh, **stored, "history": [], "duplicates": [], **lists}


def update_task_state(before: Contents | None, message: InboxMessage, *more: Transition) -> dict[str, Any]:
    """Return the task-state file with all changes of the task. Changes that it already has are not repeated."""
    stored = (before or {}).get("history")
    history = [entry for entry in stored if isinstance(entry, dict)] if isinstance(stored, list) else []
    known = _current_states([entry for entry in history if entry.get("key") == message.key], message.transitions)
    for new in (*message.transitions, *more):
        if known and known[0] == new.state:
            known = known[1:]
        elif known is not None:
            history.append({"state": new.state, "at": _format_time(new.at), "key": message.key})
    latest = history[-1] if history else {"state": None, "at": None}
    return {
        **{name: getattr(message, name) for name in ("plan_id", "task_id", "subtask_id", "message_id")},
        "run_id": message.run_id or (before or {}).get("run_id"),
        "state": latest["state"],
        "at": latest["at"],
        "history": history[-MAX_HISTORY:],
    }


def _current_states(own: list[dict[str, Any]], transitions: tuple[Transition, ...]) -> list[Any] | None:
    """Return the recorded states since the message last began, unless its end is recorded."""
    recorded = [(entry.get("state"), entry.get("at")) for entry in own]
    if any(last.state in _ENDS and (last.state, _format_time(last.at)) in recorded for last in transitions[-1:]):
        return None
    start = max((number for number, (state, _) in enumerate(recorded, 1) if state in _ENDS), default=0)
    return [state for state, _ in recorded[start:]]


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


_SUBTASKS: Mapping[SubtaskStatus, str] = {
    SubtaskStatus.waiting: "pending",
    SubtaskStatus.running: "dispatched",
    SubtaskStatus.done: "done",
}


def status_of(message: InboxMessage, view: RunView | None, delegations: Sequence[DelegationState]) -> str:
    """Return planning, in-progress, executing, aggregating, done or failed."""
    if message.ending is not None:
        return "done" if message.ending.ack is Ack.succeeded else "failed"
    if view is not None and view.status is RunStatus.completed:
        return "done"
    if view is not None and view.status in (RunStatus.failed, RunStatus.cancelled, RunStatus.timed_out):
        return "failed"
    if any(delegation.status is DelegationStatus.running for delegation in delegations):
        return "executing"
    if delegations:
        return "aggregating"
    return "planning" if view is None or view.turns == 0 else "in-progress"


def render_task_page(
    message: InboxMessage, task: str, view: RunView | None, delegations: Sequence[DelegationState], result: str
) -> str:
    """Return the page. `task` is the message's body; `result` is the outcome or failure, empty while it runs."""
    head = [
        ("from", message.sender),
        ("mode", "coordinating" if delegations else "direct"),
        ("status", status_of(message, view, delegations)),
        ("run_id", message.run_id or ""),
    ]
    lines = [*_identity_lines(message), *_yaml_fields(head), "---", "", "# Task", ""]
    lines += [task[:MAX_GOAL].rstrip() + ("\n\n…" if len(task) > MAX_GOAL else ""), ""]
    for number, delegation in enumerate(delegations, 1):
        title = "## Subtasks" if len(delegations) == 1 else f"## Subtasks {number}"
        lines += [title, "", "| subtask | agent | status |", "| --- | --- | --- |"]
        lines += [
            f"| {_escape_cell(sub.id)} | {_escape_cell(sub.agent)} | {_SUBTASKS.get(sub.status, 'failed')} |"
            for sub in delegation.subtasks
        ]
        lines.append("")
    results = [sub for delegation in delegations for sub in delegation.subtasks if sub.outcome]
    lines += ["## Subtask results", ""] if results else []
    for sub in results:
        lines += [f"### {sub.id}", "", truncate(sub.outcome, MAX_SUMMARY), ""]
        lines += [*(f"- {path}" for path in sub.artifacts), ""] if sub.artifacts else []
    if result:
        lines += ["## Result", "", result.rstrip(), ""]
    return "\n".join(lines)


def is_of_another(page: bytes, message: InboxMessage) -> bool:
    """Return whether another task owns the page, as tasks of two plans may share a name. Other files have no owner."""
    own = "\n".join([*_identity_lines(message), ""]).encode(errors="replace")
    return page.startswith(b"---\ntask_id: ") and not page.startswith(own)


def _identity_lines(message: InboxMessage) -> list[str]:
    """Return the first lines of a task's page, which no other task's page has."""
    ids = (("task_id", message.task_id), ("subtask_id", message.subtask_id or ""), ("plan_id", message.plan_id))
    return ["---", *_yaml_fields(ids)]


def _yaml_fields(fields: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name}: {_quote_scalar(value)}" for name, value in fields if value]


def _escape_cell(text: str) -> str:
    return truncate(text, 200).replace("|", "\\|")


def _quote_scalar(text: str) -> str:
    """Return the text as a YAML scalar."""
    if text and all(char.isalnum() or char in "-_." for char in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{truncate(escaped, 500)}"'
