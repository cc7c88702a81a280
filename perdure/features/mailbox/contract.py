"""Messages as files, what a folder remembers of them, and what delegations exchange with outside peers (C1 to C8)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from perdure.contracts.models import FrozenModel, StrictModel, omit_default
from perdure.contracts.people import Work

MAX_MESSAGE_BYTES = 256 * 1024  # bytes of a file; more belongs into an input
MAX_MAIL_NAME = 200  # characters of an id
MAX_INPUTS = 20

Name = Annotated[str, Field(min_length=1, max_length=MAX_MAIL_NAME)]
InputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class PickPolicy(StrEnum):
    """The choice among several files that match an input. Without a policy a person is asked."""

    first = "first"  # by name
    latest = "latest"  # by arrival or last change
    unique = "unique"  # several matches are an error


class InputWanted(StrictModel):
    """An input of a task: a file below the folder's `inputs/`."""

    name: InputName
    """The input's name in the run."""
    match: str = Field(min_length=1, max_length=500)
    """The pattern of a file below `inputs/`, such as `*.csv`."""


class _Head(StrictModel):
    """The fields of every message."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    message_id: Name
    """Identifies the message, together with its content, so that a repeat has no effect."""
    plan_id: Name
    """The folder of the file."""
    task_id: Name
    """The id of the task within its plan."""
    subtask_id: Name | None = None
    """The id of a part of the task."""
    sender: Name = Field(alias="from")
    """The author."""
    to: Name | None = None
    """The addressee."""
    idempotency_key: Name | None = None
    """Stored, not interpreted."""


class TaskHead(_Head):
    """A task, described in the body."""

    type: Literal["task"]
    inputs: tuple[InputWanted, ...] = Field(default=(), max_length=MAX_INPUTS)
    """The files that the task needs."""
    wait_for_inputs: bool = True
    """`true`: wait for missing inputs. `false`: fail."""
    pick_policy: PickPolicy | None = None
    """The choice among several matching files. Without it a person is asked."""
    expected_output: str | None = Field(default=None, max_length=2000)
    """The expected result, in words."""
    work: Work | None = omit_default(None)
    """The work that the task belongs to, for the rules of a policy: copy it into messages that come of this one."""


class ReplyStatus(StrEnum):
    done = "done"
    failed = "failed"


class ReplyHead(_Head):
    """The reply to a task. The body is the result, or the reason for its absence."""

    type: Literal["reply"]
    status: ReplyStatus
    """The end of the task."""
    in_reply_to: Name | None = None
    """The `message_id` of the task."""
    run_id: str | None = Field(default=None, max_length=1000)
    """The run of the task."""
    artifacts: tuple[str, ...] = Field(default=(), max_length=200)
    """Files in the folder of the reply."""


MessageHead = Annotated[TaskHead | ReplyHead, Field(discriminator="type")]


class Ack(StrEnum):
    consumed = "CONSUMED"  # before any work is done
    succeeded = "SUCCEEDED"
    failed = "FAILED"


class TaskState(StrEnum):
    consumed = "CONSUMED"
    running = "RUNNING"
    blocked = "BLOCKED_WAITING_INPUT"
    succeeded = "SUCCEEDED"
    failed = "FAILED"


class Transition(FrozenModel):
    state: TaskState
    at: datetime


class Stage(StrEnum):
    """The stage of an open message."""

    blocked = "blocked"  # its inputs are missing
    admitted = "admitted"  # it waits to be taken
    running = "running"  # its lane has it
    ending = "ending"  # its end is still to be written
    sent = "sent"  # a subtask for an outside peer, which waits for its reply


class MessageResult(FrozenModel):
    """The end of a message. `fault` is the type of a failure; `details` are for the ack and for people."""

    ack: Literal[Ack.succeeded, Ack.failed]
    details: str
    fault: str | None = None


class InboxMessage(FrozenModel):
    """An open message. `key` is a digest of its id and hash, `task` of its plan, task and subtask.

    `attempt` counts its runs. A subtask for a peer that lives outside has no file in `.pending/`; `delegation` is the
    workflow that waits for the reply.
    """

    key: str
    task: str
    plan: str
    file: str = omit_default("")
    sha256: str = omit_default("")
    message_id: str
    plan_id: str
    task_id: str
    subtask_id: str | None = omit_default(None)
    sender: str
    is_reply: bool = omit_default(False)
    undecided: tuple[str, ...] = omit_default(())
    delegation: str | None = omit_default(None)
    stage: Stage
    attempt: int = omit_default(1)
    run_id: str | None = omit_default(None)
    not_before: datetime | None = omit_default(None)
    transitions: tuple[Transition, ...] = omit_default(())
    ending: MessageResult | None = omit_default(None)


class DeliveryVerdict(StrEnum):
    """The verdict on a claimed file."""

    admitted = "admitted"
    known = "known"  # this file is already admitted
    duplicate = "duplicate"  # of an open or ended message
    blocked = "blocked"  # inputs are missing
    task_in_progress = "task_in_progress"  # another message for a task in progress
    task_done = "task_done"  # another message for a finished task, whose result is sent again
    dead = "dead"  # not a message, or it cannot be done


class SeenMessage(FrozenModel):
    """The memory of a message: its file, its attempts, and the verdict on it, with the reason if it is dead.

    `again`: a person has asked for another attempt.
    """

    file: str
    attempt: int = omit_default(1)
    verdict: DeliveryVerdict = DeliveryVerdict.admitted
    why: str = omit_default("")
    again: bool = omit_default(False)


class TaskRecord(FrozenModel):
    """The memory of a task: its open messages, all messages by key, and the run that finished it."""

    open: tuple[InboxMessage, ...] = omit_default(())
    seen: dict[str, SeenMessage] = Field(default_factory=dict)
    done: str | None = omit_default(None)


class Delivery(StrictModel):
    """A claimed file: `file` in the `.pending/` of folder `plan`.

    `head` is None if it is not a message; `fault` is the reason. `missing` names the missing inputs, `undecided` the
    inputs that match several files, between which a person chooses.
    """

    file: str
    plan: str
    sha256: str
    head: MessageHead | None = None
    fault: str | None = None
    missing: tuple[InputName, ...] = ()
    undecided: tuple[InputName, ...] = ()


class MailDispatch(FrozenModel):
    """The input of the activities `dispatch_mail` and `withdraw_mail`: a subtask for an agent that lives outside.

    A bridge of the agent's folder carries them out, on the agent's task queue (`perdure.decisions.ids.mail_queue`).
    """

    delegation: str
    plan_id: str
    task_id: str
    subtask_id: str
    sender: str


class MailReply(StrictModel):
    """The body of the update `reply` of a `Delegation`. `mailbox` is the agent whose folder received the reply."""

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
