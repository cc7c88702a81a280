"""Subtasks for outside peers: written to the peer's folder, withdrawn, answered (D6)."""

from collections.abc import Sequence
from datetime import datetime

from pydantic_core import to_json

from contracts.mail.commands import Order, OrderKind
from contracts.mail.delivery import Letter, Stage
from contracts.mail.mailbox import MailboxState
from contracts.mail.peers import Dispatch
from decisions.ids import letter_key, task_key
from decisions.mailbox.capacity import has_room, letter_of, noticed, without_letters
from decisions.mailbox.delivery import weighed
from decisions.text.formatting import cut

MOST_DISPATCH = 4096  # bytes
WITHDRAWN_BYTES = 32 * 1024  # of open withdrawals; beyond it, the oldest are dropped and their files stay


def dispatched(state: MailboxState, dispatch: Dispatch, now: datetime) -> MailboxState:
    """Add a subtask, once. If there is no room, forget the oldest subtasks that were sent."""
    letter = _outgoing(state, dispatch, now)
    if letter_of(state, letter.key) is not None:
        return state
    if len(to_json(dispatch)) > MOST_DISPATCH:
        return noticed(state, f"dispatch: it has more than {MOST_DISPATCH:,} bytes")
    after = state
    while not has_room(after, letter):
        sent = next((other for other in after.letters if other.stage is Stage.sent), None)
        if sent is None:
            return noticed(state, f"dispatch: full: {cut(dispatch.task_id, 80)} {cut(dispatch.subtask_id, 80)}")
        after = without_letters(after, sent)
    orders = tuple(one for one in after.orders if one.kind is not OrderKind.withdraw or one.letter.key != letter.key)
    return after.model_copy(update={"letters": (*after.letters, letter), "orders": orders})


def _outgoing(state: MailboxState, dispatch: Dispatch, now: datetime) -> Letter:
    letter = Letter(
        key=letter_key(dispatch.delegation, dispatch.subtask_id),
        task=task_key(dispatch.plan_id, dispatch.task_id, dispatch.subtask_id),
        folder=state.folder or "",
        plan=dispatch.plan_id,
        message_id=f"{dispatch.task_id}-{dispatch.subtask_id}",
        plan_id=dispatch.plan_id,
        task_id=dispatch.task_id,
        subtask_id=dispatch.subtask_id,
        sender=dispatch.sender,
        delegation=dispatch.delegation,
        stage=Stage.outgoing,
        heard_at=now,
    )
    return weighed(letter)


def withdrawn(state: MailboxState, dispatch: Dispatch, now: datetime) -> MailboxState:
    """Withdraw a subtask whose reply is not awaited any more. If it has a folder, order the removal of its file."""
    if len(to_json(dispatch)) > MOST_DISPATCH:
        return noticed(state, f"withdraw: it has more than {MOST_DISPATCH:,} bytes")
    unknown = _outgoing(state, dispatch, now)
    letter = letter_of(state, unknown.key) or unknown
    after = without_letters(state, letter)
    if not letter.folder or any(one.letter.key == letter.key for one in after.orders):
        return after
    order = Order(kind=OrderKind.withdraw, letter=letter)
    after = after.model_copy(update={"orders": (*after.orders, order)})
    while oldest := _too_many([one for one in after.orders if one.kind is OrderKind.withdraw]):
        after = noticed(after, f"withdraw: not done: {cut(oldest.letter.message_id, 200)}")
        after = after.model_copy(update={"orders": tuple(one for one in after.orders if one is not oldest)})
    return after


def _too_many(withdrawals: Sequence[Order]) -> Order | None:
    """Return the oldest withdrawal if there are too many."""
    is_over = sum(order.letter.size for order in withdrawals) > WITHDRAWN_BYTES and len(withdrawals) > 1
    return withdrawals[0] if is_over else None


def resolved(state: MailboxState, reply: Letter) -> MailboxState:
    """Close the subtask that the reply answers."""
    answered = [
        letter
        for letter in state.letters
        if letter.delegation is not None
        and letter.stage in (Stage.outgoing, Stage.sent)
        and (letter.task_id, letter.subtask_id) == (reply.task_id, reply.subtask_id)
    ]
    return without_letters(state, *answered)
