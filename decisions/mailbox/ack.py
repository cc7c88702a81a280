"""The contents of a message's ack file (C5) and of its task-state file (C8): the previous contents plus the changes."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from contracts.mail.delivery import Ack, InboxMessage, TaskState, Transition

MAX_HISTORY = 100  # changes, or duplicates, that a file holds
_ENDS = (TaskState.succeeded, TaskState.failed)

Contents = Mapping[str, Any]


def update_ack(
    before: Contents | None, letter: InboxMessage, status: Ack, at: datetime, details: str = ""
) -> dict[str, Any]:
    """Return the ack file with a status. Repeating a status changes nothing; another attempt extends the same file."""
    ack = _ack_of(before, letter)
    new = {"status": status, "at": _format_time(at), "attempt": letter.attempt}
    history = list(ack["history"])
    known = [(entry.get("status"), entry.get("attempt")) for entry in history]
    if (status, letter.attempt) in known:
        new = history[known.index((status, letter.attempt))]
        if status is Ack.consumed:  # the status may be a later one by now
            return ack
    else:
        history.append(new)
    ack |= {"status": status, "details": details, "at": new["at"], "history": history[-MAX_HISTORY:]}
    return {**ack, **({"run_id": letter.run_id} if letter.run_id else {})}


def add_duplicate(before: Contents | None, letter: InboxMessage, details: str, at: datetime) -> dict[str, Any]:
    """Return the ack file with a duplicate of the message. The message's own status does not change."""
    ack = _ack_of(before, letter)
    if any(entry.get("file") == letter.file for entry in ack["duplicates"]):
        return ack
    other = {"status": Ack.succeeded, "details": details, "file": letter.file, "at": _format_time(at)}
    return {**ack, "duplicates": [*ack["duplicates"], other][-MAX_HISTORY:]}


def _ack_of(before: Contents | None, letter: InboxMessage) -> dict[str, Any]:
    fresh: dict[str, Any] = {
        "message_id": letter.message_id,
        "sha256": letter.sha256,
        "plan_id": letter.plan_id,
        "task_id": letter.task_id,
        "subtask_id": letter.subtask_id,
        "status": None,
        "details": "",
        "history": [],
        "duplicates": [],
    }
    stored = {name: value for name, value in (before or {}).items() if name in {*fresh, "run_id", "at"}}
    lists = {name: stored[name] for name in ("history", "duplicates") if isinstance(stored.get(name), list)}
    return {**fresh, **stored, "history": [], "duplicates": [], **lists}


def update_task_state(before: Contents | None, letter: InboxMessage, *more: Transition) -> dict[str, Any]:
    """Return the task-state file with all changes of the task. Changes that it already has are not repeated."""
    stored = (before or {}).get("history")
    history = [entry for entry in stored if isinstance(entry, dict)] if isinstance(stored, list) else []
    known = _current_states([entry for entry in history if entry.get("key") == letter.key], letter.transitions)
    for new in (*letter.transitions, *more):
        if known and known[0] == new.state:
            known = known[1:]
        elif known is not None:
            history.append({"state": new.state, "at": _format_time(new.at), "key": letter.key})
    latest = history[-1] if history else {"state": None, "at": None}
    return {
        "plan_id": letter.plan_id,
        "task_id": letter.task_id,
        "subtask_id": letter.subtask_id,
        "message_id": letter.message_id,
        "run_id": letter.run_id or (before or {}).get("run_id"),
        "state": latest["state"],
        "at": latest["at"],
        "history": history[-MAX_HISTORY:],
    }


def _current_states(own: list[dict[str, Any]], transitions: tuple[Transition, ...]) -> list[Any] | None:
    """Return the recorded states since the message last began, unless its end is recorded."""
    if transitions and any(
        (entry.get("state"), entry.get("at")) == _format_transition(transitions[-1]) for entry in own
    ):
        last = transitions[-1].state
        if last in _ENDS:
            return None
    start = max((number for number, entry in enumerate(own, 1) if entry.get("state") in _ENDS), default=0)
    return [entry.get("state") for entry in own[start:]]


def _format_transition(transition: Transition) -> tuple[str, str]:
    return transition.state, _format_time(transition.at)


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
