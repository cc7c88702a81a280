"""A mailbox: the messages it accepts, their outcomes, its memory and its dead letters (C2, C4, C5, C7, C8, D2).

Every admitted message ends once. An open message is a letter, whose stage determines the next step
(`decisions.mailbox.commands`). A step for any other file is an order.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from contracts.mail.commands import BridgeTask, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Stage, TaskState
from contracts.mail.mailbox import (
    DeadLetter,
    Delivered,
    Delivery,
    DeliveryVerdict,
    GiveUp,
    MailboxState,
    Redeliver,
    SeenMessage,
    TaskMemory,
    TurnEnded,
)
from decisions.ids import mail_request_id
from decisions.mailbox.capacity import (
    BY,
    DEAD_BYTES,
    MAX_DEAD,
    MAX_RECENT,
    MAX_SEEN,
    MAX_TASKS,
    RECENT_BYTES,
    add_mailbox_notice,
    add_newest,
    add_order,
    find_letter,
    has_room,
    latest_that_fit,
    may_be_blocked,
    remove_letters,
    replace_letter,
)
from decisions.mailbox.delivery import (
    GIVEN_UP,
    LAST_STATE,
    WHY,
    ack_of,
    add_transition,
    bad_message_ending,
    ending_of,
    file_mark,
    file_place,
    is_taken,
    is_task,
    new_letter,
    run_of,
    stub_of,
    with_size,
)
from decisions.text.formatting import truncate

SKIPPED_DUPLICATE = "SKIPPED_DUPLICATE"
SKIPPED_TASK_IN_PROGRESS = "SKIPPED_TASK_IN_PROGRESS"
RESULT_SENT_AGAIN = "RESULT_SENT_AGAIN"

PAUSE = timedelta(seconds=10)  # before the second attempt; twice that before the third


def attach_folder(state: MailboxState, folder: str) -> MailboxState:
    """Record that a bridge serves this folder. Letters without a folder are assigned to it."""
    letters = tuple(one if one.folder else one.model_copy(update={"folder": folder}) for one in state.letters)
    return state.model_copy(update={"folder": folder, "letters": letters})


def judge_deliveries(
    state: MailboxState, folder: str, deliveries: Sequence[Delivery], now: datetime
) -> tuple[MailboxState, Delivered]:
    """Judge each delivery in this order: no message, seen before, its task is open or done, faulty, blocked."""
    state = attach_folder(state, folder)
    verdicts: list[DeliveryVerdict] = []
    for delivery in deliveries:
        judged, verdict = _judge_delivery(state, folder, delivery, now)
        verdicts.append(verdict if judged else DeliveryVerdict.full)
        state = judged or state
    return state, Delivered(verdicts=tuple(verdicts), open=len(state.letters))


# The functions that judge a delivery return the next state, or None if the mailbox is full.
Judgement = tuple[MailboxState | None, DeliveryVerdict]


def _judge_delivery(state: MailboxState, folder: str, delivery: Delivery, now: datetime) -> Judgement:
    if delivery.head is None:
        stub = stub_of((folder, delivery.plan, delivery.file), now)
        return _bury_file(state, stub, delivery.fault or "it is not a message", now), DeliveryVerdict.dead
    letter = new_letter(folder, delivery, delivery.head, now)
    known = state.seen.get(letter.key[:BY])
    if in_hand := find_letter(state, letter.key):  # it is known even if the memory has dropped it
        known = SeenMessage(file=file_mark(in_hand), attempt=in_hand.attempt)
    if known is None:
        return _judge_new(state, letter, delivery, now)
    if known.again:
        return _judge_new(state, letter.model_copy(update={"attempt": known.attempt + 1}), delivery, now)
    return _judge_seen(state, letter, known, delivery, now)


def _bury_file(state: MailboxState, stub: InboxMessage, reason: str, now: datetime) -> MailboxState | None:
    buried = add_order(state, BridgeTask(kind=BridgeTaskKind.bury, letter=stub, why=reason))
    if buried is None or any(file_place(dead) == file_place(stub) for dead in state.dead):
        return buried
    return add_dead_letter(buried, stub, reason, now)


def _judge_seen(
    state: MailboxState, letter: InboxMessage, known: SeenMessage, delivery: Delivery, now: datetime
) -> Judgement:
    """Judge a message that was seen before, in this file, which may still be open, or in another."""
    if any(file_place(order.letter) == file_place(letter) for order in state.orders):
        return state, DeliveryVerdict.known
    if known.file != file_mark(letter):
        order = BridgeTask(kind=BridgeTaskKind.skip, letter=letter, why=SKIPPED_DUPLICATE)
        return _skip_file(state, order), DeliveryVerdict.duplicate
    if in_hand := find_letter(state, letter.key):
        return _delivered_again(state, in_hand, delivery, now)
    order = BridgeTask(kind=BridgeTaskKind.skip, letter=letter)  # its end is written; the file is back
    if dead := next((dead for dead in state.dead if dead.key == letter.key), None):
        order = BridgeTask(kind=BridgeTaskKind.bury, letter=letter, why=dead.why)
    return add_order(state, order), DeliveryVerdict.duplicate


def _delivered_again(state: MailboxState, letter: InboxMessage, delivery: Delivery, now: datetime) -> Judgement:
    """Update a letter's inputs as the bridge finds them now, until the letter is taken."""
    if letter.stage not in (Stage.blocked, Stage.admitted):
        return state, DeliveryVerdict.known
    if letter.undecided != delivery.undecided:
        letter = with_size(letter.model_copy(update={"undecided": delivery.undecided}))
        state = replace_letter(state, letter)
    if letter.stage is Stage.admitted:
        return state, DeliveryVerdict.known
    if delivery.fault is not None:
        return to_end(state, letter, bad_message_ending(delivery.fault), now), DeliveryVerdict.dead
    if delivery.missing:
        return state, DeliveryVerdict.blocked
    unblocked = replace_letter(state, letter, stage=Stage.admitted, untold=False, not_before=None, tries=0)
    return unblocked, DeliveryVerdict.admitted


