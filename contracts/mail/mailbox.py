"""What a mailbox is told by its bridges and by lanes, what it keeps, and what it shows (C1 to C8, D2).

A bridge stands between a folder and the mailbox. The message itself stays in its file: the mailbox knows its head, and
the bridge that carries out an order reads the rest.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from contracts.conversation import TurnEnd
from contracts.mail.commands import Order
from contracts.mail.delivery import Ack, Letter, Stage, TaskState
from contracts.mail.message import MOST_INPUTS, InputName, MessageHead, Name
from contracts.models import Edge, Value, sparse

MOST_DELIVERIES = 100  # of one `deliver`
MOST_FILE_NAME = 255


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
    """The answer of `deliver`: a verdict for each delivery, in their order. `open` counts the messages in hand.

    `mailbox` is the run id of its first execution: of one that has another, nothing is known that was delivered before.
    """

    verdicts: tuple[Verdict, ...]
    open: int
    mailbox: str = ""


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
    attempt: int = sparse(1)
    run_id: str | None = sparse(None)


class Seen(_Memory):
    """What is remembered of a message: a short digest of where it lay, and its attempts; `again`: it may come once
    more.
    """

    file: str
    attempt: int = sparse(1)
    again: bool = sparse(False)


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
