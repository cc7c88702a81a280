"""Subtasks for a peer that lives outside: sent to its folder, taken back, answered (D6)."""

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
WITHDRAWN_BYTES = 32 * 1024  # of subtasks that a bridge is still to take back; of more, the oldest files stay there


def dispatched(state: MailboxState, dispatch: Dispatch, now: datetime) -> MailboxState:
    """One that is on its way is there once. Of those that were sent, the oldest is forgotten where there is no room."""
    letter = _outgoing(state, dispatch, now)
    if letter_of(state, letter.key) is not None:
        return state
    if len(to_json(dispatch)) > MOST_DISPATCH:
        return noticed(state, f"dispatch: it has more than {MOST_DISPATCH:,} bytes")
    left = state
    while not has_room(left, letter):
        sent = next((each for each in left.letters if each.stage is Stage.sent), None)
        if sent is None:
            return noticed(state, f"dispatch: full: {cut(dispatch.task_id, 80)} {cut(dispatch.subtask_id, 80)}")
        left = without_letters(left, sent)
    orders = tuple(x for x in left.orders if x.kind is not OrderKind.withdraw or x.letter.key != letter.key)
    return left.model_copy(update={"letters": (*left.letters, letter), "orders": orders})


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
    """Nobody waits for the reply any more: its file is taken back, where there is a folder that may have it."""
    if len(to_json(dispatch)) > MOST_DISPATCH:
        return noticed(state, f"withdraw: it has more than {MOST_DISPATCH:,} bytes")
    unknown = _outgoing(state, dispatch, now)
    letter = letter_of(state, unknown.key) or unknown
    left = without_letters(state, letter)
    if not letter.folder or any(each.letter.key == letter.key for each in left.orders):
        return left
    order = Order(kind=OrderKind.withdraw, letter=letter)
    left = left.model_copy(update={"orders": (*left.orders, order)})
    while oldest := _too_many([each for each in left.orders if each.kind is OrderKind.withdraw]):
        left = noticed(left, f"withdraw: nobody did it: {cut(oldest.letter.message_id, 200)}")
        left = left.model_copy(update={"orders": tuple(each for each in left.orders if each is not oldest)})
    return left


def _too_many(withdrawals: Sequence[Order]) -> Order | None:
    """The oldest of too many."""
    is_over = sum(each.letter.size for each in withdrawals) > WITHDRAWN_BYTES and len(withdrawals) > 1
    return withdrawals[0] if is_over else None


def resolved(state: MailboxState, reply: Letter) -> MailboxState:
    """The reply has come to whoever waited for it, or nobody does: what it answers is over."""
    answered = [
        each
        for each in state.letters
        if each.delegation is not None
        and each.stage in (Stage.outgoing, Stage.sent)
        and (each.task_id, each.subtask_id) == (reply.task_id, reply.subtask_id)
    ]
    return without_letters(state, *answered)
