"""A mailbox: the messages it accepts, their outcomes, and its memory (C2, C5, C7, C8, D2).

Every admitted message ends once. An open message is a letter, whose stage determines the next step
(`decisions.mailbox.commands`). A step for any other file is an order.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from contracts.mail.commands import BridgeTask, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Stage, TaskState
from contracts.mail.mailbox import (
    Delivered,
    Delivery,
    GiveUp,
    MailboxState,
    SeenMessage,
    TaskMemory,
    TurnEnded,
    Verdict,
)
from decisions.ids import mail_request_id
from decisions.mailbox.capacity import (
    BY,
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
from decisions.mailbox.dead_letters import add_dead_letter
from decisions.mailbox.delivery import (
    GIVEN_UP,
    LAST_STATE,
    WHY,
    ack_of,
    add_transition,
    bad_message_ending,
    block_letter,
    ending_of,
    file_mark,
    file_place,
    has_passed,
    is_asking_for_input,
    is_task,
    new_letter,
    pause_after,
    run_of,
    stub_of,
    with_size,
)
from decisions.text.formatting import truncate

SKIPPED_DUPLICATE = "SKIPPED_DUPLICATE"
SKIPPED_TASK_IN_PROGRESS = "SKIPPED_TASK_IN_PROGRESS"
RESULT_SENT_AGAIN = "RESULT_SENT_AGAIN"


def attach_folder(state: MailboxState, folder: str) -> MailboxState:
    """Record that a bridge serves this folder. Letters without a folder are assigned to it."""
    letters = tuple(one if one.folder else one.model_copy(update={"folder": folder}) for one in state.letters)
    return state.model_copy(update={"folder": folder, "letters": letters})


def judge_deliveries(
    state: MailboxState, folder: str, deliveries: Sequence[Delivery], now: datetime
) -> tuple[MailboxState, Delivered]:
    """Judge each delivery in this order: no message, seen before, its task is open or done, faulty, blocked."""
    state = attach_folder(state, folder)
    verdicts: list[Verdict] = []
    for delivery in deliveries:
        state, verdict = _judge_delivery(state, folder, delivery, now)
        verdicts.append(verdict)
    return state, Delivered(verdicts=tuple(verdicts), open=len(state.letters))


def _judge_delivery(
    state: MailboxState, folder: str, delivery: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    if delivery.head is None:
        return _no_message(state, folder, delivery, now)
    letter = new_letter(folder, delivery, delivery.head, now)
    if (known := _find_seen(state, letter.key)) is not None:
        if not known.again:
            return _judge_seen(state, letter, known, delivery, now)
        letter = letter.model_copy(update={"attempt": known.attempt + 1})
    return _judge_new(state, letter, delivery, now)


def _find_seen(state: MailboxState, key: str) -> SeenMessage | None:
    """Return the memory of a message. An open message is known even if the memory has dropped it."""
    in_hand = find_letter(state, key)
    return SeenMessage(file=file_mark(in_hand), attempt=in_hand.attempt) if in_hand else state.seen.get(key[:BY])


def _no_message(state: MailboxState, folder: str, delivery: Delivery, now: datetime) -> tuple[MailboxState, Verdict]:
    reason = delivery.fault or "it is not a message"
    stub = stub_of((folder, delivery.plan, delivery.file), now)
    order = BridgeTask(kind=BridgeTaskKind.bury, letter=stub, why=reason)
    buried = add_order(state, order)
    if buried is None:
        return state, Verdict.full
    if any(file_place(dead) == file_place(stub) for dead in state.dead):
        return buried, Verdict.dead
    return add_dead_letter(buried, stub, reason, now), Verdict.dead


def _judge_seen(
    state: MailboxState, letter: InboxMessage, known: SeenMessage, delivery: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    """Judge a message that was seen before, in this file, which may still be open, or in another."""
    if any(file_place(order.letter) == file_place(letter) for order in state.orders):
        return state, Verdict.known
    if known.file != file_mark(letter):
        order = BridgeTask(kind=BridgeTaskKind.skip, letter=letter, why=SKIPPED_DUPLICATE)
        return _or_full(state, _skip_file(state, order), Verdict.duplicate)
    in_hand = find_letter(state, letter.key)
    if in_hand is not None:
        return _delivered_again(state, in_hand, delivery, now)
    dead = next((dead for dead in state.dead if dead.key == letter.key), None)
    kind, reason = (
        (BridgeTaskKind.bury, dead.why) if dead else (BridgeTaskKind.skip, "")
    )  # its end is written; the file is back
    return _or_full(state, add_order(state, BridgeTask(kind=kind, letter=letter, why=reason)), Verdict.duplicate)


def _delivered_again(
    state: MailboxState, letter: InboxMessage, delivery: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    """Update a letter's inputs as the bridge finds them now, until the letter is taken."""
    if letter.stage not in (Stage.blocked, Stage.admitted):
        return state, Verdict.known
    if letter.undecided != delivery.undecided:
        letter = with_size(letter.model_copy(update={"undecided": delivery.undecided}))
        state = replace_letter(state, letter)
    if letter.stage is Stage.admitted:
        return state, Verdict.known
    if delivery.fault is not None:
        return to_end(state, letter, bad_message_ending(delivery.fault), now), Verdict.dead
    if delivery.missing:
        return state, Verdict.blocked
    changes = {"stage": Stage.admitted, "untold": False, "not_before": None, "tries": 0}
    unblocked = letter.model_copy(update=changes)
    return replace_letter(state, unblocked), Verdict.admitted


