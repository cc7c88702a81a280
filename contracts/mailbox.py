"""What a mailbox is told by its bridges, what it keeps, and what it orders them to do (C1 to C8, D2, D6).

A bridge stands between a folder and the mailbox. The message itself stays in its file: the mailbox knows its head, and
the bridge that carries out an order reads the rest.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from contracts.conversation import TurnEnd
from contracts.mail import MOST_INPUTS, InputName, MessageHead, Name, ReplyStatus
from contracts.value import Edge, Value

MOST_DELIVERIES = 100  # of one `deliver`
MOST_FILE_NAME = 255


def _sparse(default: Any) -> Any:
    """A field that is not written while it says nothing: there are thousands of them in a mailbox's state."""
    return Field(default=default, exclude_if=lambda value: value == default)


class Delivery(Edge):
    """A file that a bridge has claimed: `file` in the `.pending/` of folder `plan`.

    `head` is None where it is no message, and `fault` says why. `missing` names the inputs that are not there yet,
    `undecided` those of which several files would do and a person has to say which.
    """

    file: str = Field(min_length=1, max_length=MOST_FILE_NAME)
    plan: str = Field(max_length=MOST_FILE_NAME)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$|^$")
    head: MessageHead | None = None
    fault: str | None = Field(default=None, max_length=2000)
    missing: tuple[InputName, ...] = Field(default=(), max_length=MOST_INPUTS)
    undecided: tuple[InputName, ...] = Field(default=(), max_length=MOST_INPUTS)


class DeliverRequest(Edge):
    """The body of the update `deliver`. `folder` is the id of the bridge's folder; without deliveries it attaches."""

    folder: Name
    deliveries: tuple[Delivery, ...] = Field(default=(), max_length=MOST_DELIVERIES)


class Verdict(StrEnum):
    """What a mailbox makes of a delivery. What becomes of the file is ordered, whatever the verdict."""

    admitted = "admitted"
    known = "known"  # this very file is in hand
    duplicate = "duplicate"  # of a message that is, or was
    blocked = "blocked"  # its inputs are not there yet: deliver it again when they are
    task_in_progress = "task_in_progress"  # another message about a task that is in hand
    task_done = "task_done"  # and about one that is done: its result is sent again
    dead = "dead"  # it is no message
    full = "full"  # later: it is not in hand


class Delivered(Value):
    """The answer of `deliver`: a verdict for each delivery, in their order. `open` counts the messages in hand."""

    verdicts: tuple[Verdict, ...]
    open: int


class Ack(StrEnum):
    consumed = "CONSUMED"  # before anything is done about it
    succeeded = "SUCCEEDED"
    failed = "FAILED"


class TaskState(StrEnum):
    consumed = "CONSUMED"
    running = "RUNNING"
    blocked = "BLOCKED_WAITING_INPUT"
    succeeded = "SUCCEEDED"
    failed = "FAILED"


class Transition(Value):
    state: TaskState
    at: datetime


class Stage(StrEnum):
    """Where a message is on its way."""

    blocked = "blocked"  # its inputs are not there
    admitted = "admitted"  # it waits to be taken
    running = "running"  # its run has begun
    ending = "ending"  # what became of it is to be told
    outgoing = "outgoing"  # a dispatch that is not in the folder yet
    sent = "sent"  # and one that is: a reply is awaited


class Ending(Value):
    """How a letter ends. `fault` is the type of a failure; `details` are for the ack, and for people."""

    ack: Literal[Ack.succeeded, Ack.failed]
    details: str
    fault: str | None = None


class Letter(Value):
    """A message in hand. `key` is a digest of its id and hash, `task` of its plan, task and subtask.

    `attempt` counts the runs of it. Of a dispatch to a peer that lives outside, `delegation` is the workflow that
    waits for the reply; it has no file of its own in `.pending/`. `size` is in bytes, as the mailbox carries it;
    `untold` says that the folder does not have its state yet, `looks` how often nothing was seen of the run's end,
    and `tries` how often what is due could not be done.
    """

    key: str
    task: str
    folder: str
    plan: str
    file: str = _sparse("")
    sha256: str = _sparse("")
    message_id: str
    plan_id: str
    task_id: str
    subtask_id: str | None = _sparse(None)
    sender: str
    is_reply: bool = _sparse(False)
    undecided: tuple[str, ...] = _sparse(())
    delegation: str | None = _sparse(None)
    stage: Stage
    attempt: int = _sparse(1)
    run_id: str | None = _sparse(None)
    not_before: datetime | None = _sparse(None)
    heard_at: datetime
    transitions: tuple[Transition, ...] = _sparse(())
    ending: Ending | None = _sparse(None)
    size: int = _sparse(0)
    untold: bool = _sparse(False)
    looks: int = _sparse(0)
    tries: int = _sparse(0)


class OrderKind(StrEnum):
    """What a bridge can be ordered to do. Each may be done again, and is then the same as once."""

    take = "take"  # ack CONSUMED, then hand it to its lane; a reply, to the delegation that waits for it
    write_state = "write_state"  # task_state_….json, as the letter's transitions have it
    finish = "finish"  # ack and state, the reply, the file to .processed/ or, where it failed, to .deadletter/
    skip = "skip"  # a file that brings nothing new: told in the ack of its message, to .processed/
    resend = "resend"  # as `skip`, and the reply of the task's run is written again
    bury = "bury"  # a file that is no message: to .deadletter/, with the reason beside it
    restore = "restore"  # out of .deadletter/, to where new files come
    dispatch = "dispatch"  # a subtask for a peer that lives outside, as a file for it
    withdraw = "withdraw"  # that file is taken back, if it is still there


