"""Dead letters: messages that failed, and files that are not messages. They can be redelivered (C4, C5)."""

from datetime import datetime

from contracts.mail.commands import BridgeTask, BridgeTaskKind
from contracts.mail.delivery import InboxMessage
from contracts.mail.mailbox import DeadLetter, MailboxState, Redeliver, SeenMessage
from decisions.mailbox.capacity import (
    BY,
    DEAD_BYTES,
    MAX_DEAD,
    MAX_SEEN,
    add_mailbox_notice,
    add_newest,
    latest_that_fit,
)
from decisions.mailbox.delivery import WHY, file_mark, file_place, stub_of, with_size
from decisions.text.formatting import truncate


def add_dead_letter(state: MailboxState, letter: InboxMessage, reason: str, now: datetime) -> MailboxState:
    dead = DeadLetter(
        file=letter.file,
        plan=letter.plan,
        folder=letter.folder,
        key=letter.key,
        task=letter.task,
        message_id=letter.message_id,
        attempt=letter.attempt,
        why=truncate(reason, WHY),
        at=now,
    )
    latest = latest_that_fit((*state.dead, dead), MAX_DEAD, DEAD_BYTES)
    return state.model_copy(update={"dead": latest, "failed": state.failed + 1})


def newly_dead(before: MailboxState, after: MailboxState) -> tuple[DeadLetter, ...]:
    """Return the dead letters since `before`, each of which raises an alert."""
    count = after.failed - before.failed
    return after.dead[-count:] if count else ()


def redeliver_dead_letters(state: MailboxState, request: Redeliver, now: datetime) -> MailboxState:
    """Restore the matching files as new ones, and accept their messages once more."""
    chosen = [dead for dead in state.dead if _is_wanted(dead, request)]
    if not chosen:
        name = request.message_id or request.file or "at all"
        return add_mailbox_notice(state, f"redeliver: no dead letter {truncate(name, 80)}")
    orders, seen = list(state.orders), state.seen
    for dead in chosen:
        stub = stub_of(file_place(dead), now, dead.message_id, dead.key)
        orders.append(BridgeTask(kind=BridgeTaskKind.restore, letter=with_size(stub)))
        if dead.key:
            again = SeenMessage(file=file_mark(stub), attempt=dead.attempt, again=True)
            seen = add_newest(seen, dead.key[:BY], again, MAX_SEEN)
    remaining = tuple(dead for dead in state.dead if dead not in chosen)
    return state.model_copy(update={"orders": tuple(orders), "seen": seen, "dead": remaining})


def _is_wanted(dead: DeadLetter, request: Redeliver) -> bool:
    return request.message_id in (None, dead.message_id) and request.file in (None, dead.file)
