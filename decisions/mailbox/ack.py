"""What the files tell of a message (C5) and of its task (C8): each is what it was before, and what is new."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from contracts.mail.delivery import Ack, Letter, TaskState, Transition

MOST_TOLD = 100  # changes, or duplicates, that a file keeps
_ENDS = (TaskState.succeeded, TaskState.failed)

Told = Mapping[str, Any]


def acked(before: Told | None, letter: Letter, status: Ack, at: datetime, details: str = "") -> dict[str, Any]:
    """The ack of a message. Told twice, it is the same; another attempt goes on in the same file."""
    told = _ack_of(before, letter)
    new = {"status": status, "at": _when(at), "attempt": letter.attempt}
    history = list(told["history"])
    known = [(each.get("status"), each.get("attempt")) for each in history]
    if (status, letter.attempt) in known:
        new = history[known.index((status, letter.attempt))]
        if status is Ack.consumed:  # it may have come further since
            return told
    else:
        history.append(new)
    told |= {"status": status, "details": details, "at": new["at"], "history": history[-MOST_TOLD:]}
    return {**told, **({"run_id": letter.run_id} if letter.run_id else {})}


def duplicated(before: Told | None, letter: Letter, details: str, at: datetime) -> dict[str, Any]:
    """The same message has come in another file; what became of the message itself stays as it is."""
    told = _ack_of(before, letter)
    if any(each.get("file") == letter.file for each in told["duplicates"]):
        return told
    when = _when(at)
    other = {"status": Ack.succeeded, "details": details, "file": letter.file, "at": when}
    return {**told, "duplicates": [*told["duplicates"], other][-MOST_TOLD:]}


def _ack_of(before: Told | None, letter: Letter) -> dict[str, Any]:
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
    kept = {name: value for name, value in (before or {}).items() if name in {*fresh, "run_id", "at"}}
    lists = {name: kept[name] for name in ("history", "duplicates") if isinstance(kept.get(name), list)}
    return {**fresh, **kept, "history": [], "duplicates": [], **lists}


def stated(before: Told | None, letter: Letter, *more: Transition) -> dict[str, Any]:
    """How a task stands, with all its changes. What was told before is not told again."""
    kept = (before or {}).get("history")
    history = [each for each in kept if isinstance(each, dict)] if isinstance(kept, list) else []
    known = _current([each for each in history if each.get("key") == letter.key], letter.transitions)
    for new in (*letter.transitions, *more):
        if known and known[0] == new.state:
            known = known[1:]
        elif known is not None:
            history.append({"state": new.state, "at": _when(new.at), "key": letter.key})
    latest = history[-1] if history else {"state": None, "at": None}
    return {
        "plan_id": letter.plan_id,
        "task_id": letter.task_id,
        "subtask_id": letter.subtask_id,
        "message_id": letter.message_id,
        "run_id": letter.run_id or (before or {}).get("run_id"),
        "state": latest["state"],
        "at": latest["at"],
        "history": history[-MOST_TOLD:],
    }


def _current(own: list[dict[str, Any]], transitions: tuple[Transition, ...]) -> list[Any] | None:
    """The states that were told since the message's latest beginning; None where its end was told."""
    if transitions and any((each.get("state"), each.get("at")) == _told(transitions[-1]) for each in own):
        last = transitions[-1].state
        if last in _ENDS:
            return None
    begun = max((number for number, each in enumerate(own, 1) if each.get("state") in _ENDS), default=0)
    return [each.get("state") for each in own[begun:]]


def _told(transition: Transition) -> tuple[str, str]:
    return transition.state, _when(transition.at)


def _when(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
