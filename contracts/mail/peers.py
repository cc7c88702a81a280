"""Subtasks for peers that live outside, and their replies (D6)."""

from enum import StrEnum

from contracts.mail.message import ReplyStatus
from contracts.models import FrozenModel, StrictModel


class Dispatch(StrictModel):
    """The body of the signals `dispatch` and `withdraw`: a subtask for the mailbox's agent."""

    delegation: str
    plan_id: str
    task_id: str
    subtask_id: str
    sender: str


class MailDispatch(FrozenModel):
    """The input of the activity `dispatch_mail`: send to the mailbox of `agent`, or withdraw."""

    agent: str
    dispatch: Dispatch
    withdraw: bool = False


class MailReply(StrictModel):
    """The body of the update `reply` of a `Delegation`. `mailbox` is the agent whose mailbox received the reply."""

    mailbox: str
    sender: str
    subtask_id: str
    status: ReplyStatus
    body: str
    artifacts: tuple[str, ...] = ()


class MessageQuery(StrictModel):
    """The argument of the query `message` of a `Delegation`."""

    subtask_id: str


class ReplyVerdict(StrEnum):
    """The verdict of a `Delegation` on a reply. A reply to a delegation that no longer exists is an orphan too."""

    resolved = "RESOLVED"
    already_done = "ALREADY_DONE"
    orphan = "ORPHAN"
