"""The next orders for a folder's bridges, and their results (C2, C3, C5).

The orders for a letter follow from its stage, so a lost order is simply issued again.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice, zip_longest
from typing import TypeVar

from contracts.mail.commands import BridgeBatch, BridgeResult, BridgeResults, BridgeTask, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Stage, TaskState
from contracts.mail.mailbox import MailboxState, TurnLookup, TurnLookupRequest
from decisions.ids import mail_conversation_id, task_key
from decisions.mailbox.capacity import find_letter, remove_letters, replace_letter
from decisions.mailbox.delivery import add_transition, ending_of, is_taken
from decisions.mailbox.peers import close_answered
from decisions.mailbox.state import finish_letter, retry_letter, to_end

MAX_BATCH = 25  # orders of one `carry`: few, so that new messages do not wait long
MAX_RUNNING = 200  # tasks that run at once; beyond them, one of each plan that has none running
LATER, LATEST = timedelta(seconds=5), timedelta(minutes=5)  # an order that failed is issued again, with growing delays

FIRST_LOOK, LONGEST_PAUSE = timedelta(seconds=60), timedelta(minutes=15)  # until a silent run is looked up
TOGETHER = timedelta(seconds=30)  # runs that are due this soon are looked up with it
MAX_LOOKED_AT = 100

LOST = MessageResult(ack=Ack.failed, details="its end is not known", fault="Lost")

_OF_LETTERS = {BridgeTaskKind.take, BridgeTaskKind.finish, BridgeTaskKind.dispatch, BridgeTaskKind.write_state}

T = TypeVar("T")
P = TypeVar("P", InboxMessage, BridgeTask)


# orders


def folders_with_work(state: MailboxState) -> Iterator[str]:
    """Yield the folders that may have orders, each once."""
    names = chain((item.letter.folder for item in state.orders), (item.folder for item in state.letters))
    return iter(dict.fromkeys(folder for folder in names if folder))


def next_orders(state: MailboxState, folder: str, now: datetime) -> tuple[BridgeTask, ...]:
    """Return the next orders for this folder, one of each sort in turn. Plans take turns, and so do their tasks."""
    letters = [letter for letter in state.letters if letter.folder == folder and _is_time(letter, now)]
    due = {
        BridgeTaskKind.take: _letters_to_take(state, letters),
        BridgeTaskKind.finish: (letter for letter in letters if letter.stage is Stage.ending),
        BridgeTaskKind.dispatch: (letter for letter in letters if letter.stage is Stage.outgoing),
        BridgeTaskKind.write_state: (letter for letter in letters if letter.untold),
    }
    orders = [[BridgeTask(kind=kind, letter=letter) for letter in group] for kind, group in due.items()]
    return tuple(islice(_in_turn([list(_ready_orders(state, folder, now)), *orders]), MAX_BATCH))


def _is_time(item: InboxMessage | BridgeTask, now: datetime) -> bool:
    return item.not_before is None or item.not_before <= now


def _ready_orders(state: MailboxState, folder: str, now: datetime) -> Iterator[BridgeTask]:
    """Yield the orders that are ready. Orders about one file keep their sequence."""
    held: list[tuple[str, str, str]] = []
    for order in state.orders:
        if order.letter.folder == folder:
            file = (order.letter.key, order.letter.plan, order.letter.file)
            if _is_time(order, now) and file not in held:
                yield order
            else:
                held.append(file)


def _letters_to_take(state: MailboxState, letters: Sequence[InboxMessage]) -> Iterator[InboxMessage]:
    """Yield the letters to take. Replies are exempt from the limit on running tasks, which may wait for them."""
    at_work = [_plan_key(letter) for letter in state.letters if is_taken(letter) and not letter.is_reply]
    waiting = [letter for letter in letters if letter.stage is Stage.admitted]
    for letter in _in_fair_order(waiting, state.served):
        is_more = not letter.is_reply and not is_taken(letter)
        if is_more and len(at_work) >= MAX_RUNNING and _plan_key(letter) in at_work:
            continue
        if is_more:
            at_work.append(_plan_key(letter))
        yield letter


def _in_fair_order(waiting: Sequence[InboxMessage], served: Sequence[str]) -> Iterator[InboxMessage]:
    plans: dict[str, dict[str, list[InboxMessage]]] = {}
    for letter in waiting:
        plans.setdefault(_plan_key(letter), {}).setdefault(_task_key(letter), []).append(letter)
    turns = {name: turn for turn, name in enumerate(served)}
    of_plans = [
        list(_in_turn([tasks[task] for task in sorted(tasks, key=lambda task: turns.get(task, -1))]))
        for _, tasks in sorted(plans.items(), key=lambda plan: turns.get(plan[0], -1))
    ]
    return _in_turn(of_plans)


def _plan_key(letter: InboxMessage) -> str:
    return task_key(letter.plan_id, "", None)


def _task_key(letter: InboxMessage) -> str:
    return task_key(letter.plan_id, letter.task_id, "")


def _in_turn(queues: Sequence[Sequence[T]]) -> Iterator[T]:
    """Yield the first item of each queue, then the second of each."""
    for row in zip_longest(*([(item,) for item in queue] for queue in queues)):
        for cell in row:
            if cell is not None:
                yield cell[0]


def issue_batch(state: MailboxState, folder: str, now: datetime) -> tuple[MailboxState, BridgeBatch]:
    """Return the next batch. A letter that it takes is consumed from then on, and its plan and task count as served."""
    orders: list[BridgeTask] = []
    for order in next_orders(state, folder, now):
        if order.kind is BridgeTaskKind.take:
            consumed = add_transition(order.letter, TaskState.consumed, now)
            state = _record_served(replace_letter(state, consumed), consumed)
            orders.append(order.model_copy(update={"letter": consumed}))
        else:
            orders.append(order)
    return state, BridgeBatch(agent=state.agent, folder=folder, orders=tuple(orders))


def _record_served(state: MailboxState, letter: InboxMessage) -> MailboxState:
    """Record a turn of the letter's plan and task. Only names with waiting letters are stored."""
    names = (_plan_key(letter), _task_key(letter))
    waiting = {
        name for one in state.letters if one.stage is Stage.admitted for name in (_plan_key(one), _task_key(one))
    }
    earlier = [name for name in state.served if name in waiting and name not in names]
    return state.model_copy(update={"served": (*earlier, *names)})


