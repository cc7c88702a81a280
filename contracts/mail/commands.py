"""Tasks that a mailbox gives to the bridges of a folder, and their results (C2 to C5)."""

from datetime import datetime
from enum import StrEnum

from pydantic import AwareDatetime

from contracts.mail.delivery import InboxMessage, MessageResult
from contracts.models import FrozenModel, omit_default


class BridgeTaskKind(StrEnum):
    """The kind of a bridge's task. All are idempotent."""

    take = "take"  # ack CONSUMED, then submit to its lane, or a reply to the delegation that waits for it
    write_state = "write_state"  # write the transitions to task_state_….json
    finish = "finish"  # write ack, state and reply; move the file to .processed/ or, on failure, .deadletter/
    skip = "skip"  # a duplicate file: note it in the message's ack, move it to .processed/
    resend = "resend"  # as `skip`, and write the reply of the task's run again
    bury = "bury"  # not a message: move it to .deadletter/, with the reason in a second file
    restore = "restore"  # move it from .deadletter/ back to the new files
    dispatch = "dispatch"  # write a subtask for a peer that lives outside
    withdraw = "withdraw"  # remove that file if it still exists


class BridgeTask(FrozenModel):
    """A task for a bridge. `why` is the reason of a `bury`, or the details of a `skip`; `run_id` is for `resend`.

    A `skip` without details writes no ack: its message has ended, and only the file remains.
    """

    kind: BridgeTaskKind
    letter: InboxMessage
    why: str = ""
    run_id: str | None = None
    not_before: datetime | None = omit_default(None)
    tries: int = omit_default(0)


class BridgeBatch(FrozenModel):
    """The input of the activity `carry`, on the task queue of the folder (`decisions.ids.mail_queue`)."""

    agent: str
    folder: str
    orders: tuple[BridgeTask, ...]


class BridgeResult(FrozenModel):
    """The result of a bridge's task.

    - `run_id`: for `take`, the run that the lane starts. `is_blocked`: that run first asks a person for an input.
    - `ending`: for `take`, the message has already ended (a reply; a file that is gone or changed); for `finish`, the
      final end; for `dispatch`, the reply is no longer awaited.
    - `again`: for `finish`, the run failed before it did anything, and may be retried.
    - `at`: for `take`, the time when RUNNING or BLOCKED was written to the folder; None: it is still to be written.
    - `later`: the task could not be done now and is repeated after a pause. So is a `take` without run and ending.
    """

    run_id: str | None = None
    is_blocked: bool = False
    ending: MessageResult | None = None
    again: bool = False
    at: AwareDatetime | None = None
    later: bool = False


class BridgeResults(FrozenModel):
    """The answer of `carry`: the results, in the order of the tasks."""

    done: tuple[BridgeResult, ...]
