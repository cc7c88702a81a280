"""A mailbox: the messages it accepts, their outcomes, and its memory (C2, C5, C7, C8, D2).

Every admitted message ends once. An open message is a letter, whose stage determines the next step
(`decisions.mailbox.commands`). A step for any other file is an order.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from contracts.mail.commands import Order, OrderKind
from contracts.mail.delivery import Ack, Letter, LetterEnding, Stage, TaskState
from contracts.mail.mailbox import (
    Delivered,
    Delivery,
    GiveUp,
    MailboxState,
    Seen,
    TaskMemory,
    TurnEnded,
    Verdict,
)
from decisions.ids import mail_request_id
from decisions.mailbox.capacity import (
    BY,
    MOST_RECENT,
    MOST_SEEN,
    MOST_TASKS,
    RECENT_BYTES,
    bounded,
    has_room,
    letter_of,
    may_be_blocked,
    newest,
    noticed,
    with_letter,
    with_order,
    without_letters,
)
from decisions.mailbox.dead_letters import died
from decisions.mailbox.delivery import (
    GIVEN_UP,
    LAST_STATE,
    WHY,
    ack_of,
    bad,
    blocked,
    ending_of,
    has_passed,
    is_asking,
    is_task,
    letter_for,
    mark,
    moved,
    pause_after,
    place,
    run_of,
    stub_of,
    weighed,
)
from decisions.text.formatting import cut

SKIPPED_DUPLICATE = "SKIPPED_DUPLICATE"
SKIPPED_TASK_IN_PROGRESS = "SKIPPED_TASK_IN_PROGRESS"
RESULT_SENT_AGAIN = "RESULT_SENT_AGAIN"


def attached(state: MailboxState, folder: str) -> MailboxState:
    """Record that a bridge serves this folder. Letters without a folder are assigned to it."""
    letters = tuple(one if one.folder else one.model_copy(update={"folder": folder}) for one in state.letters)
    return state.model_copy(update={"folder": folder, "letters": letters})


def deliver(
    state: MailboxState, folder: str, deliveries: Sequence[Delivery], now: datetime
) -> tuple[MailboxState, Delivered]:
    """Judge each delivery in this order: no message, seen before, its task is open or done, faulty, blocked."""
    state = attached(state, folder)
    verdicts: list[Verdict] = []
    for delivery in deliveries:
        state, verdict = _judged(state, folder, delivery, now)
        verdicts.append(verdict)
    return state, Delivered(verdicts=tuple(verdicts), open=len(state.letters))


def _judged(state: MailboxState, folder: str, delivery: Delivery, now: datetime) -> tuple[MailboxState, Verdict]:
    if delivery.head is None:
        return _no_message(state, folder, delivery, now)
    letter = letter_for(folder, delivery, delivery.head, now)
    if (known := _known(state, letter.key)) is not None:
        if not known.again:
            return _seen(state, letter, known, delivery, now)
        letter = letter.model_copy(update={"attempt": known.attempt + 1})
    return _new(state, letter, delivery, now)


def _known(state: MailboxState, key: str) -> Seen | None:
    """Return the memory of a message. An open message is known even if the memory has dropped it."""
    in_hand = letter_of(state, key)
    return Seen(file=mark(in_hand), attempt=in_hand.attempt) if in_hand else state.seen.get(key[:BY])


def _no_message(state: MailboxState, folder: str, delivery: Delivery, now: datetime) -> tuple[MailboxState, Verdict]:
    reason = delivery.fault or "it is not a message"
    stub = stub_of((folder, delivery.plan, delivery.file), now)
    order = Order(kind=OrderKind.bury, letter=stub, why=reason)
    buried = with_order(state, order)
    if buried is None:
        return state, Verdict.full
    if any(place(dead) == place(stub) for dead in state.dead):
        return buried, Verdict.dead
    return died(buried, stub, reason, now), Verdict.dead


def _seen(
    state: MailboxState, letter: Letter, known: Seen, delivery: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    """Judge a message that was seen before, in this file, which may still be open, or in another."""
    if any(place(order.letter) == place(letter) for order in state.orders):
        return state, Verdict.known
    if known.file != mark(letter):
        order = Order(kind=OrderKind.skip, letter=letter, why=SKIPPED_DUPLICATE)
        return _or_full(state, _skipped(state, order), Verdict.duplicate)
    in_hand = letter_of(state, letter.key)
    if in_hand is not None:
        return _delivered_again(state, in_hand, delivery, now)
    dead = next((dead for dead in state.dead if dead.key == letter.key), None)
    kind, reason = (OrderKind.bury, dead.why) if dead else (OrderKind.skip, "")  # its end is written; the file is back
    return _or_full(state, with_order(state, Order(kind=kind, letter=letter, why=reason)), Verdict.duplicate)


def _delivered_again(
    state: MailboxState, letter: Letter, delivery: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    """Update a letter's inputs as the bridge finds them now, until the letter is taken."""
    if letter.stage not in (Stage.blocked, Stage.admitted):
        return state, Verdict.known
    if letter.undecided != delivery.undecided:
        letter = weighed(letter.model_copy(update={"undecided": delivery.undecided}))
        state = with_letter(state, letter)
    if letter.stage is Stage.admitted:
        return state, Verdict.known
    if delivery.fault is not None:
        return to_end(state, letter, bad(delivery.fault), now), Verdict.dead
    if delivery.missing:
        return state, Verdict.blocked
    changes = {"stage": Stage.admitted, "untold": False, "not_before": None, "tries": 0}
    unblocked = letter.model_copy(update=changes)
    return with_letter(state, unblocked), Verdict.admitted


