"""The limits of a mailbox's state, all of which is carried over continue-as-new."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic_core import to_json

from contracts.mail.commands import BridgeTask
from contracts.mail.delivery import InboxMessage, Stage
from contracts.mail.mailbox import AckView, DeadLetter, MailboxState
from decisions.mailbox.delivery import file_place, is_task
from decisions.text.formatting import truncate

# All of this together stays below 1 MiB.
MAX_OPEN, OPEN_BYTES = 500, 264 * 1024  # open messages; of ordinary size, about 350 fit
MAX_BLOCKED, BLOCKED_BYTES = 250, 132 * 1024  # of them, those that wait for inputs, which may never arrive
NEW_PLANS, NEW_BYTES = 50, 32 * 1024  # in addition: one message of each plan or folder that has none open
WAITED_FOR, WAITED_BYTES = 100, 24 * 1024  # in addition: what open work may wait for, replies and subtasks for peers
MAX_ORDERS, ORDER_BYTES = 200, 64 * 1024
NEW_FOLDERS, FOLDER_BYTES = 20, 16 * 1024  # in addition: one order for each folder that has none
MAX_SEEN, MAX_TASKS = 5000, 5000
MAX_DEAD, DEAD_BYTES = 500, 64 * 1024
MAX_RECENT, RECENT_BYTES = 200, 48 * 1024
MAX_NOTICES = 20
BY = 16  # characters of a digest that is a key of the memory
T = TypeVar("T")
V = TypeVar("V", AckView, DeadLetter)


def find_letter(state: MailboxState, key: str) -> InboxMessage | None:
    return next((letter for letter in state.letters if letter.key == key), None)


def replace_letter(state: MailboxState, letter: InboxMessage, **changes: Any) -> MailboxState:
    """Replace the letter of the same key by this one, with some fields changed."""
    new = letter.model_copy(update=changes)
    return state.model_copy(update={"letters": tuple(new if one.key == new.key else one for one in state.letters)})


def remove_letters(state: MailboxState, *removed: InboxMessage) -> MailboxState:
    keys = [letter.key for letter in removed]
    return state.model_copy(update={"letters": tuple(letter for letter in state.letters if letter.key not in keys)})


def has_room(state: MailboxState, letter: InboxMessage) -> bool:
    more, more_bytes = 0, 0
    if not any((other.folder, other.plan_id) == (letter.folder, letter.plan_id) for other in state.letters):
        more, more_bytes = NEW_PLANS, NEW_BYTES
    if not is_task(letter):
        more, more_bytes = NEW_PLANS + WAITED_FOR, NEW_BYTES + WAITED_BYTES
    used = sum(other.size for other in state.letters)
    return len(state.letters) < MAX_OPEN + more and used + letter.size <= OPEN_BYTES + more_bytes


def may_be_blocked(state: MailboxState, letter: InboxMessage) -> bool:
    """Return whether another message may wait for inputs. Blocked messages leave room for the others."""
    blocked = [other.size for other in state.letters if other.stage is Stage.blocked]
    return len(blocked) < MAX_BLOCKED and sum(blocked) + letter.size <= BLOCKED_BYTES


def add_order(state: MailboxState, order: BridgeTask) -> MailboxState | None:
    """Add an order, unless the file already has it or there is no room for it (`None`)."""
    if any(other.kind is order.kind and file_place(other.letter) == file_place(order.letter) for other in state.orders):
        return state
    is_first = all(other.letter.folder != order.letter.folder for other in state.orders)
    more, more_bytes = (NEW_FOLDERS, FOLDER_BYTES) if is_first else (0, 0)
    used = sum(other.letter.size + len(other.why) for other in (*state.orders, order))
    if len(state.orders) >= MAX_ORDERS + more or used > ORDER_BYTES + more_bytes:
        return None
    return state.model_copy(update={"orders": (*state.orders, order)})


def add_newest(entries: Mapping[str, T], key: str, value: T, limit: int) -> dict[str, T]:
    """Add an entry as the newest, and drop the oldest ones beyond the limit."""
    latest = dict(entries)
    latest.pop(key, None)
    while len(latest) >= limit:
        del latest[next(iter(latest))]
    latest[key] = value
    return latest


def latest_that_fit(entries: tuple[V, ...], limit: int, max_bytes: int) -> tuple[V, ...]:
    """Return the latest entries that fit. Callers add one at a time, so few are dropped."""
    latest = entries[-limit:]
    size = sum(len(to_json(entry)) for entry in latest)
    while size > max_bytes and len(latest) > 1:
        size -= len(to_json(latest[0]))
        latest = latest[1:]
    return latest


def add_mailbox_notice(state: MailboxState, notice: str) -> MailboxState:
    return state.model_copy(update={"notices": (*state.notices, truncate(notice, 300))[-MAX_NOTICES:]})
