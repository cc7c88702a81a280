"""An open message: its keys, and its transitions from state to state (C8)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from contracts.conversation import TurnEnd
from contracts.failures import RunFailure
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Stage, TaskState, Transition
from contracts.mail.mailbox import AckView, DeadLetter, Delivery
from contracts.mail.message import MessageHead, TaskHead
from decisions.ids import mail_conversation_id, mail_request_id, message_key, task_key, turn_run_id
from decisions.text.formatting import truncate

FRAME = 330  # bytes that a letter may still gain: a transition for each state, a run, an ending
WHY = 200  # characters of a reason in the memory
MARK = 8  # characters of a file's digest, compared only within one message
GIVEN_UP = "GivenUp"  # the error type of a letter that a person gave up
BAD_MESSAGE = "BadMessage"  # the error type of a letter that ends before it begins
MAX_ATTEMPTS = 3
_PASSING = (RunFailure.rate_limited, RunFailure.model_unavailable)
_FAILED_ENDS: Mapping[TurnEnd, str] = {
    TurnEnd.escalated: "the run escalated",
    TurnEnd.failed: "the run failed",
    TurnEnd.cancelled: "the run was cancelled",
    TurnEnd.timed_out: "the run timed out",
    TurnEnd.steered: "the task joined another run",
    TurnEnd.answered: "the task was taken as an answer",
    TurnEnd.dropped: "the task was dropped before its run began",
}
_NAMES = {"key", "message_id", "plan_id", "task_id", "subtask_id", "run_id"}
LAST_STATE = {Ack.succeeded: TaskState.succeeded, Ack.failed: TaskState.failed}


def may_try_again(error: str | None, steps: int, attempt: int) -> bool:
    """Return whether a failed run may be replaced: it made no step, and the failure is transient (C5)."""
    return error in _PASSING and steps == 0 and attempt < MAX_ATTEMPTS


def ending_of(end: TurnEnd) -> MessageResult:
    if end is TurnEnd.completed:
        return MessageResult(ack=Ack.succeeded, details="the run is completed")
    return MessageResult(ack=Ack.failed, details=_FAILED_ENDS[end], fault=end)


def bad_message_ending(error: str) -> MessageResult:
    return MessageResult(ack=Ack.failed, details=truncate(error, WHY), fault=BAD_MESSAGE)


def new_letter(folder: str, delivery: Delivery, head: MessageHead, now: datetime) -> InboxMessage:
    letter = InboxMessage(
        **delivery.model_dump(include={"plan", "file", "sha256", "undecided"}),
        **head.model_dump(include=_NAMES | {"sender"}, exclude={"run_id"}, by_alias=False),
        key=message_key(head.message_id, delivery.sha256),
        task=task_key(head.plan_id, head.task_id, head.subtask_id),
        folder=folder,
        is_reply=not isinstance(head, TaskHead),
        stage=Stage.admitted,
        heard_at=now,
    )
    return with_size(letter)


def with_size(letter: InboxMessage) -> InboxMessage:
    return letter.model_copy(update={"size": len(to_json(letter)) + FRAME})


def stub_of(place: tuple[str, str, str], now: datetime, message_id: str = "", key: str = "") -> InboxMessage:
    """Return a letter for a file whose contents are not known."""
    known = dict(zip(("folder", "plan", "file"), place, strict=True))
    ids = {"key": key, "message_id": message_id, "plan_id": known["plan"], "task": "", "task_id": "", "sender": ""}
    return InboxMessage(**known, **ids, stage=Stage.ending, heard_at=now)


def ack_of(letter: InboxMessage, **fields: Any) -> AckView:
    return AckView(**letter.model_dump(include=_NAMES), **fields)


def file_place(item: InboxMessage | DeadLetter) -> tuple[str, str, str]:
    return item.folder, item.plan, item.file


def file_mark(letter: InboxMessage) -> str:
    """Return the digest by which the message's file is recognized."""
    return task_key(*file_place(letter))[:MARK]


def is_task(letter: InboxMessage) -> bool:
    return not letter.is_reply and letter.delegation is None


def run_of(agent: str, task: str, key: str, attempt: int) -> str:
    """Return the run id of a letter, as its lane derives it."""
    return turn_run_id(mail_conversation_id(agent, task), mail_request_id(key, attempt))


def add_transition(letter: InboxMessage, state: TaskState, at: datetime) -> InboxMessage:
    """Add a transition, unless the letter is already in that state. A letter is consumed once over all attempts."""
    passed = letter.transitions if state is TaskState.consumed else letter.transitions[-1:]
    if any(transition.state is state for transition in passed):
        return letter
    return letter.model_copy(update={"transitions": (*letter.transitions, Transition(state=state, at=at))})


def has_passed(letter: InboxMessage, state: TaskState) -> bool:
    return any(transition.state is state for transition in letter.transitions)


def is_taken(letter: InboxMessage) -> bool:
    """Return whether the letter's run has begun, or a bridge is taking it, or was lost while it did."""
    return letter.stage is Stage.running or (letter.stage is Stage.admitted and has_passed(letter, TaskState.consumed))