def _new(state: MailboxState, letter: Letter, delivery: Delivery, now: datetime) -> tuple[MailboxState, Verdict]:
    if not letter.is_reply:
        if any(is_task(other) and other.task == letter.task for other in state.letters):
            order = Order(kind=OrderKind.skip, letter=letter, why=SKIPPED_TASK_IN_PROGRESS)
            return _or_full(state, _remembered(_skipped(state, order), letter), Verdict.task_in_progress)
        if (done := state.tasks.get(letter.task[:BY])) is not None:
            run_id = done.run_id or run_of(state.agent, letter.task, done.key, done.attempt)
            order = Order(kind=OrderKind.resend, letter=letter, why=RESULT_SENT_AGAIN, run_id=run_id)
            return _or_full(state, _remembered(_skipped(state, order), letter), Verdict.task_done)
    is_blocked = bool(delivery.missing) and delivery.fault is None and not letter.is_reply
    if not has_room(state, letter) or (is_blocked and not may_be_blocked(state, letter)):
        return state, Verdict.full
    state = _accepted(state, letter)
    if delivery.fault is not None:
        return to_end(state, letter, bad(delivery.fault), now), Verdict.dead
    if is_blocked:
        return with_letter(state, blocked(letter, now)), Verdict.blocked
    return state, Verdict.admitted


def _accepted(state: MailboxState, letter: Letter) -> MailboxState:
    admitted = state.model_copy(update={"letters": (*state.letters, letter), "accepted": state.accepted + 1})
    return _remembered(admitted, letter) or admitted


def _remembered(state: MailboxState | None, letter: Letter) -> MailboxState | None:
    """Add the letter to the memory of seen messages, unless the mailbox is full (`None`)."""
    if state is None:
        return None
    seen = Seen(file=mark(letter), attempt=letter.attempt)
    return state.model_copy(update={"seen": newest(state.seen, letter.key[:BY], seen, MOST_SEEN)})


def _or_full(state: MailboxState, changed: MailboxState | None, verdict: Verdict) -> tuple[MailboxState, Verdict]:
    return (state, Verdict.full) if changed is None else (changed, verdict)


def _skipped(state: MailboxState, order: Order) -> MailboxState | None:
    ordered = with_order(state, order)
    return ordered and ordered.model_copy(update={"skipped": state.skipped + 1})


