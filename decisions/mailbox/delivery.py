"""A message in hand: how it is known, and how it comes from state to state (C8)."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from pydantic_core import to_json

from contracts.conversation import TurnEnd
from contracts.failures import RunFailure
from contracts.mail.delivery import Ack, Letter, LetterEnding, Stage, TaskState, Transition
from contracts.mail.mailbox import DeadLetter, Delivery
from contracts.mail.message import MessageHead, TaskHead
from decisions.ids import letter_key, mail_conversation_id, mail_request_id, task_key, turn_run_id
from decisions.text.formatting import cut

FRAME = 330  # bytes that come to a letter on its way: a transition for each state, a run, an ending
WHY = 200  # characters of what is remembered
MARK = 8  # and of one that is only compared with another of the same message
GIVEN_UP = "GivenUp"  # the fault of a letter that a person did not want any more
BAD_MESSAGE = "BadMessage"  # the fault of a letter that ends before it begins
MOST_ATTEMPTS = 3
PAUSE = timedelta(seconds=10)  # before the second attempt; twice that before the third
_PASSING = (RunFailure.rate_limited, RunFailure.model_unavailable)
_FAILED_ENDS: Mapping[TurnEnd, str] = {
    TurnEnd.escalated: "the run has given up",
    TurnEnd.failed: "the run has failed",
    TurnEnd.cancelled: "the run was cancelled",
    TurnEnd.timed_out: "the time of the run was used up",
    TurnEnd.steered: "the task joined another run",
    TurnEnd.answered: "the task was taken for an answer",
    TurnEnd.dropped: "the task was dropped before its run began",
}
LAST_STATE = {Ack.succeeded: TaskState.succeeded, Ack.failed: TaskState.failed}


def may_try_again(fault: str | None, steps: int, attempt: int) -> bool:
    """Whether a run that failed may be made anew: it has done nothing yet, and what it failed of may pass (C5)."""
    return fault in _PASSING and steps == 0 and attempt < MOST_ATTEMPTS


def pause_after(attempt: int) -> timedelta:
    return PAUSE * attempt


def ending_of(end: TurnEnd) -> LetterEnding:
    if end is TurnEnd.completed:
        return LetterEnding(ack=Ack.succeeded, details="the run is completed")
    return LetterEnding(ack=Ack.failed, details=_FAILED_ENDS[end], fault=end)


def bad(fault: str) -> LetterEnding:
    return LetterEnding(ack=Ack.failed, details=cut(fault, WHY), fault=BAD_MESSAGE)


def letter_for(folder: str, found: Delivery, head: MessageHead, now: datetime) -> Letter:
    letter = Letter(
        key=letter_key(head.message_id, found.sha256),
        task=task_key(head.plan_id, head.task_id, head.subtask_id),
        folder=folder,
        plan=found.plan,
        file=found.file,
        sha256=found.sha256,
        message_id=head.message_id,
        plan_id=head.plan_id,
        task_id=head.task_id,
        subtask_id=head.subtask_id,
        sender=head.sender,
        is_reply=not isinstance(head, TaskHead),
        undecided=found.undecided,
        stage=Stage.admitted,
        heard_at=now,
    )
    return weighed(letter)


def weighed(letter: Letter) -> Letter:
    return letter.model_copy(update={"size": len(to_json(letter)) + FRAME})


def stub_of(place: tuple[str, str, str], now: datetime, message_id: str = "", key: str = "") -> Letter:
    """Stands for a file of which no more is known."""
    folder, plan, file = place
    return Letter(
        key=key,
        task="",
        folder=folder,
        plan=plan,
        file=file,
        message_id=message_id,
        plan_id=plan,
        task_id="",
        sender="",
        stage=Stage.ending,
        heard_at=now,
    )


def place(file: Letter | DeadLetter) -> tuple[str, str, str]:
    return file.folder, file.plan, file.file


def mark(letter: Letter) -> str:
    """By which the file that a message came in is known again."""
    return task_key(*place(letter))[:MARK]


def is_task(letter: Letter) -> bool:
    return not letter.is_reply and letter.delegation is None


def run_of(agent: str, task: str, key: str, attempt: int) -> str:
    """The run of a letter, as its lane names it."""
    return turn_run_id(mail_conversation_id(agent, task), mail_request_id(key, attempt))


def blocked(letter: Letter, now: datetime) -> Letter:
    changes = {"stage": Stage.blocked, "untold": True}
    return moved(letter, TaskState.blocked, now).model_copy(update=changes)


def moved(letter: Letter, to: TaskState, at: datetime) -> Letter:
    """A state that it is in already it does not enter; it is consumed once, however often it is tried."""
    passed = letter.transitions if to is TaskState.consumed else letter.transitions[-1:]
    if any(each.state is to for each in passed):
        return letter
    return letter.model_copy(update={"transitions": (*letter.transitions, Transition(state=to, at=at))})


def has_passed(letter: Letter, state: TaskState) -> bool:
    return any(each.state is state for each in letter.transitions)


def is_asking(letter: Letter) -> bool:
    """Its run waits for a person to say which file an input is."""
    return letter.stage is Stage.running and any(each.state is TaskState.blocked for each in letter.transitions[-1:])
