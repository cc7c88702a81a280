"""What the files tell of a message (C5) and of its task (C8): each is what it was before, and what is new."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from contracts.mailbox import Ack, Ending, Letter, TaskState

MOST_TOLD = 100  # changes, or duplicates, that a file keeps

Told = Mapping[str, Any]


def acked(
    before: Told | None, letter: Letter, status: Ack, at: datetime, details: str = "", run_id: str | None = None
) -> dict[str, Any]:
    """The ack of a message. Told twice, it is the same; another attempt goes on in the same file."""
    told = _ack_of(before, letter)
    run = run_id or letter.run_id
    new = {"status": status, "at": at.isoformat(timespec="milliseconds"), "attempt": letter.attempt}
    history = list(told["history"])
    known = [(each.get("status"), each.get("attempt")) for each in history]
    if (status, letter.attempt) in known:
        new = history[known.index((status, letter.attempt))]
        if status is Ack.consumed:  # it may have come further since
            return told
    else:
        history.append(new)
    told |= {"status": status, "details": details, "at": new["at"], "history": history[-MOST_TOLD:]}
    return {**told, **({"run_id": run} if run else {})}


def duplicated(before: Told | None, letter: Letter, details: str, at: datetime) -> dict[str, Any]:
    """The same message has come in another file; what became of the message itself stays as it is."""
    told = _ack_of(before, letter)
    if any(each.get("file") == letter.file for each in told["duplicates"]):
        return told
    when = at.isoformat(timespec="milliseconds")
    other = {"status": Ack.succeeded, "details": details, "file": letter.file, "at": when}
    return {**told, "duplicates": [*told["duplicates"], other][-MOST_TOLD:]}


def _ack_of(before: Told | None, letter: Letter) -> dict[str, Any]:
    fresh = {
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


def stated(before: Told | None, letter: Letter, new: list[tuple[TaskState, datetime]]) -> dict[str, Any]:
    """How a task stands, with all its changes. One that was told before is not told again."""
    kept = (before or {}).get("history")
    history = [each for each in kept if isinstance(each, dict)] if isinstance(kept, list) else []
    for state, at in new:
        own = [each for each in history if (each.get("key"), each.get("attempt")) == (letter.key, letter.attempt)]
        is_known = any(each.get("state") == state for each in own[-1:] if state is not TaskState.consumed)
        if is_known or (state is TaskState.consumed and any(each.get("state") == state for each in own)):
            continue
        when = at.isoformat(timespec="milliseconds")
        history.append({"state": state, "at": when, "key": letter.key, "attempt": letter.attempt})
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


def state_of(ending: Ending) -> TaskState:
    return TaskState.succeeded if ending.ack is Ack.succeeded else TaskState.failed
