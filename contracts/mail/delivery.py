"""A message in hand: where it is on its way, and how it ends (C5, C8)."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from contracts.models import Value, sparse


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


class LetterEnding(Value):
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
    file: str = sparse("")
    sha256: str = sparse("")
    message_id: str
    plan_id: str
    task_id: str
    subtask_id: str | None = sparse(None)
    sender: str
    is_reply: bool = sparse(False)
    undecided: tuple[str, ...] = sparse(())
    delegation: str | None = sparse(None)
    stage: Stage
    attempt: int = sparse(1)
    run_id: str | None = sparse(None)
    not_before: datetime | None = sparse(None)
    heard_at: datetime
    transitions: tuple[Transition, ...] = sparse(())
    ending: LetterEnding | None = sparse(None)
    size: int = sparse(0)
    untold: bool = sparse(False)
    looks: int = sparse(0)
    tries: int = sparse(0)
