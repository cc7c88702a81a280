"""What a mailbox orders the bridges of a folder to do, and what they answer (C2 to C5)."""

from datetime import datetime
from enum import StrEnum

from pydantic import AwareDatetime

from contracts.mail.delivery import Letter, LetterEnding
from contracts.models import Value, sparse


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
    not_before: datetime | None = sparse(None)
    tries: int = sparse(0)


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
    ending: LetterEnding | None = None
    again: bool = False
    at: AwareDatetime | None = None
    later: bool = False


class Carried(Value):
    """The answer of `carry`: one for each order, in their order."""

    done: tuple[Done, ...]