def _judge_new(state: MailboxState, letter: InboxMessage, delivery: Delivery, now: datetime) -> Judgement:
    if not letter.is_reply:
        if any(is_task(other) and other.task == letter.task for other in state.letters):
            order = BridgeTask(kind=BridgeTaskKind.skip, letter=letter, why=SKIPPED_TASK_IN_PROGRESS)
            return _remember_letter(_skip_file(state, order), letter), DeliveryVerdict.task_in_progress
        if (done := state.tasks.get(letter.task[:BY])) is not None:
            run_id = done.run_id or run_of(state.agent, letter.task, done.key, done.attempt)
            order = BridgeTask(kind=BridgeTaskKind.resend, letter=letter, why=RESULT_SENT_AGAIN, run_id=run_id)
            return _remember_letter(_skip_file(state, order), letter), DeliveryVerdict.task_done
    is_blocked = bool(delivery.missing) and delivery.fault is None and not letter.is_reply
    if not has_room(state, letter) or (is_blocked and not may_be_blocked(state, letter)):
        return None, DeliveryVerdict.full
    state = _accept_letter(state, letter)
    if delivery.fault is not None:
        return to_end(state, letter, bad_message_ending(delivery.fault), now), DeliveryVerdict.dead
    if is_blocked:
        blocked = add_transition(letter, TaskState.blocked, now)
        return replace_letter(state, blocked, stage=Stage.blocked, untold=True), DeliveryVerdict.blocked
    return state, DeliveryVerdict.admitted


def _accept_letter(state: MailboxState, letter: InboxMessage) -> MailboxState:
    admitted = state.model_copy(update={"letters": (*state.letters, letter), "accepted": state.accepted + 1})
    return _remember_letter(admitted, letter) or admitted


def _remember_letter(state: MailboxState | None, letter: InboxMessage) -> MailboxState | None:
    """Add the letter to the memory of seen messages, unless the mailbox is full (`None`)."""
    if state is None:
        return None
    seen = SeenMessage(file=file_mark(letter), attempt=letter.attempt)
    return state.model_copy(update={"seen": add_newest(state.seen, letter.key[:BY], seen, MAX_SEEN)})


def _skip_file(state: MailboxState, order: BridgeTask) -> MailboxState | None:
    ordered = add_order(state, order)
    return ordered and ordered.model_copy(update={"skipped": state.skipped + 1})


def to_end(state: MailboxState, letter: InboxMessage, ending: MessageResult, now: datetime) -> MailboxState:
    """Record how the letter ended. A bridge has yet to write it to the folder."""
    brief = ending.model_copy(update={"details": truncate(ending.details, WHY)})
    ended = add_transition(letter, LAST_STATE[brief.ack], now)
    return replace_letter(state, ended, stage=Stage.ending, ending=brief, untold=False, not_before=None, tries=0)


def end_letter_turn(state: MailboxState, turn: TurnEnded, now: datetime) -> MailboxState:
    """End the letter of a turn. Repeated and late signals change nothing. One may precede the bridge's report."""
    for letter in state.letters:
        if is_taken(letter) and mail_request_id(letter.key, letter.attempt) == turn.request_id:
            begun = letter.model_copy(update={"run_id": turn.run_id})
            if letter.stage is Stage.admitted:
                begun = add_transition(begun, TaskState.running, now)
            return to_end(state, begun, ending_of(turn.end), now)
    return state


