"""What delegations, mailboxes and peers that live outside exchange: a subtask, and its reply (D6)."""

from enum import StrEnum

from contracts.mail.message import ReplyStatus
from contracts.models import Edge, Value


class Dispatch(Edge):
    """The body of the signals `dispatch` and `withdraw`: a subtask for the agent whose mailbox this is."""

    delegation: str
    plan_id: str
    task_id: str
    subtask_id: str
    sender: str


class MailDispatch(Value):
    """The input of the activity `dispatch_mail`: for the mailbox of `agent`, or taken back from it."""

    agent: str
    dispatch: Dispatch
    withdraw: bool = False


class MailReply(Edge):
    """The body of the update `reply` of a `Delegation`. `mailbox` is the agent in whose mailbox the reply came."""

    mailbox: str
    sender: str
    subtask_id: str
    status: ReplyStatus
    body: str
    artifacts: tuple[str, ...] = ()


class MessageQuery(Edge):
    """The argument of the query `message` of a `Delegation`."""

    subtask_id: str


class ReplyVerdict(StrEnum):
    """What a `Delegation` makes of a reply. Where there is none of it any more, the reply is an orphan as well."""

    resolved = "RESOLVED"
    already_done = "ALREADY_DONE"
    orphan = "ORPHAN"