def _judge_new(
    state: MailboxState, letter: InboxMessage, delivery: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    if not letter.is_reply:
        if any(is_task(other) and other.task == letter.task for other in state.letters):
            order = BridgeTask(kind=BridgeTaskKind.skip, letter=letter, why=SKIPPED_TASK_IN_PROGRESS)
            return _or_full(state, _remember_letter(_skip_file(state, order), letter), Verdict.task_in_progress)
        if (done := state.tasks.get(letter.task[:BY])) is not None:
            run_id = done.run_id or run_of(state.agent, letter.task, done.key, done.attempt)
            order = BridgeTask(kind=BridgeTaskKind.resend, letter=letter, why=RESULT_SENT_AGAIN, run_id=run_id)
            return _or_full(state, _remember_letter(_skip_file(state, order), letter), Verdict.task_done)
    is_blocked = bool(delivery.missing) and delivery.fault is None and not letter.is_reply
    if not has_room(state, letter) or (is_blocked and not may_be_blocked(state, letter)):
        return state, Verdict.full
    state = _accept_letter(state, letter)
    if delivery.fault is not None:
        return to_end(state, letter, bad_message_ending(delivery.fault), now), Verdict.dead
    if is_blocked:
        return replace_letter(state, block_letter(letter, now)), Verdict.blocked
    return state, Verdict.admitted


def _accept_letter(state: MailboxState, letter: InboxMessage) -> MailboxState:
    admitted = state.model_copy(update={"letters": (*state.letters, letter), "accepted": state.accepted + 1})
    return _remember_letter(admitted, letter) or admitted


def _remember_letter(state: MailboxState | None, letter: InboxMessage) -> MailboxState | None:
    """Add the letter to the memory of seen messages, unless the mailbox is full (`None`)."""
    if state is None:
        return None
    seen = SeenMessage(file=file_mark(letter), attempt=letter.attempt)
    return state.model_copy(update={"seen": add_newest(state.seen, letter.key[:BY], seen, MAX_SEEN)})


def _or_full(state: MailboxState, changed: MailboxState | None, verdict: Verdict) -> tuple[MailboxState, Verdict]:
    return (state, Verdict.full) if changed is None else (changed, verdict)


def _skip_file(state: MailboxState, order: BridgeTask) -> MailboxState | None:
    ordered = add_order(state, order)
    return ordered and ordered.model_copy(update={"skipped": state.skipped + 1})


def to_end(state: MailboxState, letter: InboxMessage, ending: MessageResult, now: datetime) -> MailboxState:
    """Record how the letter ended. A bridge has yet to write it to the folder."""
    brief = ending.model_copy(update={"details": truncate(ending.details, WHY)})
    changes = {"stage": Stage.ending, "ending": brief, "untold": False, "not_before": None, "tries": 0}
    return replace_letter(state, add_transition(letter, LAST_STATE[brief.ack], now).model_copy(update=changes))


def end_letter_turn(state: MailboxState, turn: TurnEnded, now: datetime) -> MailboxState:
    """End the letter of a turn. Repeated and late signals change nothing. One may precede the bridge's report."""
    letter = next((one for one in _taken_letters(state) if _request_id(one) == turn.request_id), None)
    if letter is None:
        return state
    begun = letter.model_copy(update={"run_id": turn.run_id})
    if letter.stage is Stage.admitted:
        begun = add_transition(begun, TaskState.running, now)
    return to_end(state, begun, ending_of(turn.end), now)


def _taken_letters(state: MailboxState) -> Iterator[InboxMessage]:
    for letter in state.letters:
        if letter.stage is Stage.running or (letter.stage is Stage.admitted and has_passed(letter, TaskState.consumed)):
            yield letter


def _request_id(letter: InboxMessage) -> str:
    return mail_request_id(letter.key, letter.attempt)


def record_pick(state: MailboxState, key: str, now: datetime) -> MailboxState:
    letter = find_letter(state, key)
    if letter is None or letter.stage is not Stage.running or not is_asking_for_input(letter):
        return add_mailbox_notice(state, f"input_picked: no message {truncate(key, 40)} waits for it")
    changes = {"untold": True, "heard_at": now, "undecided": (), "looks": 0}
    return replace_letter(state, add_transition(letter, TaskState.running, now).model_copy(update=changes))


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
    changes = {
        "stage": Stage.admitted,
        "attempt": letter.attempt + 1,
        "run_id": None,
        "ending": None,
        "not_before": now + pause_after(letter.attempt),
        "transitions": transitions,
        "looks": 0,
        "tries": 0,
    }
    again = letter.model_copy(update=changes)
    return replace_letter(_remember_letter(state, again) or state, again)


def give_up_letters(state: MailboxState, request: GiveUp, now: datetime) -> MailboxState:
    """End letters that were not taken yet, even if the file is gone. `cancel` ends a run."""
    chosen = [one for one in state.letters if one.message_id == request.message_id and _may_be_given_up(one)]
    if not chosen:
        return add_mailbox_notice(state, f"give_up: no message {truncate(request.message_id, 80)} waits for anything")
    reason = f"given up by {request.by}" if request.by else "given up"
    for letter in chosen:
        state = to_end(state, letter, MessageResult(ack=Ack.failed, details=reason, fault=GIVEN_UP), now)
    return state


def _may_be_given_up(letter: InboxMessage) -> bool:
    is_untaken = letter.stage is Stage.admitted and not has_passed(letter, TaskState.consumed)
    return letter.stage is Stage.blocked or is_untaken
