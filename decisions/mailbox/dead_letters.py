"""Dead letters: messages that have failed, and files that are none. They can come back (C4, C5)."""

from datetime import datetime

from contracts.mail.commands import Order, OrderKind
from contracts.mail.delivery import Letter
from contracts.mail.mailbox import DeadLetter, MailboxState, Redeliver, Seen
from decisions.mailbox.capacity import BY, DEAD_BYTES, MOST_DEAD, MOST_SEEN, bounded, newest, noticed
from decisions.mailbox.delivery import WHY, mark, place, stub_of, weighed
from decisions.text.formatting import cut


def died(state: MailboxState, letter: Letter, why: str, now: datetime) -> MailboxState:
    dead = DeadLetter(
        file=letter.file,
        plan=letter.plan,
        folder=letter.folder,
        key=letter.key,
        task=letter.task,
        message_id=letter.message_id,
        attempt=letter.attempt,
        why=cut(why, WHY),
        at=now,
    )
    kept = bounded((*state.dead, dead), MOST_DEAD, DEAD_BYTES)
    return state.model_copy(update={"dead": kept, "failed": state.failed + 1})


def newly_dead(before: MailboxState, after: MailboxState) -> tuple[DeadLetter, ...]:
    """Those of whom an alert is due: all that came since."""
    grown = after.failed - before.failed
    return after.dead[-grown:] if grown else ()


def redeliver(state: MailboxState, wanted: Redeliver, now: datetime) -> MailboxState:
    """The files come back as new ones, and their messages may come once more."""
    chosen = [each for each in state.dead if _is_wanted(each, wanted)]
    if not chosen:
        about = wanted.message_id or wanted.file or "at all"
        return noticed(state, f"redeliver: no dead letter {cut(about, 80)}")
    orders, seen = list(state.orders), state.seen
    for each in chosen:
        stub = stub_of(place(each), now, each.message_id, each.key)
        orders.append(Order(kind=OrderKind.restore, letter=weighed(stub)))
        if each.key:
            again = Seen(file=mark(stub), attempt=each.attempt, again=True)
            seen = newest(seen, each.key[:BY], again, MOST_SEEN)
    left = tuple(each for each in state.dead if each not in chosen)
    return state.model_copy(update={"orders": tuple(orders), "seen": seen, "dead": left})


def _is_wanted(dead: DeadLetter, wanted: Redeliver) -> bool:
    return wanted.message_id in (None, dead.message_id) and wanted.file in (None, dead.file)
