"""A claimed file: admitted, repeated, blocked or dead; and an open message, from state to state (C2, C5, C7, C8).

A judgement changes the record of the file's task, and nothing else. Judging a file again gives the same verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from perdure.contracts.conversation import TurnEnd
from perdure.contracts.failures import RunFailure
from perdure.decisions.ids import mail_conversation_id, mail_request_id, message_key, task_key, turn_run_id
from perdure.decisions.text.formatting import truncate
from perdure.features.mailbox.contract import (
    Ack,
    Delivery,
    DeliveryVerdict,
    InboxMessage,
    MailDispatch,
    MessageHead,
    MessageResult,
    SeenMessage,
    Stage,
    TaskHead,
    TaskRecord,
    TaskState,
    Transition,
)

SKIPPED_DUPLICATE = "SKIPPED_DUPLICATE"
SKIPPED_TASK_IN_PROGRESS = "SKIPPED_TASK_IN_PROGRESS"
RESULT_SENT_AGAIN = "RESULT_SENT_AGAIN"

MAX_SEEN = 5000  # messages that the record of a task remembers
WHY = 200  # characters of a reason
BAD_MESSAGE = "BadMessage"  # the error type of a message that ends before it begins
FILE_GONE = "its file is gone"
MAX_ATTEMPTS = 3
PAUSE = timedelta(seconds=10)  # before the second attempt; twice that before the third
LAST_STATE = {Ack.succeeded: TaskState.succeeded, Ack.failed: TaskState.failed}
LOST = MessageResult(ack=Ack.failed, details="its end is not known", fault="Lost")
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


@dataclass(frozen=True)
class FileJudgement:
    """The verdict on a file, and its message. `why` is the ack's details for a skipped file, the reason for a dead one.

    `run_id` is the run whose result is sent again.
    """

    verdict: DeliveryVerdict
    message: InboxMessage
    why: str = ""
    run_id: str = ""


# messages


def new_message(delivery: Delivery, head: MessageHead) -> InboxMessage:
    return InboxMessage(
        **delivery.model_dump(include={"plan", "file", "sha256", "undecided"}),
        **head.model_dump(include={"message_id", "plan_id", "task_id", "subtask_id", "sender"}, by_alias=False),
        key=message_key(head.message_id, delivery.sha256),
        task=task_key(head.plan_id, head.task_id, head.subtask_id),
        is_reply=not isinstance(head, TaskHead),
        stage=Stage.admitted,
    )


def sent_message(dispatch: MailDispatch) -> InboxMessage:
    """Return the message that stands for a subtask sent to an outside peer."""
    return InboxMessage(
        **dispatch.model_dump(),
        key=message_key(dispatch.delegation, dispatch.subtask_id),
        task=task_key(dispatch.plan_id, dispatch.task_id, dispatch.subtask_id),
        plan=dispatch.plan_id,
        message_id=f"{dispatch.task_id}-{dispatch.subtask_id}",
        stage=Stage.sent,
    )


def stub_of(plan: str, file: str) -> InboxMessage:
    """Return a message for a file that is none."""
    return InboxMessage(
        key="", task="", plan=plan, file=file, message_id="", plan_id=plan, task_id="", sender="", stage=Stage.ending
    )


def is_task(message: InboxMessage) -> bool:
    return not message.is_reply and message.delegation is None


def request_of(agent: str, message: InboxMessage) -> tuple[str, str, str]:
    """Return a message's lane, its request there, and its run."""
    conversation_id = mail_conversation_id(agent, message.task)
    request_id = mail_request_id(message.key, message.attempt)
    return conversation_id, request_id, turn_run_id(conversation_id, request_id)


def add_transition(message: InboxMessage, state: TaskState, at: datetime) -> InboxMessage:
    """Add a transition, unless the message is already in that state. It is consumed once over all attempts."""
    passed = message.transitions if state is TaskState.consumed else message.transitions[-1:]
    if any(transition.state is state for transition in passed):
        return message
    return message.evolve(transitions=(*message.transitions, Transition(state=state, at=at)))


def to_end(message: InboxMessage, ending: MessageResult, now: datetime) -> InboxMessage:
    """Return the message with its end, which is still to be written to the folder."""
    brief = ending.evolve(details=truncate(ending.details, 300))
    return add_transition(message, LAST_STATE[brief.ack], now).evolve(stage=Stage.ending, ending=brief)


def ending_of(end: TurnEnd) -> MessageResult:
    if end is TurnEnd.completed:
        return MessageResult(ack=Ack.succeeded, details="the run is completed")
    return MessageResult(ack=Ack.failed, details=_FAILED_ENDS[end], fault=end)


def bad_message_ending(reason: str) -> MessageResult:
    return MessageResult(ack=Ack.failed, details=truncate(reason, 300), fault=BAD_MESSAGE)


def may_retry(error: str | None, steps: int, attempt: int) -> bool:
    """Return whether a failed run may be replaced: it made no step, and the failure is transient (C5)."""
    return error in _PASSING and steps == 0 and attempt < MAX_ATTEMPTS


def next_attempt(message: InboxMessage, now: datetime) -> InboxMessage:
    """Return the message for another run after a pause."""
    transitions = tuple(one for one in message.transitions if one.state is not TaskState.failed)
    return message.evolve(
        attempt=message.attempt + 1,
        transitions=transitions,
        run_id=None,
        stage=Stage.admitted,
        ending=None,
        not_before=now + PAUSE * message.attempt,
    )