def record_pick(state: MailboxState, key: str, now: datetime) -> MailboxState:
    letter = find_letter(state, key)
    last = letter.transitions[-1:] if letter is not None and letter.stage is Stage.running else ()
    if letter is None or [one.state for one in last] != [TaskState.blocked]:
        return add_mailbox_notice(state, f"input_picked: no message {truncate(key, 40)} waits for it")
    resumed = add_transition(letter, TaskState.running, now)
    return replace_letter(state, resumed, untold=True, heard_at=now, undecided=(), looks=0)


def finish_letter(state: MailboxState, letter: InboxMessage, ending: MessageResult, now: datetime) -> MailboxState:
    """Move a letter whose end is written into the memory."""
    remaining = remove_letters(state, letter)
    last = None if letter.is_reply else LAST_STATE[ending.ack]
    ack = ack_of(letter, state=last, ack=ending.ack, details=truncate(ending.details, WHY), at=now)
    remaining = remaining.model_copy(update={"recent": latest_that_fit((*state.recent, ack), MAX_RECENT, RECENT_BYTES)})
    if ending.ack is Ack.failed:
        return add_dead_letter(remaining, letter, ending.details, now)
    return remaining if letter.is_reply else _remember_task(remaining, letter)


def _remember_task(state: MailboxState, letter: InboxMessage) -> MailboxState:
    usual = run_of(state.agent, letter.task, letter.key, letter.attempt)
    run_id = None if letter.run_id in (None, usual) else letter.run_id
    memory = TaskMemory(key=letter.key, attempt=letter.attempt, run_id=run_id)
    return state.model_copy(update={"tasks": add_newest(state.tasks, letter.task[:BY], memory, MAX_TASKS)})


def retry_letter(state: MailboxState, letter: InboxMessage, now: datetime) -> MailboxState:
    """Admit the letter again after a pause. Its run made no step."""
    transitions = tuple(one for one in letter.transitions if one.state is not TaskState.failed)
    again = letter.model_copy(update={"attempt": letter.attempt + 1, "transitions": transitions, "run_id": None})
    changes = {"stage": Stage.admitted, "ending": None, "not_before": now + PAUSE * letter.attempt}
    return replace_letter(_remember_letter(state, again) or state, again, **changes, looks=0, tries=0)


def give_up_letters(state: MailboxState, request: GiveUp, now: datetime) -> MailboxState:
    """End letters that were not taken yet, even if the file is gone. `cancel` ends a run."""
    untaken = [one for one in state.letters if one.stage in (Stage.blocked, Stage.admitted) and not is_taken(one)]
    chosen = [one for one in untaken if one.message_id == request.message_id]
    if not chosen:
        return add_mailbox_notice(state, f"give_up: no message {truncate(request.message_id, 80)} waits for anything")
    reason = f"given up by {request.by}" if request.by else "given up"
    for letter in chosen:
        state = to_end(state, letter, MessageResult(ack=Ack.failed, details=reason, fault=GIVEN_UP), now)
    return state


def add_dead_letter(state: MailboxState, letter: InboxMessage, reason: str, now: datetime) -> MailboxState:
    known = letter.model_dump(include=set(DeadLetter.model_fields))
    dead = DeadLetter(**known, why=truncate(reason, WHY), at=now)
    latest = latest_that_fit((*state.dead, dead), MAX_DEAD, DEAD_BYTES)
    return state.model_copy(update={"dead": latest, "failed": state.failed + 1})


def newly_dead(before: MailboxState, after: MailboxState) -> tuple[DeadLetter, ...]:
    """Return the dead letters since `before`, each of which raises an alert."""
    count = after.failed - before.failed
    return after.dead[-count:] if count else ()


def redeliver_dead_letters(state: MailboxState, request: Redeliver, now: datetime) -> MailboxState:
    """Restore the matching files as new ones, and accept their messages once more."""
    chosen = [
        dead
        for dead in state.dead
        if request.message_id in (None, dead.message_id) and request.file in (None, dead.file)
    ]
    if not chosen:
        name = request.message_id or request.file or "at all"
        return add_mailbox_notice(state, f"redeliver: no dead letter {truncate(name, 80)}")
    orders, seen = list(state.orders), state.seen
    for dead in chosen:
        stub = stub_of(file_place(dead), now, dead.message_id, dead.key)
        orders.append(BridgeTask(kind=BridgeTaskKind.restore, letter=with_size(stub)))
        if dead.key:
            again = SeenMessage(file=file_mark(stub), attempt=dead.attempt, again=True)
            seen = add_newest(seen, dead.key[:BY], again, MAX_SEEN)
    remaining = tuple(dead for dead in state.dead if dead not in chosen)
    return state.model_copy(update={"orders": tuple(orders), "seen": seen, "dead": remaining})
