"""The rules of an allowance: its windows, its leases, and the marks that people hear of.

A worker spends only what it was granted, so all workers together never spend more than the limit: what is granted and
not spent counts as used, also that of a worker that is gone, until its journal is read or the window ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from perdure.decisions.ids import digest_names
from perdure.features.budgets.contract import (
    USD,
    AllowanceView,
    BudgetAnswer,
    BudgetChange,
    BudgetNews,
    BudgetsState,
    BudgetTurn,
    Credit,
    Every,
    KeyState,
    KeyTurn,
    Measure,
    Occasion,
    Release,
    Terms,
    Window,
    WorkerState,
)

HEARD = 300.0  # seconds without a turn, after which what a worker was granted is shown as unaccounted
LATE = 5.0  # seconds of a rate's window, after which the part of a worker that has not asked is for others
IN_TURN = 90.0  # seconds without a turn, after which a worker gets no part of a rate: longer than its window
FORGOTTEN = timedelta(days=32).total_seconds()  # longer than any window
GONE = timedelta(hours=1).total_seconds()  # longer than a late turn of a worker that has gone can take
CREDIT, MOST_CREDIT = 10, 40  # percent of a keyed allowance: of one worker, and of all of them
WARN, USED_UP = "warn", "used_up"
MAX_KEYS = 10_000  # allowances in use: their state has to fit one payload
METER = "agents"  # the name of the allowances without a limit that count the spend of each agent
PROVIDER = "provider:"  # the front of the names of providers' limits

Workers = Mapping[str, WorkerState]


def budgets_id(task_queue: str) -> str:
    """Return the id of the workflow that has all budgets of a task queue."""
    return f"perdure-budgets:{task_queue}"


def key_of(name: str, measure: Measure, value: str = "") -> str:
    return f"{name}/{measure}/{value}"


def is_budget(name: str) -> bool:
    """Return whether a name is that of a project's budget, and not of an allowance of Perdure's own."""
    return name != METER and not name.startswith(PROVIDER)


def split_key(key: str) -> tuple[str, Measure, str]:
    """Return the budget's name, the measure and the value. Raises ValueError."""
    name, _, rest = key.partition("/")
    measure, _, value = rest.partition("/")
    return name, Measure(measure), value


def holder_of(key: str) -> str:
    """Return the name under which calls wait for an allowance, without blanks."""
    return f"budget:{quote(key, safe='/')}"


def budget_question_id(task_queue: str, key: str, occasion: Occasion) -> str:
    """Return the id of the question that people are asked about an allowance that is used up."""
    name, _, _ = split_key(key)
    return f"budget-{name}-{digest_names(task_queue, key, str(occasion.window), str(occasion.changes), size=6)}"


def release_of(state: BudgetsState, key: str, task_queue: str) -> Release:
    """Return the release of the runs that wait for an allowance, before it is changed."""
    known = state.keys.get(key)
    if known is None or known.used_up is None or not terms_of(state, key).asks:
        return Release(key=key)
    return Release(key=key, question=budget_question_id(task_queue, key, known.used_up))


