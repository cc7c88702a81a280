"""An admitted message: its stage, its transitions and its end (C5, C8)."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from contracts.models import FrozenModel, omit_default


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
    """The stage of a message."""

    blocked = "blocked"  # its inputs are missing
    admitted = "admitted"  # it waits to be taken
    running = "running"  # its run has begun
    ending = "ending"  # its result is still to be written
    outgoing = "outgoing"  # a dispatch that is not in the folder yet
    sent = "sent"  # a dispatch that waits for its reply


class MessageResult(FrozenModel):
    """The end of a message. `fault` is the type of a failure; `details` are for the ack and for people."""

    ack: Literal[Ack.succeeded, Ack.failed]
    details: str
    fault: str | None = None


class InboxMessage(FrozenModel):
    """An admitted message. `key` is a digest of its id and hash, `task` of its plan, task and subtask.

    `attempt` counts its runs. A dispatch to a peer that lives outside has no file in `.pending/`; `delegation` is the
    workflow that waits for the reply. `size` is its size in bytes in the mailbox's state. `untold`: the state file is
    out of date. `looks` counts the checks that found the run still open, `tries` the failed attempts at what is due.
    """

    key: str
    task: str
    folder: str
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
    heard_at: datetime
    transitions: tuple[Transition, ...] = omit_default(())
    ending: MessageResult | None = omit_default(None)
    size: int = omit_default(0)
    untold: bool = omit_default(False)
    looks: int = omit_default(0)
    tries: int = omit_default(0)