# records


def find_open(record: TaskRecord, key: str) -> InboxMessage | None:
    return next((message for message in record.open if message.key == key), None)


def put_open(record: TaskRecord, message: InboxMessage) -> TaskRecord:
    """Add an open message, or replace it by its next state."""
    others = tuple(one for one in record.open if one.key != message.key)
    seen = record.seen
    if message.delegation is None:
        seen = _add_seen(record, message.key, SeenMessage(file=message.file, attempt=message.attempt))
    return record.evolve(open=(*others, message), seen=seen)


def close_message(record: TaskRecord, message: InboxMessage) -> TaskRecord:
    """Move a message whose end is written from the open ones into the memory."""
    after = record.evolve(open=tuple(one for one in record.open if one.key != message.key))
    if message.delegation is not None or message.ending is None:
        return after
    seen = SeenMessage(file=message.file, attempt=message.attempt)
    if message.ending.ack is Ack.failed:
        dead = seen.evolve(verdict=DeliveryVerdict.dead, why=truncate(message.ending.details, WHY))
        return after.evolve(seen=_add_seen(after, message.key, dead))
    done = after.done if message.is_reply else message.run_id
    return after.evolve(seen=_add_seen(after, message.key, seen), done=done)


def allow_again(record: TaskRecord, key: str) -> TaskRecord:
    """Accept a message that has ended once more."""
    seen = record.seen.get(key)
    if seen is None or find_open(record, key) is not None:
        return record
    return record.evolve(seen={**record.seen, key: seen.evolve(again=True)})


def _add_seen(record: TaskRecord, key: str, seen: SeenMessage) -> dict[str, SeenMessage]:
    others = [(name, known) for name, known in record.seen.items() if name != key]
    return dict([*others[-MAX_SEEN + 1 :], (key, seen)])


# judgements


def judge_file(
    record: TaskRecord, message: InboxMessage, delivery: Delivery, now: datetime
) -> tuple[TaskRecord, FileJudgement]:
    """Judge the file of a message in this order: seen before, its task is open or done, faulty, blocked."""
    seen = record.seen.get(message.key)
    if seen is None:
        return _judge_new(record, message, delivery, now)
    if seen.again:
        return _judge_new(record, message.evolve(attempt=seen.attempt + 1), delivery, now)
    if seen.file != message.file:
        return record, FileJudgement(DeliveryVerdict.duplicate, message, SKIPPED_DUPLICATE)
    if (known := find_open(record, message.key)) is not None:
        return _judge_open(record, known, delivery, now)
    return record, _judge_ended(record, message, seen)


def _judge_ended(record: TaskRecord, message: InboxMessage, seen: SeenMessage) -> FileJudgement:
    """Judge the file of an ended message: only its move is missing, or its ack."""
    match seen.verdict:
        case DeliveryVerdict.task_in_progress:
            return FileJudgement(seen.verdict, message, SKIPPED_TASK_IN_PROGRESS)
        case DeliveryVerdict.task_done:
            return FileJudgement(seen.verdict, message, RESULT_SENT_AGAIN, record.done or "")
        case DeliveryVerdict.dead:
            return FileJudgement(seen.verdict, message, seen.why)
        case _:
            return FileJudgement(DeliveryVerdict.duplicate, message)


def _judge_new(
    record: TaskRecord, message: InboxMessage, delivery: Delivery, now: datetime
) -> tuple[TaskRecord, FileJudgement]:
    if is_task(message):
        if any(map(is_task, record.open)):
            judged = FileJudgement(DeliveryVerdict.task_in_progress, message, SKIPPED_TASK_IN_PROGRESS)
            return _remember(record, judged), judged
        if record.done is not None:
            judged = FileJudgement(DeliveryVerdict.task_done, message, RESULT_SENT_AGAIN, record.done)
            return _remember(record, judged), judged
    verdict = DeliveryVerdict.admitted
    if delivery.fault is not None:
        message, verdict = to_end(message, bad_message_ending(delivery.fault), now), DeliveryVerdict.dead
    elif delivery.missing and is_task(message):
        message = add_transition(message, TaskState.blocked, now).evolve(stage=Stage.blocked)
        verdict = DeliveryVerdict.blocked
    return put_open(record, message), FileJudgement(verdict, message)


def _remember(record: TaskRecord, judged: FileJudgement) -> TaskRecord:
    seen = SeenMessage(file=judged.message.file, attempt=judged.message.attempt, verdict=judged.verdict)
    return record.evolve(seen=_add_seen(record, judged.message.key, seen))


def _judge_open(
    record: TaskRecord, message: InboxMessage, delivery: Delivery, now: datetime
) -> tuple[TaskRecord, FileJudgement]:
    """Update an open message by its inputs as they are found now, until it is taken."""
    if message.stage is not Stage.blocked:
        return record, FileJudgement(DeliveryVerdict.known, message)
    if delivery.fault is not None:
        message, verdict = to_end(message, bad_message_ending(delivery.fault), now), DeliveryVerdict.dead
    elif delivery.missing:
        verdict = DeliveryVerdict.blocked
    else:
        message, verdict = message.evolve(stage=Stage.admitted), DeliveryVerdict.admitted
    message = message.evolve(undecided=delivery.undecided)
    return put_open(record, message), FileJudgement(verdict, message)