def window_at(every: Every | None, now: float) -> Window:
    """Return the window of this time."""
    if every is None:
        return Window(start=0)
    if every is Every.minute:
        minute = int(now // 60) * 60
        return Window(start=minute, seconds=max(minute + 60 - now, 0.0))
    at = datetime.fromtimestamp(now, UTC).replace(minute=0, second=0, microsecond=0)
    if every is Every.hour:
        start, end = at, at + timedelta(hours=1)
    else:
        start = at.replace(hour=0)
        match every:
            case Every.day:
                end = start + timedelta(days=1)
            case Every.week:
                start -= timedelta(days=start.weekday())
                end = start + timedelta(days=7)
            case Every.month:
                start = start.replace(day=1)
                end = (start + timedelta(days=32)).replace(day=1)
    return Window(start=int(start.timestamp()), seconds=max(end.timestamp() - now, 0.0))


@dataclass(frozen=True)
class Taken:
    """A turn that was taken: the state after it, its answer, and the news for people."""

    state: BudgetsState
    answer: BudgetAnswer
    news: tuple[BudgetNews, ...] = ()


def settle_and_lease(state: BudgetsState, turn: BudgetTurn, now: float) -> Taken:
    """Settle what the worker has spent, and grant it more where the rest allows. A late turn changes nothing.

    A worker whose turns the entity does not know is taken at its word: it holds what an earlier entity has granted.
    """
    seen = state.workers.get(turn.worker)
    is_late = seen is not None and turn.seq <= seen.seq
    keys, news = dict[str, KeyState](), list[BudgetNews]()
    if not is_late:
        state = _register(state, turn, now)
        for key, asked in turn.keys.items():
            if key not in state.keys and len(state.keys) + len(keys) >= MAX_KEYS:
                continue
            after = _settle_key(state, key, turn.worker, asked, now)
            marks = [mark for mark in _marks_reached(after, terms_of(state, key)) if mark not in after.announced]
            view = view_of(key, after, state, now)
            news += (BudgetNews(allowance=view, mark=mark, window=after.window) for mark in marks)
            keys[key] = after.evolve(announced=(*after.announced, *marks)) if marks else after
            state = _close_credit(state, key, after, turn.worker)
        state = state.evolve(keys={**state.keys, **keys})
    everies = {terms.every for terms in turn.terms.values()}
    answer = BudgetAnswer(
        granted={key: keys[key].holdings.get(turn.worker, (0, 0))[0] for key in turn.keys if key in keys},
        used_up={key: after.used_up for key, after in keys.items() if after.used_up is not None},
        stopped=tuple(key for key, after in keys.items() if after.is_stopped),
        windows={every or "": _window_of(state, turn.worker, every, now) for every in everies},
        changes=state.changes,
    )
    return Taken(state, answer, tuple(news))


def _window_of(state: BudgetsState, worker: str, every: Every | None, now: float) -> Window:
    window, credit = window_at(every, now), state.credits.get(every or "")
    may_spend = credit is not None and credit.window == window.start and worker in credit.workers
    return window.evolve(credit=credit.percent) if credit is not None and may_spend else window


def _register(state: BudgetsState, turn: BudgetTurn, now: float) -> BudgetsState:
    """Record the worker's turn, and its credit in the windows of now."""
    worker = WorkerState(seq=turn.seq, at=now, is_gone=turn.is_last)
    workers = {**state.workers, turn.worker: worker}
    credits_ = dict(state.credits)
    everies = {terms.every for terms in turn.terms.values() if terms.has_credit and terms.every is not None}
    for every in () if turn.is_last else everies:
        credits_[every] = _extend_credit(credits_.get(every), window_at(every, now).start, turn.worker, workers, now)
    return state.evolve(terms={**state.terms, **turn.terms}, workers=workers, credits=credits_)


def _extend_credit(known: Credit | None, window: int, worker: str, workers: Workers, now: float) -> Credit:
    """Return a window's credit: of the workers that live as it begins, and of others while none was granted more."""
    if known is None or known.window != window:
        alive = [name for name, each in workers.items() if name != worker and _is_alive(each, now)]
        alive = [worker, *alive][:MOST_CREDIT]
        return Credit(window=window, percent=min(CREDIT, MOST_CREDIT // len(alive)), workers=tuple(alive))
    has_room = known.percent * (len(known.workers) + 1) <= MOST_CREDIT
    if worker in known.workers or known.is_closed or not has_room:
        return known
    return known.evolve(workers=(*known.workers, worker))


def _close_credit(state: BudgetsState, key: str, after: KeyState, worker: str) -> BudgetsState:
    """Give no more credit in a window of which the worker was granted more than its own."""
    terms = terms_of(state, key)
    every, granted = terms.every or "", after.holdings[worker][0]
    credit = state.credits.get(every)
    if credit is None or credit.is_closed or granted <= _credit(after, terms, state, worker):
        return state
    return state.evolve(credits={**state.credits, every: credit.evolve(is_closed=True)})


def _is_alive(worker: WorkerState, now: float, heard: float = HEARD) -> bool:
    return now - worker.at < heard and not worker.is_gone


def terms_of(state: BudgetsState, key: str) -> Terms:
    name, measure, _ = split_key(key)
    return state.terms.get(f"{name}/{measure}", Terms())


def current_key(state: BudgetsState, key: str, now: float) -> KeyState:
    """Return the allowance in the window of now: nothing is carried over to another window."""
    known, window = state.keys.get(key), window_at(terms_of(state, key).every, now).start
    return known if known is not None and known.window == window else KeyState(window=window)


def _settle_key(state: BudgetsState, name: str, worker: str, asked: KeyTurn, now: float) -> KeyState:
    key, terms = current_key(state, name, now), terms_of(state, name)
    granted, spent = key.holdings.get(worker, (0, 0))
    if asked.window == key.window:
        key = key.evolve(spent=key.spent + asked.spent - spent)
        granted, spent = max(asked.keep, asked.spent), asked.spent
    key = key.evolve(holdings={**key.holdings, worker: (granted, spent)})
    credit = _credit(key, terms, state, worker)
    if not asked.want or terms.limit is None or credit - granted >= asked.most > 0:  # its credit covers the call
        return key
    left = rest_of(key, terms, state) - (_expected(key, terms, state, now) if terms.is_rate and granted else 0)
    if left < asked.most:
        limit = terms.limit + key.raised
        now_used_up = Occasion(window=key.window, used=key.spent, limit=limit, changes=state.changes)
        return key.evolve(used_up=key.used_up or now_used_up)
    block = min(asked.want, left, max(_part_of(left, granted, terms, state, now), asked.most))
    return key.evolve(holdings={**key.holdings, worker: (max(granted, credit) + block, spent)})


def _expected(key: KeyState, terms: Terms, state: BudgetsState, now: float) -> int:
    """Return the parts of a rate that other workers will ask for, as its window has just begun."""
    if now - key.window > LATE:
        return 0
    active = [name for name, worker in state.workers.items() if _is_alive(worker, now, IN_TURN)]
    missing = sum(key.holdings.get(name, (0, 0))[0] == 0 for name in active)
    return missing * ((terms.limit or 0) // max(len(active), 1))


def _part_of(left: int, granted: int, terms: Terms, state: BudgetsState, now: float) -> int:
    """Return the most that a worker is granted at once: less and less, so that the end of it is shared, too."""
    if terms.is_rate:
        active = sum(_is_alive(other, now, IN_TURN) for other in state.workers.values())
        return (left if granted else terms.limit or 0) // max(active, 1)
    active = sum(_is_alive(other, now) for other in state.workers.values())
    return left // (2 * max(active, 1))


def rest_of(key: KeyState, terms: Terms, state: BudgetsState) -> int:
    """Return what is left to grant: what a worker holds, or may have spent unasked, is taken."""
    held = (_outstanding(key, terms, state, name) for name in _holders(key, terms, state))
    return (terms.limit or 0) + key.raised - key.spent - key.lost - sum(held)


def _holders(key: KeyState, terms: Terms, state: BudgetsState) -> Iterable[str]:
    credit = state.credits.get(terms.every or "") if terms.has_credit else None
    return dict.fromkeys((*key.holdings, *credit.workers)) if credit else key.holdings


def _outstanding(key: KeyState, terms: Terms, state: BudgetsState, worker: str) -> int:
    granted, spent = key.holdings.get(worker, (0, 0))
    return max(granted, _credit(key, terms, state, worker), spent) - spent


def _credit(key: KeyState, terms: Terms, state: BudgetsState, worker: str) -> int:
    """Return what the worker may spend in the key's window unasked; a worker that is gone spends nothing more."""
    credit, known = state.credits.get(terms.every or ""), state.workers.get(worker)
    if credit is None or credit.window != key.window or worker not in credit.workers or (known and known.is_gone):
        return 0
    return credit_of(terms, credit.percent)


def credit_of(terms: Terms, percent: int) -> int:
    """Return what a worker may spend of an allowance unasked."""
    return (terms.limit or 0) * percent // 100 if terms.has_credit else 0


def _marks_reached(key: KeyState, terms: Terms) -> tuple[str, ...]:
    """Return the marks: an allowance is used up once a call is refused, which the rest does not cover."""
    if terms.limit is None or terms.is_rate:
        return ()
    warns = terms.warn_at is not None and key.spent * 100 >= (terms.limit + key.raised) * terms.warn_at
    return (*((WARN,) if warns else ()), *((USED_UP,) if key.used_up else ()))


def change_budget(state: BudgetsState, change: BudgetChange, now: float) -> BudgetsState:
    """Raise an allowance in its window; by nothing, reset it: all of it is there again. Who waits for it may go on."""
    name, measure, _ = split_key(change.key)
    state = state.evolve(terms={f"{name}/{measure}": change.terms, **state.terms}, changes=state.changes + 1)
    key = current_key(state, change.key, now)
    if change.stops:
        return state.evolve(keys={**state.keys, change.key: key.evolve(is_stopped=True)})
    key = key.evolve(raised=key.raised + change.amount) if change.amount else key.evolve(spent=0, lost=0)
    key = key.evolve(used_up=None, is_stopped=False)
    key = key.evolve(announced=_marks_reached(key, terms_of(state, change.key)))  # the others are news again
    return state.evolve(keys={**state.keys, change.key: key})


def is_late(state: BudgetsState, change: BudgetChange, now: float) -> bool:
    """Return whether the change answers a question about an occasion that is over."""
    if change.only_after is None:
        return False
    occasion = current_key(state, change.key, now).used_up
    return occasion is None or occasion.changes != change.only_after


def refuse_change(state: BudgetsState, change: BudgetChange) -> str | None:
    """Return the reason to refuse a change, if there is one: `raise_by` names the groups that may make it."""
    try:
        name, measure, _ = split_key(change.key)
    except ValueError:
        return f"{change.key!r} is no allowance: expected name/measure/value"
    terms = state.terms.get(f"{name}/{measure}", change.terms)
    if terms.limit is None:
        return f"{name} has no limit"
    groups = set(change.sender.groups if change.sender else ())
    if terms.raise_by and groups.isdisjoint(terms.raise_by):
        return f"budget {name} is raised and reset by {' or '.join(terms.raise_by)}"
    return None


def ended_waits(state: BudgetsState, now: float) -> tuple[str, ...]:
    """Return the used up allowances that runs wait for and whose window has ended."""
    used_up = (name for name, key in state.keys.items() if key.used_up and terms_of(state, name).waits)
    return tuple(name for name in used_up if current_key(state, name, now) is not state.keys[name])


def seconds_to_next_end(state: BudgetsState, now: float) -> float | None:
    """Return the seconds until the first window ends that runs wait for, if there is one."""
    waited = (terms_of(state, name) for name, key in state.keys.items() if key.used_up)
    ends = (window_at(terms.every, now).seconds for terms in waited if terms.waits)
    return min((seconds for seconds in ends if seconds is not None), default=None)


def drop_old(state: BudgetsState, now: float) -> BudgetsState:
    """Drop allowances whose window is over, and workers that went; what one that was lost held counts as spent."""
    ages = {name: (now - worker.at, GONE if worker.is_gone else FORGOTTEN) for name, worker in state.workers.items()}
    dropped = {name for name, (age, most) in ages.items() if age > most}
    current = {name: key for name, key in state.keys.items() if current_key(state, name, now) is key}
    keys = {name: _without(key, terms_of(state, name), state, dropped) for name, key in current.items()}
    workers = {name: worker for name, worker in state.workers.items() if name not in dropped}
    terms = {name: terms for name, terms in state.terms.items() if any(key.startswith(f"{name}/") for key in keys)}
    return state.evolve(terms=terms, keys=keys, workers=workers)


def _without(key: KeyState, terms: Terms, state: BudgetsState, dropped: set[str]) -> KeyState:
    lost = sum(_outstanding(key, terms, state, name) for name in key.holdings if name in dropped)
    holdings = {name: held for name, held in key.holdings.items() if name not in dropped}
    return key.evolve(holdings=holdings, lost=key.lost + lost)


def view_of(name: str, key: KeyState, state: BudgetsState, now: float) -> AllowanceView:
    """Return an allowance as people see it."""
    (budget, measure, value), terms = split_key(name), terms_of(state, name)
    known = ((name, state.workers.get(name)) for name in _holders(key, terms, state))
    held = [(_outstanding(key, terms, state, name), worker) for name, worker in known]
    unheard = sum(left for left, worker in held if worker is None or now - worker.at >= HEARD)
    return AllowanceView(
        name=budget,
        measure=measure,
        value=value,
        limit=None if terms.limit is None else terms.limit + key.raised,
        used=key.spent,
        raised=key.raised,
        leased=sum(left for left, _ in held) - unheard,
        unaccounted=unheard + key.lost,
        resets_in=window_at(terms.every, now).seconds,
        is_used_up=key.used_up is not None,
    )


def view_all(state: BudgetsState, now: float) -> list[AllowanceView]:
    """Return the allowances in the windows of now, by their keys."""
    return [view_of(name, current_key(state, name, now), state, now) for name in sorted(state.keys)]


def format_amount(measure: Measure, amount: int) -> str:
    """Format an amount: "USD 12.34", "1,200 tokens"."""
    return f"USD {_format_usd(amount)}" if measure is Measure.usd else f"{amount:,} {measure}"


def format_share(measure: Measure, used: int, limit: int) -> str:
    """Format an amount of another one: "USD 12.34 of 50", "200 of 1,200 tokens"."""
    if measure is Measure.usd:
        return f"USD {_format_usd(used)} of {_format_usd(limit)}"
    return f"{used:,} of {limit:,} {measure}"


def _format_usd(amount: int) -> str:
    return f"{amount / USD:,.4f}".rstrip("0").rstrip(".")


def format_whose(name: str, value: str) -> str:
    """Format a budget's name and whose allowance it is."""
    return f"{name} of {value}" if value else name
