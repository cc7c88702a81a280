"""What a mailbox has in hand, and what it has room for: all of it is carried over continue-as-new."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic_core import to_json

from contracts.mail.commands import Order
from contracts.mail.delivery import Letter, Stage
from contracts.mail.mailbox import AckView, DeadLetter, MailboxState
from decisions.mailbox.delivery import is_task, place
from decisions.text.formatting import cut

# All of this together stays below 1 MiB.
MOST_OPEN, OPEN_BYTES = 500, 264 * 1024  # messages in hand; of ordinary ones, the bytes allow some 350
MOST_BLOCKED, BLOCKED_BYTES = 250, 132 * 1024  # of them, those that wait for inputs: these may never come
NEW_PLANS, NEW_BYTES = 50, 32 * 1024  # and more: a message of each plan, or folder, that has none in hand
WAITED_FOR, WAITED_BYTES = 100, 24 * 1024  # and more of what such work may wait for: replies, and subtasks for peers
MOST_ORDERS, ORDER_BYTES = 200, 64 * 1024
NEW_FOLDERS, FOLDER_BYTES = 20, 16 * 1024  # and more: an order for each folder that has none
MOST_SEEN, MOST_TASKS = 5000, 5000
MOST_DEAD, DEAD_BYTES = 500, 64 * 1024
MOST_RECENT, RECENT_BYTES = 200, 48 * 1024
MOST_NOTICES = 20
BY = 16  # characters of a digest by which thousands are remembered
T = TypeVar("T")
V = TypeVar("V", AckView, DeadLetter)


def letter_of(state: MailboxState, key: str) -> Letter | None:
    return next((each for each in state.letters if each.key == key), None)


def with_letter(state: MailboxState, letter: Letter) -> MailboxState:
    """In the place of the one with its key."""
    letters = tuple(letter if each.key == letter.key else each for each in state.letters)
    return state.model_copy(update={"letters": letters})


def without_letters(state: MailboxState, *gone: Letter) -> MailboxState:
    keys = [each.key for each in gone]
    return state.model_copy(update={"letters": tuple(each for each in state.letters if each.key not in keys)})


def has_room(state: MailboxState, letter: Letter) -> bool:
    more, more_bytes = 0, 0
    if not any((each.folder, each.plan_id) == (letter.folder, letter.plan_id) for each in state.letters):
        more, more_bytes = NEW_PLANS, NEW_BYTES
    if not is_task(letter):
        more, more_bytes = NEW_PLANS + WAITED_FOR, NEW_BYTES + WAITED_BYTES
    used = sum(each.size for each in state.letters)
    return len(state.letters) < MOST_OPEN + more and used + letter.size <= OPEN_BYTES + more_bytes


def may_be_blocked(state: MailboxState, letter: Letter) -> bool:
    """What waits for inputs leaves room for what does not."""
    blocked = [each.size for each in state.letters if each.stage is Stage.blocked]
    return len(blocked) < MOST_BLOCKED and sum(blocked) + letter.size <= BLOCKED_BYTES


def with_order(state: MailboxState, order: Order) -> MailboxState | None:
    """None where too much is ordered already. What is ordered stays ordered once."""
    if any(each.kind is order.kind and place(each.letter) == place(order.letter) for each in state.orders):
        return state
    is_first = all(each.letter.folder != order.letter.folder for each in state.orders)
    more, more_bytes = (NEW_FOLDERS, FOLDER_BYTES) if is_first else (0, 0)
    used = sum(each.letter.size + len(each.why) for each in (*state.orders, order))
    if len(state.orders) >= MOST_ORDERS + more or used > ORDER_BYTES + more_bytes:
        return None
    return state.model_copy(update={"orders": (*state.orders, order)})


def newest(known: Mapping[str, T], key: str, value: T, most: int) -> dict[str, T]:
    """With this one as the newest, and without the oldest where there are too many."""
    kept = dict(known)
    kept.pop(key, None)
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
    return kept


def bounded(memories: tuple[V, ...], most: int, most_bytes: int) -> tuple[V, ...]:
    """The latest ones, as many as fit. Only the newest is new, so few have to go."""
    kept = memories[-most:]
    size = sum(len(to_json(each)) for each in kept)
    while size > most_bytes and len(kept) > 1:
        size -= len(to_json(kept[0]))
        kept = kept[1:]
    return kept


def noticed(state: MailboxState, notice: str) -> MailboxState:
    return state.model_copy(update={"notices": (*state.notices, cut(notice, 300))[-MOST_NOTICES:]})
