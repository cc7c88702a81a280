"""Dead letters: messages that failed, and files that are not messages. They can be redelivered (C4, C5)."""

from datetime import datetime

from contracts.mail.commands import Order, OrderKind
from contracts.mail.delivery import Letter
from contracts.mail.mailbox import DeadLetter, MailboxState, Redeliver, Seen
from decisions.mailbox.capacity import BY, DEAD_BYTES, MOST_DEAD, MOST_SEEN, bounded, newest, noticed
from decisions.mailbox.delivery import WHY, mark, place, stub_of, weighed
from decisions.text.formatting import cut


def died(state: MailboxState, letter: Letter, reason: str, now: datetime) -> MailboxState:
    dead = DeadLetter(
        file=letter.file,
        plan=letter.plan,
        folder=letter.folder,
        key=letter.key,
        task=letter.task,
        message_id=letter.message_id,
        attempt=letter.attempt,
        why=cut(reason, WHY),
        at=now,
    )
    latest = bounded((*state.dead, dead), MOST_DEAD, DEAD_BYTES)
    return state.model_copy(update={"dead": latest, "failed": state.failed + 1})


def newly_dead(before: MailboxState, after: MailboxState) -> tuple[DeadLetter, ...]:
    """Return the dead letters since `before`, each of which raises an alert."""
    count = after.failed - before.failed
    return after.dead[-count:] if count else ()


def redeliver(state: MailboxState, request: Redeliver, now: datetime) -> MailboxState:
    """Restore the matching files as new ones, and accept their messages once more."""
    chosen = [dead for dead in state.dead if _is_wanted(dead, request)]
    if not chosen:
        name = request.message_id or request.file or "at all"
        return noticed(state, f"redeliver: no dead letter {cut(name, 80)}")
    orders, seen = list(state.orders), state.seen
    for dead in chosen:
        stub = stub_of(place(dead), now, dead.message_id, dead.key)
        orders.append(Order(kind=OrderKind.restore, letter=weighed(stub)))
        if dead.key:
            again = Seen(file=mark(stub), attempt=dead.attempt, again=True)
            seen = newest(seen, dead.key[:BY], again, MOST_SEEN)
    remaining = tuple(dead for dead in state.dead if dead not in chosen)
    return state.model_copy(update={"orders": tuple(orders), "seen": seen, "dead": remaining})


def _is_wanted(dead: DeadLetter, request: Redeliver) -> bool:
    return request.message_id in (None, dead.message_id) and request.file in (None, dead.file)
