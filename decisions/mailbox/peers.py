"""Subtasks for outside peers: written to the peer's folder, withdrawn, answered (D6)."""

from datetime import datetime

from pydantic_core import to_json

from contracts.mail.commands import BridgeTask, BridgeTaskKind
from contracts.mail.delivery import InboxMessage, Stage
from contracts.mail.mailbox import MailboxState
from contracts.mail.peers import Dispatch
from decisions.ids import message_key, task_key
from decisions.mailbox.capacity import add_mailbox_notice, find_letter, has_room, remove_letters
from decisions.mailbox.delivery import with_size
from decisions.text.formatting import truncate

MAX_DISPATCH = 4096  # bytes
WITHDRAWN_BYTES = 32 * 1024  # of open withdrawals; beyond it, the oldest are dropped and their files stay


def add_dispatch(state: MailboxState, dispatch: Dispatch, now: datetime) -> MailboxState:
    """Add a subtask, once. If there is no room, forget the oldest subtasks that were sent."""
    letter = _outgoing_letter(state, dispatch, now)
    if find_letter(state, letter.key) is not None:
        return state
    if len(to_json(dispatch)) > MAX_DISPATCH:
        return add_mailbox_notice(state, f"dispatch: it has more than {MAX_DISPATCH:,} bytes")
    after = state
    while not has_room(after, letter):
        sent = next((other for other in after.letters if other.stage is Stage.sent), None)
        if sent is None:
            return add_mailbox_notice(
                state, f"dispatch: full: {truncate(dispatch.task_id, 80)} {truncate(dispatch.subtask_id, 80)}"
            )
        after = remove_letters(after, sent)
    orders = tuple(
        one for one in after.orders if one.kind is not BridgeTaskKind.withdraw or one.letter.key != letter.key
    )
    return after.model_copy(update={"letters": (*after.letters, letter), "orders": orders})


def _outgoing_letter(state: MailboxState, dispatch: Dispatch, now: datetime) -> InboxMessage:
    letter = InboxMessage(
        **dispatch.model_dump(),
        key=message_key(dispatch.delegation, dispatch.subtask_id),
        task=task_key(dispatch.plan_id, dispatch.task_id, dispatch.subtask_id),
        folder=state.folder or "",
        plan=dispatch.plan_id,
        message_id=f"{dispatch.task_id}-{dispatch.subtask_id}",
        stage=Stage.outgoing,
        heard_at=now,
    )
    return with_size(letter)


def withdraw_dispatch(state: MailboxState, dispatch: Dispatch, now: datetime) -> MailboxState:
    """Withdraw a subtask whose reply is not awaited any more. If it has a folder, order the removal of its file."""
    if len(to_json(dispatch)) > MAX_DISPATCH:
        return add_mailbox_notice(state, f"withdraw: it has more than {MAX_DISPATCH:,} bytes")
    unknown = _outgoing_letter(state, dispatch, now)
    letter = find_letter(state, unknown.key) or unknown
    after = remove_letters(state, letter)
    if not letter.folder or any(one.letter.key == letter.key for one in after.orders):
        return after
    order = BridgeTask(kind=BridgeTaskKind.withdraw, letter=letter)
    after = after.model_copy(update={"orders": (*after.orders, order)})
    withdrawals = [one for one in after.orders if one.kind is BridgeTaskKind.withdraw]
    while sum(one.letter.size for one in withdrawals) > WITHDRAWN_BYTES and len(withdrawals) > 1:
        oldest = withdrawals.pop(0)
        after = add_mailbox_notice(after, f"withdraw: not done: {truncate(oldest.letter.message_id, 200)}")
        after = after.model_copy(update={"orders": tuple(one for one in after.orders if one is not oldest)})
    return after


def close_answered(state: MailboxState, reply: InboxMessage) -> MailboxState:
    """Close the subtask that the reply answers."""
    answered = [
        letter
        for letter in state.letters
        if letter.delegation is not None
        and letter.stage in (Stage.outgoing, Stage.sent)
        and (letter.task_id, letter.subtask_id) == (reply.task_id, reply.subtask_id)
    ]
    return remove_letters(state, *answered)