class Order(Value):
    """`why` is the reason of a `bury`, or the details of a `skip`. `run_id` of a `resend` is the run that did it.

    A `skip` without details tells nothing: its message has had its end, and only the file is still there.
    """

    kind: OrderKind
    letter: Letter
    why: str = ""
    run_id: str | None = None
    not_before: datetime | None = _sparse(None)
    tries: int = _sparse(0)


class CarryRequest(Value):
    """The input of the activity `carry`, on the task queue of the folder (`decisions.ids.mail_queue`)."""

    agent: str
    folder: str
    orders: tuple[Order, ...]


class Done(Value):
    """What came of an order.

    `run_id`: of a `take`, the run that its lane starts. `is_blocked`: that run asks a person for an input first.
    `ending`: of a `take`, that it is over already (a reply; a file that is gone or changed); of a `finish`, how it
    ended in the end; of a `dispatch`, that nobody waits for the reply any more. `again`: of a `finish`, the run failed
    before it did anything, and may be tried again. `at`: of a `take`, when the folder was told that the run has begun,
    or is blocked; None: it was not, and that is ordered. `later`: it could not be done now; it is ordered again after
    a pause, and holds up nothing else. So is a `take` with neither a run nor an ending.
    """

    run_id: str | None = None
    is_blocked: bool = False
    ending: Ending | None = None
    again: bool = False
    at: AwareDatetime | None = None
    later: bool = False


class Carried(Value):
    """The answer of `carry`: one for each order, in their order."""

    done: tuple[Done, ...]


class TurnEnded(Edge):
    """The body of the signal `turn_ended`, by which a lane tells a mailbox how its request ended."""

    request_id: str = Field(max_length=1000)
    run_id: str = Field(max_length=1000)
    end: TurnEnd


class InputPicked(Edge):
    """The body of the signal `input_picked`: a person has said which file it is, and the run goes on."""

    key: str


class GiveUp(Edge):
    """The body of the signal `give_up`: a person does not want this message to be waited for any more."""

    message_id: Name
    by: str | None = Field(default=None, max_length=200)


class Redeliver(Edge):
    """The body of the signal `redeliver`: the dead letters of this message, or this file, or all where neither is."""

    message_id: Name | None = None
    file: str | None = Field(default=None, max_length=MOST_FILE_NAME)
    by: str | None = Field(default=None, max_length=200)


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


class DeadLetter(Value):
    """`message_id` and `key` are empty for what was no message."""

    file: str
    plan: str
    folder: str
    key: str = ""
    task: str = ""
    message_id: str = ""
    attempt: int = 1
    why: str
    at: datetime


class _Memory(Value):
    """It is written as its first field alone where the others say nothing."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> Any:
        told = write(self)
        return told if len(told) > 1 else next(iter(told.values()))

    @model_validator(mode="before")
    @classmethod
    def _read(cls, written: Any) -> Any:
        return {next(iter(cls.model_fields)): written} if isinstance(written, str) else written


class TaskMemory(_Memory):
    """What is remembered of a task that is done: the message that asked for it, and the run that did it.

    `run_id` is None where it follows from the message: it is that of its request in the lane of the task.
    """

    key: str
    attempt: int = _sparse(1)
    run_id: str | None = _sparse(None)


class Seen(_Memory):
    """What is remembered of a message: a short digest of where it lay, and its attempts; `again`: it may come once
    more.
    """

    file: str
    attempt: int = _sparse(1)
    again: bool = _sparse(False)


class MailboxState(Value):
    """All that a mailbox knows, which is also what it carries over continue-as-new.

    `seen` is by the beginning of a key and `tasks` by that of a task digest, the oldest first; `orders`, about files
    that are no letters (any more), wait to be carried out, by folder in their order; what is to be done about a letter,
    its stage says. `served` has digests of the plans and tasks that were taken from, the latest last.
    """

    type: Literal["mailbox.continue"] = "mailbox.continue"
    agent: str
    folder: str | None = None  # of the bridge that came last
    letters: tuple[Letter, ...] = ()
    orders: tuple[Order, ...] = ()
    served: tuple[str, ...] = ()
    seen: dict[str, Seen] = Field(default_factory=dict)
    tasks: dict[str, TaskMemory] = Field(default_factory=dict)
    dead: tuple[DeadLetter, ...] = ()
    recent: tuple["AckView", ...] = ()
    accepted: int = 0
    skipped: int = 0
    failed: int = 0
    notices: tuple[str, ...] = ()


class MailboxStart(Edge):
    """The input of `Mailbox`. The agent, if given, must be that of the workflow id."""

    agent: Name | None = None


class AckView(Value):
    """A message as the query `acks` tells of it. `ack` is None while it is blocked, or waits to be consumed."""

    key: str
    message_id: str
    plan_id: str
    task_id: str
    subtask_id: str | None = None
    stage: Stage | None = None  # None: it is over
    state: TaskState | None = None
    ack: Ack | None = None
    details: str = ""
    run_id: str | None = None
    undecided: tuple[str, ...] = ()
    at: datetime


class MailboxView(Value):
    """The answer of the query `acks`: the messages in hand, and the latest that are over."""

    agent: str
    open: tuple[AckView, ...]
    recent: tuple[AckView, ...]
    accepted: int
    skipped: int
    failed: int
    orders: int  # that no bridge has carried out yet
    notices: tuple[str, ...]


class LookRequest(Value):
    """The input of the activity `look_at_turns`: which of these runs have ended. `lanes` are their conversations."""

    run_ids: tuple[str, ...]
    lanes: tuple[str, ...]


class Looked(Value):
    """How each has ended; None: it is open, or its lane has not started it yet. Without run and lane it was dropped."""

    ends: tuple[TurnEnd | None, ...]