def to_end(state: MailboxState, letter: Letter, ending: LetterEnding, now: datetime) -> MailboxState:
    """Record how the letter ended. A bridge has yet to write it to the folder."""
    brief = ending.model_copy(update={"details": cut(ending.details, WHY)})
    changes = {"stage": Stage.ending, "ending": brief, "untold": False, "not_before": None, "tries": 0}
    return with_letter(state, moved(letter, LAST_STATE[brief.ack], now).model_copy(update=changes))


def turn_ended(state: MailboxState, turn: TurnEnded, now: datetime) -> MailboxState:
    """End the letter of a turn. Repeated and late signals change nothing. One may precede the bridge's report."""
    letter = next((one for one in _taken(state) if _request_id(one) == turn.request_id), None)
    if letter is None:
        return state
    begun = letter.model_copy(update={"run_id": turn.run_id})
    if letter.stage is Stage.admitted:
        begun = moved(begun, TaskState.running, now)
    return to_end(state, begun, ending_of(turn.end), now)


def _taken(state: MailboxState) -> Iterator[Letter]:
    for letter in state.letters:
        if letter.stage is Stage.running or (letter.stage is Stage.admitted and has_passed(letter, TaskState.consumed)):
            yield letter


def _request_id(letter: Letter) -> str:
    return mail_request_id(letter.key, letter.attempt)


def input_picked(state: MailboxState, key: str, now: datetime) -> MailboxState:
    letter = letter_of(state, key)
    if letter is None or letter.stage is not Stage.running or not is_asking(letter):
        return noticed(state, f"input_picked: no message {cut(key, 40)} waits for it")
    changes = {"untold": True, "heard_at": now, "undecided": (), "looks": 0}
    return with_letter(state, moved(letter, TaskState.running, now).model_copy(update=changes))


def over(state: MailboxState, letter: Letter, ending: LetterEnding, now: datetime) -> MailboxState:
    """Move a letter whose end is written into the memory."""
    remaining = without_letters(state, letter)
    last = None if letter.is_reply else LAST_STATE[ending.ack]
    ack = ack_of(letter, state=last, ack=ending.ack, details=cut(ending.details, WHY), at=now)
    remaining = remaining.model_copy(update={"recent": bounded((*state.recent, ack), MOST_RECENT, RECENT_BYTES)})
    if ending.ack is Ack.failed:
        return died(remaining, letter, ending.details, now)
    return remaining if letter.is_reply else _done(remaining, letter)


def _done(state: MailboxState, letter: Letter) -> MailboxState:
    usual = run_of(state.agent, letter.task, letter.key, letter.attempt)
    run_id = None if letter.run_id in (None, usual) else letter.run_id
    memory = TaskMemory(key=letter.key, attempt=letter.attempt, run_id=run_id)
    return state.model_copy(update={"tasks": newest(state.tasks, letter.task[:BY], memory, MOST_TASKS)})


def tried_again(state: MailboxState, letter: Letter, now: datetime) -> MailboxState:
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
    return with_letter(_remembered(state, again) or state, again)


def given_up(state: MailboxState, request: GiveUp, now: datetime) -> MailboxState:
    """End letters that were not taken yet, even if the file is gone. `cancel` ends a run."""
    chosen = [one for one in state.letters if one.message_id == request.message_id and _may_be_given_up(one)]
    if not chosen:
        return noticed(state, f"give_up: no message {cut(request.message_id, 80)} waits for anything")
    reason = f"given up by {request.by}" if request.by else "given up"
    for letter in chosen:
        state = to_end(state, letter, LetterEnding(ack=Ack.failed, details=reason, fault=GIVEN_UP), now)
    return state


def _may_be_given_up(letter: Letter) -> bool:
    is_untaken = letter.stage is Stage.admitted and not has_passed(letter, TaskState.consumed)
    return letter.stage is Stage.blocked or is_untaken
