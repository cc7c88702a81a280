"""What the bridges of a folder are to do next, and what comes of it (C2, C3, C5).

What a letter needs follows from its stage, so an order that was lost is simply made again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice, zip_longest
from typing import TypeVar

from contracts.mail.commands import Carried, CarryRequest, Done, Order, OrderKind
from contracts.mail.delivery import Ack, Letter, LetterEnding, Stage, TaskState
from contracts.mail.mailbox import Looked, LookRequest, MailboxState
from decisions.ids import mail_conversation_id, task_key
from decisions.mailbox.capacity import letter_of, with_letter
from decisions.mailbox.delivery import ending_of, has_passed, moved
from decisions.mailbox.peers import resolved
from decisions.mailbox.state import over, to_end, tried_again

MOST_CARRIED = 25  # orders of one `carry`: few enough that what comes meanwhile is soon in its turn
MOST_RUNNING = 200  # tasks that are at work at once; beyond them, one of each plan that has none at work
LATER, LATEST = timedelta(seconds=5), timedelta(minutes=5)  # what could not be done is ordered again, later and later

FIRST_LOOK, LONGEST_PAUSE = timedelta(seconds=60), timedelta(minutes=15)  # a run that is silent is looked at
TOGETHER = timedelta(seconds=30)  # and with it those that are due this soon
MOST_LOOKED_AT = 100

LOST = LetterEnding(ack=Ack.failed, details="its end is not known", fault="Lost")

T = TypeVar("T")
P = TypeVar("P", Letter, Order)


# what is due


def folders(state: MailboxState) -> Iterator[str]:
    """Those that something may have to be done in, each once."""
    named = chain((each.letter.folder for each in state.orders), (each.folder for each in state.letters))
    return iter(dict.fromkeys(folder for folder in named if folder))


def due(state: MailboxState, folder: str, now: datetime) -> tuple[Order, ...]:
    """The next orders for this folder, some of each sort; of tasks in turn one of each plan, and of each task there."""
    letters = [each for each in state.letters if each.folder == folder and _is_time(each, now)]
    sorts = (
        list(_ready(state, folder, now)),
        _each(OrderKind.take, _takes(state, letters)),
        _each(OrderKind.finish, (each for each in letters if each.stage is Stage.ending)),
        _each(OrderKind.dispatch, (each for each in letters if each.stage is Stage.outgoing)),
        _each(OrderKind.write_state, (each for each in letters if each.untold)),
    )
    return tuple(islice(_in_turn(sorts), MOST_CARRIED))


def _is_time(each: Letter | Order, now: datetime) -> bool:
    return each.not_before is None or each.not_before <= now


def _ready(state: MailboxState, folder: str, now: datetime) -> Iterator[Order]:
    """What is to be done with one file is done in its order."""
    held: list[tuple[str, str, str]] = []
    for each in state.orders:
        if each.letter.folder == folder:
            about = (each.letter.key, each.letter.plan, each.letter.file)
            if _is_time(each, now) and about not in held:
                yield each
            else:
                held.append(about)


def _each(kind: OrderKind, letters: Iterable[Letter]) -> list[Order]:
    return [Order(kind=kind, letter=each) for each in letters]


def _takes(state: MailboxState, letters: Sequence[Letter]) -> Iterator[Letter]:
    """Replies are no work, and work may wait for them: the bound on what is at work does not hold them."""
    at_work = [_plan(each) for each in state.letters if _is_at_work(each)]
    waiting = [each for each in letters if each.stage is Stage.admitted]
    for each in _fairly(waiting, state.served):
        is_more = not each.is_reply and not _is_at_work(each)
        if is_more and len(at_work) >= MOST_RUNNING and _plan(each) in at_work:
            continue
        if is_more:
            at_work.append(_plan(each))
        yield each


def _is_at_work(letter: Letter) -> bool:
    """Also while a bridge takes it, or was lost in doing so."""
    taken = letter.stage is Stage.admitted and has_passed(letter, TaskState.consumed)
    return not letter.is_reply and (taken or letter.stage is Stage.running)


def _fairly(waiting: Sequence[Letter], served: Sequence[str]) -> Iterator[Letter]:
    plans: dict[str, dict[str, list[Letter]]] = {}
    for each in waiting:
        plans.setdefault(_plan(each), {}).setdefault(_task(each), []).append(each)
    turns = {name: turn for turn, name in enumerate(served)}
    of_plans = [
        list(_in_turn([tasks[task] for task in sorted(tasks, key=lambda task: turns.get(task, -1))]))
        for _, tasks in sorted(plans.items(), key=lambda plan: turns.get(plan[0], -1))
    ]
    return _in_turn(of_plans)


def _plan(letter: Letter) -> str:
    return task_key(letter.plan_id, "", None)


def _task(letter: Letter) -> str:
    return task_key(letter.plan_id, letter.task_id, "")


def _in_turn(queues: Sequence[Sequence[T]]) -> Iterator[T]:
    """The first of each, then the second of each."""
    for row in zip_longest(*([(each,) for each in queue] for queue in queues)):
        for cell in row:
            if cell is not None:
                yield cell[0]


def ordered(state: MailboxState, folder: str, now: datetime) -> tuple[MailboxState, CarryRequest]:
    """A letter that is to be taken is consumed with that, and its plan and task are served."""
    orders: list[Order] = []
    for each in due(state, folder, now):
        if each.kind is OrderKind.take:
            consumed = moved(each.letter, TaskState.consumed, now)
            state = _served(with_letter(state, consumed), consumed)
            orders.append(each.model_copy(update={"letter": consumed}))
        else:
            orders.append(each)
    return state, CarryRequest(agent=state.agent, folder=folder, orders=tuple(orders))


def _served(state: MailboxState, letter: Letter) -> MailboxState:
    """Only those matter that have something waiting."""
    names = (_plan(letter), _task(letter))
    waiting = {name for each in state.letters if each.stage is Stage.admitted for name in (_plan(each), _task(each))}
    kept = [name for name in state.served if name in waiting and name not in names]
    return state.model_copy(update={"served": (*kept, *names)})


# what came of it


def carried(state: MailboxState, request: CarryRequest, answer: Carried, now: datetime) -> MailboxState:
    for order, done in zip(request.orders, answer.done, strict=False):
        state = _carried_out(state, order, done, now)
    return state


def _carried_out(state: MailboxState, order: Order, done: Done, now: datetime) -> MailboxState:
    """An order about a letter that is no more, or has gone on to another attempt, changes nothing."""
    changed = _CHANGED.get(order.kind)
    if changed is None:
        later = (_put_off(order, now),) if done.later else ()
        if order not in state.orders:
            return state
        at = state.orders.index(order)
        return state.model_copy(update={"orders": (*state.orders[:at], *later, *state.orders[at + 1 :])})
    letter = letter_of(state, order.letter.key)
    if letter is None or letter.attempt != order.letter.attempt:
        return state
    if done.later:
        return with_letter(state, _put_off(letter, now)) if letter.stage is order.letter.stage else state
    return changed(state, letter, order, done, now)


def _put_off(each: P, now: datetime) -> P:
    longer: int = 2 ** min(each.tries, 10)
    return each.model_copy(update={"not_before": now + min(LATER * longer, LATEST), "tries": each.tries + 1})


def _taken(state: MailboxState, letter: Letter, _: Order, done: Done, now: datetime) -> MailboxState:
    if letter.stage is not Stage.admitted:  # its run has ended meanwhile
        return state
    if done.ending is not None:
        state = to_end(state, letter, done.ending, now)
        return resolved(state, letter) if letter.is_reply and done.ending.ack is Ack.succeeded else state
    if done.run_id is None:
        return with_letter(state, _put_off(letter, now))
    changes = {
        "stage": Stage.running,
        "run_id": done.run_id,
        "heard_at": min(done.at or now, now),
        "not_before": None,
        "untold": done.at is None,
        "looks": 0,
        "tries": 0,
    }
    begun = moved(letter, TaskState.blocked if done.is_blocked else TaskState.running, done.at or now)
    return with_letter(state, begun.model_copy(update=changes))


def _finished(state: MailboxState, letter: Letter, _: Order, done: Done, now: datetime) -> MailboxState:
    if letter.stage is not Stage.ending:
        return state
    if done.again:
        return tried_again(state, letter, now)
    return over(state, letter, done.ending or letter.ending or LOST, now)


def _sent(state: MailboxState, letter: Letter, _: Order, done: Done, now: datetime) -> MailboxState:
    if done.ending is not None:
        return state.model_copy(update={"letters": tuple(each for each in state.letters if each is not letter)})
    return with_letter(state, letter.model_copy(update={"stage": Stage.sent, "heard_at": now, "not_before": None}))


def _written(state: MailboxState, letter: Letter, order: Order, _: Done, __: datetime) -> MailboxState:
    """What it has come to since is to be written once more."""
    untold = letter.untold and letter.transitions != order.letter.transitions
    return with_letter(state, letter.model_copy(update={"untold": untold, "not_before": None, "tries": 0}))


_CHANGED: Mapping[OrderKind, Callable[[MailboxState, Letter, Order, Done, datetime], MailboxState]] = {
    OrderKind.take: _taken,
    OrderKind.finish: _finished,
    OrderKind.dispatch: _sent,
    OrderKind.write_state: _written,
}


# runs that are silent


def stale(state: MailboxState, now: datetime) -> tuple[Letter, ...]:
    """The letters whose runs are to be looked at: the word of their end may have been lost."""
    running = [each for each in state.letters if each.stage is Stage.running and each.run_id is not None]
    if not any(_look_due(each) <= now for each in running):
        return ()
    return tuple(each for each in running if _look_due(each) <= now + TOGETHER)[:MOST_LOOKED_AT]


def _look_due(letter: Letter) -> datetime:
    longer: int = 2 ** min(letter.looks, 10)
    return letter.heard_at + min(FIRST_LOOK * longer, LONGEST_PAUSE)


def look(state: MailboxState, letters: Sequence[Letter]) -> LookRequest:
    return LookRequest(
        run_ids=tuple(each.run_id or "" for each in letters),
        lanes=tuple(mail_conversation_id(state.agent, each.task) for each in letters),
    )


def looked(state: MailboxState, letters: Sequence[Letter], seen: Looked | None, now: datetime) -> MailboxState:
    """What has ended ends; the others are looked at later and later. None: nobody could look."""
    ends = seen.ends if seen is not None else ()
    for each, end in zip_longest(letters, ends[: len(letters)]):
        letter = letter_of(state, each.key)
        if letter is None or letter.stage is not Stage.running or letter.run_id != each.run_id:
            continue
        if end is not None:
            state = to_end(state, letter, ending_of(end), now)
        else:
            state = with_letter(state, letter.model_copy(update={"heard_at": now, "looks": letter.looks + 1}))
    return state


def next_change(state: MailboxState, now: datetime) -> datetime | None:
    """When time itself makes something due; None where it does not."""
    times = [each.not_before for each in state.letters if each.not_before]
    times += [each.not_before for each in state.orders if each.not_before]
    times += [_look_due(each) for each in state.letters if each.stage is Stage.running and each.run_id is not None]
    return min((each for each in times if each > now), default=None)
