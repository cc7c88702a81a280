"""A mailbox: which messages it takes, what becomes of each, and what it remembers (C2, C5, C7, C8, D2).

Every message that was admitted ends once. A message in hand is a letter, and its stage says what is to be done next
(`decisions.mail_orders`); what is to be done with any other file is an order.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from pydantic_core import to_json

from contracts.conversation import TurnEnd
from contracts.failures import RunFailure
from contracts.mail import MessageHead, TaskHead
from contracts.mailbox import (
    Ack,
    AckView,
    DeadLetter,
    Delivered,
    Delivery,
    Dispatch,
    Ending,
    GiveUp,
    Letter,
    MailboxState,
    Order,
    OrderKind,
    Redeliver,
    Seen,
    Stage,
    TaskMemory,
    TaskState,
    Transition,
    TurnEnded,
    Verdict,
)
from decisions.ids import letter_key, mail_conversation_id, mail_request_id, task_key, turn_run_id
from decisions.narrate import cut

# All of this together is carried over continue-as-new, and stays below 1 MiB.
MOST_OPEN, OPEN_BYTES = 500, 264 * 1024  # messages in hand; of ordinary ones, the bytes allow some 350
MOST_BLOCKED, BLOCKED_BYTES = 250, 132 * 1024  # of them, those that wait for inputs: these may never come
NEW_PLANS, NEW_BYTES = 50, 32 * 1024  # and more: a message of each plan, or folder, that has none in hand
WAITED_FOR, WAITED_BYTES = 100, 24 * 1024  # and more of what such work may wait for: replies, and subtasks for peers
MOST_ORDERS, ORDER_BYTES = 200, 64 * 1024
NEW_FOLDERS, FOLDER_BYTES = 20, 16 * 1024  # and more: an order for each folder that has none
MOST_SEEN, MOST_TASKS = 5000, 5000
MOST_DEAD, DEAD_BYTES = 500, 64 * 1024
MOST_RECENT, RECENT_BYTES = 200, 48 * 1024
MOST_NOTICES = 20
MOST_DISPATCH = 4096  # bytes
WITHDRAWN_BYTES = 32 * 1024  # of subtasks that a bridge is still to take back; of more, the oldest files stay there
FRAME = 330  # bytes that come to a letter on its way: a transition for each state, a run, an ending
WHY = 200  # characters of what is remembered
BY = 16  # characters of a digest by which thousands are remembered
MARK = 8  # and of one that is only compared with another of the same message

SKIPPED_DUPLICATE = "SKIPPED_DUPLICATE"
SKIPPED_TASK_IN_PROGRESS = "SKIPPED_TASK_IN_PROGRESS"
RESULT_SENT_AGAIN = "RESULT_SENT_AGAIN"
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
_LAST_STATE = {Ack.succeeded: TaskState.succeeded, Ack.failed: TaskState.failed}

T = TypeVar("T")


def may_try_again(fault: str | None, steps: int, attempt: int) -> bool:
    """Whether a run that failed may be made anew: it has done nothing yet, and what it failed of may pass (C5)."""
    return fault in _PASSING and steps == 0 and attempt < MOST_ATTEMPTS


def pause_after(attempt: int) -> timedelta:
    return PAUSE * attempt


def ending_of(end: TurnEnd) -> Ending:
    if end is TurnEnd.completed:
        return Ending(ack=Ack.succeeded, details="the run is completed")
    return Ending(ack=Ack.failed, details=_FAILED_ENDS[end], fault=end)


# deliveries


def attached(state: MailboxState, folder: str) -> MailboxState:
    """A bridge of this folder is there: what had no folder to go to goes there."""
    letters = tuple(each if each.folder else each.model_copy(update={"folder": folder}) for each in state.letters)
    return state.model_copy(update={"folder": folder, "letters": letters})


def deliver(
    state: MailboxState, folder: str, deliveries: Sequence[Delivery], now: datetime
) -> tuple[MailboxState, Delivered]:
    """Judges each in this order: no message, seen before, about a task that is in hand or done, faulty, blocked."""
    state = attached(state, folder)
    verdicts: list[Verdict] = []
    for each in deliveries:
        state, verdict = _judged(state, folder, each, now)
        verdicts.append(verdict)
    return state, Delivered(verdicts=tuple(verdicts), open=len(state.letters))


def _judged(state: MailboxState, folder: str, found: Delivery, now: datetime) -> tuple[MailboxState, Verdict]:
    if found.head is None:
        return _no_message(state, folder, found, now)
    letter = _letter(folder, found, found.head, now)
    if (known := _known(state, letter.key)) is not None:
        if not known.again:
            return _seen(state, letter, known, found, now)
        letter = letter.model_copy(update={"attempt": known.attempt + 1})
    return _new(state, letter, found, now)


def _known(state: MailboxState, key: str) -> Seen | None:
    """What is in hand is known however many came since."""
    in_hand = letter_of(state, key)
    return Seen(file=_mark(in_hand), attempt=in_hand.attempt) if in_hand else state.seen.get(key[:BY])


def _letter(folder: str, found: Delivery, head: MessageHead, now: datetime) -> Letter:
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
    return _weighed(letter)


def _weighed(letter: Letter) -> Letter:
    return letter.model_copy(update={"size": len(to_json(letter)) + FRAME})


def _no_message(state: MailboxState, folder: str, found: Delivery, now: datetime) -> tuple[MailboxState, Verdict]:
    why = found.fault or "it is no message"
    stub = _stub((folder, found.plan, found.file), now)
    order = Order(kind=OrderKind.bury, letter=stub, why=why)
    buried = _with_order(state, order)
    if buried is None:
        return state, Verdict.full
    if any(_place(each) == _place(stub) for each in state.dead):
        return buried, Verdict.dead
    return _died(buried, stub, why, now), Verdict.dead


def _stub(place: tuple[str, str, str], now: datetime, message_id: str = "", key: str = "") -> Letter:
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


def _place(file: Letter | DeadLetter) -> tuple[str, str, str]:
    return file.folder, file.plan, file.file


def _mark(letter: Letter) -> str:
    """By which the file that a message came in is known again."""
    return task_key(*_place(letter))[:MARK]


def _seen(
    state: MailboxState, letter: Letter, known: Seen, found: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    """A message that came before: in this very file, which may still be in hand, or in another."""
    if any(_place(each.letter) == _place(letter) for each in state.orders):
        return state, Verdict.known
    if known.file != _mark(letter):
        order = Order(kind=OrderKind.skip, letter=letter, why=SKIPPED_DUPLICATE)
        return _or_full(state, _skipped(state, order), Verdict.duplicate)
    in_hand = letter_of(state, letter.key)
    if in_hand is not None:
        return _delivered_again(state, in_hand, found, now)
    dead = next((each for each in state.dead if each.key == letter.key), None)
    kind, why = (OrderKind.bury, dead.why) if dead else (OrderKind.skip, "")  # its end was told; the file came back
    return _or_full(state, _with_order(state, Order(kind=kind, letter=letter, why=why)), Verdict.duplicate)


def _delivered_again(
    state: MailboxState, letter: Letter, found: Delivery, now: datetime
) -> tuple[MailboxState, Verdict]:
    """What its bridge finds of its inputs now counts, as long as the letter has not been taken."""
    if letter.stage not in (Stage.blocked, Stage.admitted):
        return state, Verdict.known
    if letter.undecided != found.undecided:
        letter = _weighed(letter.model_copy(update={"undecided": found.undecided}))
        state = with_letter(state, letter)
    if letter.stage is Stage.admitted:
        return state, Verdict.known
    if found.fault is not None:
        return to_end(state, letter, _bad(found.fault), now), Verdict.dead
    if found.missing:
        return state, Verdict.blocked
    changes = {"stage": Stage.admitted, "untold": False, "not_before": None, "tries": 0}
    unblocked = letter.model_copy(update=changes)
    return with_letter(state, unblocked), Verdict.admitted


def _new(state: MailboxState, letter: Letter, found: Delivery, now: datetime) -> tuple[MailboxState, Verdict]:
    if not letter.is_reply:
        if any(_is_task(each) and each.task == letter.task for each in state.letters):
            order = Order(kind=OrderKind.skip, letter=letter, why=SKIPPED_TASK_IN_PROGRESS)
            return _or_full(state, _remembered(_skipped(state, order), letter), Verdict.task_in_progress)
        if (done := state.tasks.get(letter.task[:BY])) is not None:
            run_id = done.run_id or run_of(state.agent, letter.task, done.key, done.attempt)
            order = Order(kind=OrderKind.resend, letter=letter, why=RESULT_SENT_AGAIN, run_id=run_id)
            return _or_full(state, _remembered(_skipped(state, order), letter), Verdict.task_done)
    is_blocked = bool(found.missing) and found.fault is None and not letter.is_reply
    if not _has_room(state, letter) or (is_blocked and not _may_be_blocked(state, letter)):
        return state, Verdict.full
    state = _accepted(state, letter)
    if found.fault is not None:
        return to_end(state, letter, _bad(found.fault), now), Verdict.dead
    if is_blocked:
        return with_letter(state, _blocked(letter, now)), Verdict.blocked
    return state, Verdict.admitted


def _is_task(letter: Letter) -> bool:
    return not letter.is_reply and letter.delegation is None


def _bad(fault: str) -> Ending:
    return Ending(ack=Ack.failed, details=cut(fault, WHY), fault=BAD_MESSAGE)


def _blocked(letter: Letter, now: datetime) -> Letter:
    changes = {"stage": Stage.blocked, "untold": True}
    return moved(letter, TaskState.blocked, now).model_copy(update=changes)


def _has_room(state: MailboxState, letter: Letter) -> bool:
    more, more_bytes = 0, 0
    if not any((each.folder, each.plan_id) == (letter.folder, letter.plan_id) for each in state.letters):
        more, more_bytes = NEW_PLANS, NEW_BYTES
    if not _is_task(letter):
        more, more_bytes = NEW_PLANS + WAITED_FOR, NEW_BYTES + WAITED_BYTES
    used = sum(each.size for each in state.letters)
    return len(state.letters) < MOST_OPEN + more and used + letter.size <= OPEN_BYTES + more_bytes


def _may_be_blocked(state: MailboxState, letter: Letter) -> bool:
    """What waits for inputs leaves room for what does not."""
    blocked = [each.size for each in state.letters if each.stage is Stage.blocked]
    return len(blocked) < MOST_BLOCKED and sum(blocked) + letter.size <= BLOCKED_BYTES


def _accepted(state: MailboxState, letter: Letter) -> MailboxState:
    known = state.model_copy(update={"letters": (*state.letters, letter), "accepted": state.accepted + 1})
    return _remembered(known, letter) or known


def _remembered(state: MailboxState | None, letter: Letter) -> MailboxState | None:
    """None of None, which stands for a mailbox that is full."""
    if state is None:
        return None
    seen = Seen(file=_mark(letter), attempt=letter.attempt)
    return state.model_copy(update={"seen": _newest(state.seen, letter.key[:BY], seen, MOST_SEEN)})


def _newest(known: Mapping[str, T], key: str, value: T, most: int) -> dict[str, T]:
    """With this one as the newest, and without the oldest where there are too many."""
    kept = dict(known)
    kept.pop(key, None)
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
    return kept


def _or_full(state: MailboxState, changed: MailboxState | None, verdict: Verdict) -> tuple[MailboxState, Verdict]:
    return (state, Verdict.full) if changed is None else (changed, verdict)


def _skipped(state: MailboxState, order: Order) -> MailboxState | None:
    ordered = _with_order(state, order)
    return ordered and ordered.model_copy(update={"skipped": state.skipped + 1})


def _with_order(state: MailboxState, order: Order) -> MailboxState | None:
    """None where too much is ordered already. What is ordered stays ordered once."""
    if any(each.kind is order.kind and _place(each.letter) == _place(order.letter) for each in state.orders):
        return state
    is_first = all(each.letter.folder != order.letter.folder for each in state.orders)
    more, more_bytes = (NEW_FOLDERS, FOLDER_BYTES) if is_first else (0, 0)
    used = sum(each.letter.size + len(each.why) for each in (*state.orders, order))
    if len(state.orders) >= MOST_ORDERS + more or used > ORDER_BYTES + more_bytes:
        return None
    return state.model_copy(update={"orders": (*state.orders, order)})


def run_of(agent: str, task: str, key: str, attempt: int) -> str:
    """The run of a letter, as its lane names it."""
    return turn_run_id(mail_conversation_id(agent, task), mail_request_id(key, attempt))


# letters on their way


def letter_of(state: MailboxState, key: str) -> Letter | None:
    return next((each for each in state.letters if each.key == key), None)


def with_letter(state: MailboxState, letter: Letter) -> MailboxState:
    """In the place of the one with its key."""
    letters = tuple(letter if each.key == letter.key else each for each in state.letters)
    return state.model_copy(update={"letters": letters})


def without_letters(state: MailboxState, *gone: Letter) -> MailboxState:
    keys = [each.key for each in gone]
    return state.model_copy(update={"letters": tuple(each for each in state.letters if each.key not in keys)})


def moved(letter: Letter, to: TaskState, at: datetime) -> Letter:
    """A state that it is in already it does not enter; it is consumed once, however often it is tried."""
    passed = letter.transitions if to is TaskState.consumed else letter.transitions[-1:]
    if any(each.state is to for each in passed):
        return letter
    return letter.model_copy(update={"transitions": (*letter.transitions, Transition(state=to, at=at))})


def has_passed(letter: Letter, state: TaskState) -> bool:
    return any(each.state is state for each in letter.transitions)


def to_end(state: MailboxState, letter: Letter, ending: Ending, now: datetime) -> MailboxState:
    """What has become of it is known, and is to be told."""
    brief = ending.model_copy(update={"details": cut(ending.details, WHY)})
    changes = {"stage": Stage.ending, "ending": brief, "untold": False, "not_before": None, "tries": 0}
    return with_letter(state, moved(letter, _LAST_STATE[brief.ack], now).model_copy(update=changes))


def turn_ended(state: MailboxState, told: TurnEnded, now: datetime) -> MailboxState:
    """A word that comes again, or late, changes nothing. One may come before the bridge has told of the run."""
    letter = next((each for each in _taken(state) if _request_id(each) == told.request_id), None)
    if letter is None:
        return state
    begun = letter.model_copy(update={"run_id": told.run_id})
    if letter.stage is Stage.admitted:
        begun = moved(begun, TaskState.running, now)
    return to_end(state, begun, ending_of(told.end), now)


def _taken(state: MailboxState) -> Iterator[Letter]:
    for each in state.letters:
        if each.stage is Stage.running or (each.stage is Stage.admitted and has_passed(each, TaskState.consumed)):
            yield each


def _request_id(letter: Letter) -> str:
    return mail_request_id(letter.key, letter.attempt)


def input_picked(state: MailboxState, key: str, now: datetime) -> MailboxState:
    letter = letter_of(state, key)
    if letter is None or letter.stage is not Stage.running or not is_asking(letter):
        return noticed(state, f"input_picked: no message {cut(key, 40)} waits for it")
    changes = {"untold": True, "heard_at": now, "undecided": (), "looks": 0}
    return with_letter(state, moved(letter, TaskState.running, now).model_copy(update=changes))


def is_asking(letter: Letter) -> bool:
    """Its run waits for a person to say which file an input is."""
    return letter.stage is Stage.running and any(each.state is TaskState.blocked for each in letter.transitions[-1:])


def over(state: MailboxState, letter: Letter, ending: Ending, now: datetime) -> MailboxState:
    """Everything has been told: it is a memory."""
    left = without_letters(state, letter)
    told = AckView(
        key=letter.key,
        message_id=letter.message_id,
        plan_id=letter.plan_id,
        task_id=letter.task_id,
        subtask_id=letter.subtask_id,
        state=None if letter.is_reply else _LAST_STATE[ending.ack],
        ack=ending.ack,
        details=cut(ending.details, WHY),
        run_id=letter.run_id,
        at=now,
    )
    left = left.model_copy(update={"recent": _bounded((*state.recent, told), MOST_RECENT, RECENT_BYTES)})
    if ending.ack is Ack.failed:
        return _died(left, letter, ending.details, now)
    return left if letter.is_reply else _done(left, letter)


def _done(state: MailboxState, letter: Letter) -> MailboxState:
    usual = run_of(state.agent, letter.task, letter.key, letter.attempt)
    run_id = None if letter.run_id in (None, usual) else letter.run_id
    memory = TaskMemory(key=letter.key, attempt=letter.attempt, run_id=run_id)
    return state.model_copy(update={"tasks": _newest(state.tasks, letter.task[:BY], memory, MOST_TASKS)})


def tried_again(state: MailboxState, letter: Letter, now: datetime) -> MailboxState:
    """Its run had done nothing yet. The next one begins after a pause."""
    kept = tuple(each for each in letter.transitions if each.state is not TaskState.failed)
    changes = {
        "stage": Stage.admitted,
        "attempt": letter.attempt + 1,
        "run_id": None,
        "ending": None,
        "not_before": now + pause_after(letter.attempt),
        "transitions": kept,
        "looks": 0,
        "tries": 0,
    }
    again = letter.model_copy(update=changes)
    return with_letter(_remembered(state, again) or state, again)


def given_up(state: MailboxState, wanted: GiveUp, now: datetime) -> MailboxState:
    """What has not been taken ends, whether its file is still there or not. A run is for `cancel`."""
    chosen = [each for each in state.letters if each.message_id == wanted.message_id and _may_be_given_up(each)]
    if not chosen:
        return noticed(state, f"give_up: no message {cut(wanted.message_id, 80)} waits for anything")
    why = f"given up by {wanted.by}" if wanted.by else "given up"
    for each in chosen:
        state = to_end(state, each, Ending(ack=Ack.failed, details=why, fault=GIVEN_UP), now)
    return state


def _may_be_given_up(letter: Letter) -> bool:
    is_untaken = letter.stage is Stage.admitted and not has_passed(letter, TaskState.consumed)
    return letter.stage is Stage.blocked or is_untaken


# dead letters


def _died(state: MailboxState, letter: Letter, why: str, now: datetime) -> MailboxState:
    dead = DeadLetter(
        file=letter.file,
        plan=letter.plan,
        folder=letter.folder,
        key=letter.key,
        task=letter.task,
        message_id=letter.message_id,
        attempt=letter.attempt,
        why=cut(why, WHY),
        at=now,
    )
    kept = _bounded((*state.dead, dead), MOST_DEAD, DEAD_BYTES)
    return state.model_copy(update={"dead": kept, "failed": state.failed + 1})


V = TypeVar("V", AckView, DeadLetter)


def _bounded(memories: tuple[V, ...], most: int, most_bytes: int) -> tuple[V, ...]:
    """The latest ones, as many as fit. Only the newest is new, so few have to go."""
    kept = memories[-most:]
    size = sum(len(to_json(each)) for each in kept)
    while size > most_bytes and len(kept) > 1:
        size -= len(to_json(kept[0]))
        kept = kept[1:]
    return kept


def newly_dead(before: MailboxState, after: MailboxState) -> tuple[DeadLetter, ...]:
    """Those of whom an alert is due: all that came since."""
    grown = after.failed - before.failed
    return after.dead[-grown:] if grown else ()


def redeliver(state: MailboxState, wanted: Redeliver, now: datetime) -> MailboxState:
    """The files come back as new ones, and their messages may come once more."""
    chosen = [each for each in state.dead if _is_wanted(each, wanted)]
    if not chosen:
        about = wanted.message_id or wanted.file or "at all"
        return noticed(state, f"redeliver: no dead letter {cut(about, 80)}")
    orders, seen = list(state.orders), state.seen
    for each in chosen:
        stub = _stub(_place(each), now, each.message_id, each.key)
        orders.append(Order(kind=OrderKind.restore, letter=_weighed(stub)))
        if each.key:
            again = Seen(file=_mark(stub), attempt=each.attempt, again=True)
            seen = _newest(seen, each.key[:BY], again, MOST_SEEN)
    left = tuple(each for each in state.dead if each not in chosen)
    return state.model_copy(update={"orders": tuple(orders), "seen": seen, "dead": left})


def _is_wanted(dead: DeadLetter, wanted: Redeliver) -> bool:
    return wanted.message_id in (None, dead.message_id) and wanted.file in (None, dead.file)


# subtasks for a peer that lives outside


def dispatched(state: MailboxState, dispatch: Dispatch, now: datetime) -> MailboxState:
    """One that is on its way is there once. Of those that were sent, the oldest is forgotten where there is no room."""
    letter = _outgoing(state, dispatch, now)
    if letter_of(state, letter.key) is not None:
        return state
    if len(to_json(dispatch)) > MOST_DISPATCH:
        return noticed(state, f"dispatch: it has more than {MOST_DISPATCH:,} bytes")
    left = state
    while not _has_room(left, letter):
        sent = next((each for each in left.letters if each.stage is Stage.sent), None)
        if sent is None:
            return noticed(state, f"dispatch: full: {cut(dispatch.task_id, 80)} {cut(dispatch.subtask_id, 80)}")
        left = without_letters(left, sent)
    orders = tuple(x for x in left.orders if x.kind is not OrderKind.withdraw or x.letter.key != letter.key)
    return left.model_copy(update={"letters": (*left.letters, letter), "orders": orders})


def _outgoing(state: MailboxState, dispatch: Dispatch, now: datetime) -> Letter:
    letter = Letter(
        key=letter_key(dispatch.delegation, dispatch.subtask_id),
        task=task_key(dispatch.plan_id, dispatch.task_id, dispatch.subtask_id),
        folder=state.folder or "",
        plan=dispatch.plan_id,
        message_id=f"{dispatch.task_id}-{dispatch.subtask_id}",
        plan_id=dispatch.plan_id,
        task_id=dispatch.task_id,
        subtask_id=dispatch.subtask_id,
        sender=dispatch.sender,
        delegation=dispatch.delegation,
        stage=Stage.outgoing,
        heard_at=now,
    )
    return _weighed(letter)


def withdrawn(state: MailboxState, dispatch: Dispatch, now: datetime) -> MailboxState:
    """Nobody waits for the reply any more: its file is taken back, where there is a folder that may have it."""
    if len(to_json(dispatch)) > MOST_DISPATCH:
        return noticed(state, f"withdraw: it has more than {MOST_DISPATCH:,} bytes")
    unknown = _outgoing(state, dispatch, now)
    letter = letter_of(state, unknown.key) or unknown
    left = without_letters(state, letter)
    if not letter.folder or any(each.letter.key == letter.key for each in left.orders):
        return left
    order = Order(kind=OrderKind.withdraw, letter=letter)
    left = left.model_copy(update={"orders": (*left.orders, order)})
    while oldest := _too_many([each for each in left.orders if each.kind is OrderKind.withdraw]):
        left = noticed(left, f"withdraw: nobody did it: {cut(oldest.letter.message_id, 200)}")
        left = left.model_copy(update={"orders": tuple(each for each in left.orders if each is not oldest)})
    return left


def _too_many(withdrawals: Sequence[Order]) -> Order | None:
    """The oldest of too many."""
    is_over = sum(each.letter.size for each in withdrawals) > WITHDRAWN_BYTES and len(withdrawals) > 1
    return withdrawals[0] if is_over else None


def resolved(state: MailboxState, reply: Letter) -> MailboxState:
    """The reply has come to whoever waited for it, or nobody does: what it answers is over."""
    answered = [
        each
        for each in state.letters
        if each.delegation is not None
        and each.stage in (Stage.outgoing, Stage.sent)
        and (each.task_id, each.subtask_id) == (reply.task_id, reply.subtask_id)
    ]
    return without_letters(state, *answered)


def noticed(state: MailboxState, notice: str) -> MailboxState:
    return state.model_copy(update={"notices": (*state.notices, cut(notice, 300))[-MOST_NOTICES:]})
