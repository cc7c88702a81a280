"""A mailbox's requests from bridges and lanes, its state and its views (C1 to C8, D2).

A bridge connects a folder to the mailbox. The mailbox knows only the head of a message; bridges read the body from its
file.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from contracts.conversation import TurnEnd
from contracts.mail.commands import BridgeTask
from contracts.mail.delivery import Ack, InboxMessage, Stage, TaskState
from contracts.mail.message import MAX_INPUTS, InputName, MessageHead, Name
from contracts.models import FrozenModel, StrictModel, omit_default

MAX_DELIVERIES = 100  # of one `deliver`
MAX_FILE_NAME = 255


class Delivery(StrictModel):
    """A file that a bridge has claimed: `file` in the `.pending/` of folder `plan`.

    `head` is None if it is not a message; `fault` is the reason. `missing` names the missing inputs, `undecided` the
    inputs that match several files, between which a person chooses.
    """

    file: str = Field(min_length=1, max_length=MAX_FILE_NAME)
    plan: str = Field(max_length=MAX_FILE_NAME)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$|^$")
    head: MessageHead | None = None
    fault: str | None = Field(default=None, max_length=2000)
    missing: tuple[InputName, ...] = Field(default=(), max_length=MAX_INPUTS)
    undecided: tuple[InputName, ...] = Field(default=(), max_length=MAX_INPUTS)


class DeliverRequest(StrictModel):
    """The body of the update `deliver`. `folder` is the id of the bridge's folder; no deliveries: attach only."""

    folder: Name
    deliveries: tuple[Delivery, ...] = Field(default=(), max_length=MAX_DELIVERIES)


class DeliveryVerdict(StrEnum):
    """The verdict on a delivery. Every verdict leads to a task for the file."""

    admitted = "admitted"
    known = "known"  # this file is already admitted
    duplicate = "duplicate"  # of an open or ended message
    blocked = "blocked"  # inputs are missing: deliver it again when they exist
    task_in_progress = "task_in_progress"  # another message for a task in progress
    task_done = "task_done"  # another message for a finished task, whose result is sent again
    dead = "dead"  # not a message
    full = "full"  # not admitted; deliver it again later


class Delivered(FrozenModel):
    """The answer of `deliver`: a verdict for each delivery, in order. `open` counts the admitted messages.

    `mailbox` is the run id of the first execution; a mailbox with another one does not know earlier deliveries.
    """

    verdicts: tuple[DeliveryVerdict, ...]
    open: int
    mailbox: str = ""


class TurnEnded(StrictModel):
    """The body of the signal `turn_ended`: a lane reports the end of the mailbox's request."""

    request_id: str = Field(max_length=1000)
    run_id: str = Field(max_length=1000)
    end: TurnEnd


class InputPicked(StrictModel):
    """The body of the signal `input_picked`: a person has chosen the file, and the run continues."""

    key: str


class GiveUp(StrictModel):
    """The body of the signal `give_up`: stop waiting for this message, on a person's request."""

    message_id: Name
    by: str | None = Field(default=None, max_length=200)


class Redeliver(StrictModel):
    """The body of the signal `redeliver`: the dead letters of this message or file; with neither, all."""

    message_id: Name | None = None
    file: str | None = Field(default=None, max_length=MAX_FILE_NAME)
    by: str | None = Field(default=None, max_length=200)


class DeadLetter(FrozenModel):
    """A dead letter. `message_id` and `key` are empty if it was not a message."""

    file: str
    plan: str
    folder: str
    key: str = ""
    task: str = ""
    message_id: str = ""
    attempt: int = 1
    why: str
    at: datetime


class _Memory(FrozenModel):
    """The base class: written as its first field alone if the others have their defaults."""

    @model_serializer(mode="wrap")
    def _serialize(self, write: SerializerFunctionWrapHandler) -> Any:
        fields = write(self)
        return fields if len(fields) > 1 else next(iter(fields.values()))

    @model_validator(mode="before")
    @classmethod
    def _parse_short_form(cls, written: Any) -> Any:
        return {next(iter(cls.model_fields)): written} if isinstance(written, str) else written


class TaskMemory(_Memory):
    """The record of a finished task: its message and its run.

    `run_id` is None if it is that of the message's request in the lane of the task.
    """

    key: str
    attempt: int = omit_default(1)
    run_id: str | None = omit_default(None)


class SeenMessage(_Memory):
    """The record of a message: a short digest of its path, and its attempts. `again`: it may be delivered again."""

    file: str
    attempt: int = omit_default(1)
    again: bool = omit_default(False)


class MailboxState(FrozenModel):
    """The state of a mailbox, carried over continue-as-new.

    The keys of `seen` are prefixes of message keys, those of `tasks` prefixes of task digests, the oldest first.
    `orders` are pending tasks for files without an admitted message, in order by folder; the stage of an admitted
    message determines its next task. `served` has digests of the plans and tasks that were served, the latest last.
    """

    type: Literal["mailbox.continue"] = "mailbox.continue"
    agent: str
    folder: str | None = None  # of the last bridge to attach
    letters: tuple[InboxMessage, ...] = ()
    orders: tuple[BridgeTask, ...] = ()
    served: tuple[str, ...] = ()
    seen: dict[str, SeenMessage] = Field(default_factory=dict)
    tasks: dict[str, TaskMemory] = Field(default_factory=dict)
    dead: tuple[DeadLetter, ...] = ()
    recent: tuple["AckView", ...] = ()
    accepted: int = 0
    skipped: int = 0
    failed: int = 0
    notices: tuple[str, ...] = ()


class MailboxStart(StrictModel):
    """The input of `Mailbox`. If set, the agent must match the workflow id."""

    agent: Name | None = None


class AckView(FrozenModel):
    """A message in the answer of the query `acks`. `ack` is unset while it is blocked or waits to be consumed."""

    key: str
    message_id: str
    plan_id: str
    task_id: str
    subtask_id: str | None = None
    stage: Stage | None = None  # None: it has ended
    state: TaskState | None = None
    ack: Ack | None = None
    details: str = ""
    run_id: str | None = None
    undecided: tuple[str, ...] = ()
    at: datetime


class MailboxView(FrozenModel):
    """The answer of the query `acks`: the open messages, and the latest ended ones."""

    agent: str
    open: tuple[AckView, ...]
    recent: tuple[AckView, ...]
    accepted: int
    skipped: int
    failed: int
    orders: int  # tasks that no bridge has done yet
    notices: tuple[str, ...]


class TurnLookupRequest(FrozenModel):
    """The input of the activity `look_at_turns`: which of these runs have ended. `lanes` are their conversations."""

    run_ids: tuple[str, ...]
    lanes: tuple[str, ...]


class TurnLookup(FrozenModel):
    """The ends of the runs, unset for runs that are open or not started yet. `dropped`: neither run nor lane exists."""

    ends: tuple[TurnEnd | None, ...]