# results


def apply_results(state: MailboxState, request: BridgeBatch, answer: BridgeResults, now: datetime) -> MailboxState:
    for order, done in zip(request.orders, answer.done, strict=False):
        state = _apply_result(state, order, done, now)
    return state


def _apply_result(state: MailboxState, order: BridgeTask, done: BridgeResult, now: datetime) -> MailboxState:
    """Apply the result of one order. If its letter is gone, or in another attempt, the result changes nothing."""
    if order in state.orders:
        at, later = state.orders.index(order), (_delay(order, now),) if done.later else ()
        return state.model_copy(update={"orders": (*state.orders[:at], *later, *state.orders[at + 1 :])})
    letter = find_letter(state, order.letter.key)
    if letter is None or letter.attempt != order.letter.attempt or order.kind not in _OF_LETTERS:
        return state
    if done.later:
        return replace_letter(state, _delay(letter, now)) if letter.stage is order.letter.stage else state
    match order.kind:
        case BridgeTaskKind.take if letter.stage is Stage.admitted:  # otherwise its run has ended in the meantime
            state = _apply_take(state, letter, done, now)
        case BridgeTaskKind.finish if letter.stage is Stage.ending and done.again:
            state = retry_letter(state, letter, now)
        case BridgeTaskKind.finish if letter.stage is Stage.ending:
            state = finish_letter(state, letter, done.ending or letter.ending or LOST, now)
        case BridgeTaskKind.dispatch if done.ending is not None:
            state = remove_letters(state, letter)
        case BridgeTaskKind.dispatch:
            state = replace_letter(state, letter, stage=Stage.sent, heard_at=now, not_before=None)
        case BridgeTaskKind.write_state:  # if the letter changed since the order, it is written again
            untold = letter.untold and letter.transitions != order.letter.transitions
            state = replace_letter(state, letter, untold=untold, not_before=None, tries=0)
        case _:
            pass
    return state


def _delay(item: P, now: datetime) -> P:
    factor: int = 2 ** min(item.tries, 10)
    return item.model_copy(update={"not_before": now + min(LATER * factor, LATEST), "tries": item.tries + 1})


def _apply_take(state: MailboxState, letter: InboxMessage, done: BridgeResult, now: datetime) -> MailboxState:
    if done.ending is not None:
        state = to_end(state, letter, done.ending, now)
        return close_answered(state, letter) if letter.is_reply and done.ending.ack is Ack.succeeded else state
    if done.run_id is None:
        return replace_letter(state, _delay(letter, now))
    begun = add_transition(letter, TaskState.blocked if done.is_blocked else TaskState.running, done.at or now)
    begun = begun.model_copy(update={"run_id": done.run_id, "heard_at": min(done.at or now, now)})
    untold = done.at is None
    return replace_letter(state, begun, stage=Stage.running, not_before=None, untold=untold, looks=0, tries=0)


# silent runs


def stale_letters(state: MailboxState, now: datetime) -> tuple[InboxMessage, ...]:
    """Return the letters whose runs are due for a look: the signal of their end may have been lost."""
    running = [letter for letter in state.letters if letter.stage is Stage.running and letter.run_id is not None]
    if not any(_look_due(letter) <= now for letter in running):
        return ()
    return tuple(letter for letter in running if _look_due(letter) <= now + TOGETHER)[:MAX_LOOKED_AT]


def _look_due(letter: InboxMessage) -> datetime:
    factor: int = 2 ** min(letter.looks, 10)
    return letter.heard_at + min(FIRST_LOOK * factor, LONGEST_PAUSE)


def build_look_request(state: MailboxState, letters: Sequence[InboxMessage]) -> TurnLookupRequest:
    return TurnLookupRequest(
        run_ids=tuple(letter.run_id or "" for letter in letters),
        lanes=tuple(mail_conversation_id(state.agent, letter.task) for letter in letters),
    )


def apply_look(
    state: MailboxState, letters: Sequence[InboxMessage], seen: TurnLookup | None, now: datetime
) -> MailboxState:
    """End the letters whose runs have ended; look at the others later. `seen` is missing if the look failed."""
    ends = seen.ends if seen is not None else ()
    for silent, end in zip_longest(letters, ends[: len(letters)]):
        letter = find_letter(state, silent.key)
        if letter is None or letter.stage is not Stage.running or letter.run_id != silent.run_id:
            continue
        if end is not None:
            state = to_end(state, letter, ending_of(end), now)
        else:
            state = replace_letter(state, letter, heard_at=now, looks=letter.looks + 1)
    return state


def next_change(state: MailboxState, now: datetime) -> datetime | None:
    """Return the next time at which something becomes due, if any."""
    times = [letter.not_before for letter in state.letters if letter.not_before]
    times += [order.not_before for order in state.orders if order.not_before]
    times += [_look_due(one) for one in state.letters if one.stage is Stage.running and one.run_id is not None]
    return min((time for time in times if time > now), default=None)
