"""A worker's purse: what it holds of each allowance. Each call of a model is reserved before, and charged after it.

One turn carries all allowances of the worker, and one is in flight at a time: Temporal takes ten updates of a workflow
at once. While the entity does not answer, what the purse holds may be spent; then calls wait.
"""

import asyncio
import logging
import random
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.temporal import start_entity
from perdure.contracts.bounds import Backoff
from perdure.features.budgets.contract import BudgetAnswer, BudgetsState, BudgetTurn, KeyTurn, Occasion, Terms
from perdure.features.budgets.journal import Bounds, Costs, Entries, Reservation, SpendJournal, open_left
from perdure.features.budgets.rules import budgets_id, credit_of, split_key
from perdure.features.budgets.workflow import CHANGES

CALLS_A_BLOCK = 20
EARLY = 0.25  # of a block: with less left, the next one is fetched beside the calls
IDLE = 30.0  # seconds without a call, after which a turn settles and gives back
CHECK_EVERY = 5.0  # seconds between checks for what is idle
FIRST_ASKED = 8  # the part of a rate that a worker asks for at first is one of so many
LEAN = Backoff(6.0, 60.0)  # until a worker asks for more of a rate again, after it got nothing
SWEEP_EVERY = 60.0  # seconds between checks for journals of workers that are gone
TURN_TIMEOUT = timedelta(seconds=5)
LAST_TIMEOUT = timedelta(seconds=2)  # of the turns of a worker that stops: there may be no other to answer
AWAY_PAUSES = Backoff(1.0, 30.0)  # between turns that get no answer
HEAR_EVERY = 1.0  # seconds between checks whether a refused allowance was raised
SPREAD = 0.5  # seconds over which workers ask at the turn of a window, when all do
MOST_KEYS = 500  # of a turn, besides those that it asks for

_UNANSWERED = (
    RPCError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowQueryFailedError,
)
_log = logging.getLogger(__name__)


class AwayError(Exception):
    """The entity does not answer. The message says why."""


class UsedUpError(Exception):
    """The rest of an allowance does not cover a call. `seconds`: until its window ends, None: it never does.

    `occasion` is the entity's word of it. `is_stopped`: a person has answered that runs end then.
    """

    def __init__(self, key: str, seconds: float | None, occasion: Occasion | None, *, is_stopped: bool) -> None:
        super().__init__(key)
        self.key, self.seconds, self.occasion, self.is_stopped = key, seconds, occasion, is_stopped


@dataclass(frozen=True)
class Need:
    """The bound of a call's cost in one allowance; `waiting` calls need a larger part of a rate."""

    terms: Terms
    most: int
    waiting: int = 0


@dataclass(frozen=True)
class KnownWindow:
    """A window: its start, its end by the worker's clock, and the percentage that the worker may spend unasked."""

    start: int
    end: float
    credit: int


NO_WINDOW = KnownWindow(-1, 0.0, 0)


@dataclass
class Pot:
    """A worker's holding of one allowance, in one window. `settled` is the sum that the entity knows."""

    terms: Terms
    window: int = -1
    granted: int = 0
    spent: int = 0
    settled: int = 0
    reserved: int = 0
    mean: float = 0.0
    used_up: Occasion | None = None
    is_denied: bool = False
    is_stopped: bool = False
    leans: int = 0  # blocks that covered no call: for a while, more are not fetched early
    lean_until: float = 0.0


@dataclass
class Purse:
    """The purse of one worker. `terms` are those of its project, by `name/measure`.

    `folder` is where its journal is; None: it has no disk, and what it holds may be lost.
    """

    client: Client
    task_queue: str
    terms: Mapping[str, Terms]
    folder: Path | None
    worker: str = field(default_factory=lambda: f"{socket.gethostname()[:20]}-{secrets.token_hex(3)}")
    _pots: dict[str, Pot] = field(default_factory=dict)
    _windows: dict[str, "KnownWindow"] = field(default_factory=dict)  # by `every`
    _wants: dict[str, Need] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set["asyncio.Task[Any]"] = field(default_factory=set)
    _journal: SpendJournal | None = None
    _seq: int = 0
    _changes: int = 0
    _failures: int = 0
    _away_until: float = 0.0
    _heard_at: float = 0.0
    _used_at: float = 0.0
    _swept_at: float = 0.0
    _is_closed: bool = False

    async def reserve(self, needs: Mapping[str, Need]) -> Reservation:
        """Reserve the bounds of a call. Raises UsedUpError, AwayError, and OSError if the journal takes no line."""
        if self._is_closed:
            raise AwayError("the worker stops")
        while short := {key: need for key, need in needs.items() if self._free(key, need.terms) < need.most}:
            denied = next((key for key in short if self._pots[key].is_denied), None)
            if denied is None:
                await self._refill(short)
            elif short[denied].terms.is_rate or not await self._was_changed():
                pot = self._pots[denied]
                raise UsedUpError(denied, self._seconds_left(pot.terms), pot.used_up, is_stopped=pot.is_stopped)
        bounds = {key: (self._pot(key, need.terms).window, need.most) for key, need in needs.items()}
        reservation = self._record(bounds, needs)
        for key, need in needs.items():
            self._pots[key].reserved += need.most
        self._used_at = time.monotonic()
        self._fetch_early(needs)
        return reservation

    def _record(self, bounds: Bounds, needs: Mapping[str, Need]) -> Reservation:
        """Write the reservation to the journal. A rate needs none: its window is over within a minute."""
        if all(need.terms.is_rate for need in needs.values()):
            return Reservation(0, bounds)
        self._open_journal()
        return self._journal.reserve(bounds) if self._journal else Reservation(0, bounds)

    def granted(self, key: str) -> int:
        """Return what the worker was granted of an allowance in the last window that it knows of."""
        pot = self._pots.get(key)
        return pot.granted if pot else 0

    def is_in_use(self, key: str) -> bool:
        """Return whether calls are in flight, which may cost less than was reserved for them."""
        pot = self._pots.get(key)
        return pot is not None and pot.reserved > 0

    def mean_cost(self, key: str) -> float:
        """Return the mean cost of a call in an allowance; 0 before the first."""
        pot = self._pots.get(key)
        return pot.mean if pot else 0.0

    def charge(self, reservation: Reservation, costs: Costs) -> None:
        """Charge a call that has ended; an allowance that `costs` does not name is charged the bound."""
        for key, (window, most) in reservation.bounds.items():
            pot, cost = self._pots.get(key, Pot(Terms())), costs.get(key, most)
            if pot.window == window:  # else the window that admitted the call is over
                pot.reserved -= most
                pot.spent += cost
            pot.mean = 0.9 * pot.mean + 0.1 * cost if pot.mean else float(cost)
        self._used_at = time.monotonic()
        if self._journal is not None and reservation.number:
            try:
                self._journal.charge(reservation, costs)
            except OSError as error:  # the journal keeps the bound
                _log.warning("the journal of budgets takes no line: %s", error)

    def _pot(self, key: str, terms: Terms) -> Pot:
        """Return the pot in the window that the worker knows; nothing is carried over to another window."""
        pot = self._pots.setdefault(key, Pot(terms))
        window = self._windows.get(terms.every or "", NO_WINDOW).start
        if pot.window != window:
            pot = self._pots[key] = Pot(terms, window=window, mean=pot.mean)
        return pot

    def _free(self, key: str, terms: Terms) -> int:
        """Return what the worker may still spend; less than nothing if it does not know the window."""
        pot = self._pot(key, terms)
        if not self._knows_window(terms):
            pot.is_denied = False  # it was for that window
            return -1
        if terms.limit is None:
            return sys.maxsize
        known = self._windows[terms.every or ""]
        return max(pot.granted, credit_of(terms, known.credit)) - pot.spent - pot.reserved

    def _knows_window(self, terms: Terms) -> bool:
        return time.monotonic() < self._windows.get(terms.every or "", NO_WINDOW).end

    def _seconds_left(self, terms: Terms) -> float | None:
        end = self._windows[terms.every or ""].end
        return None if terms.every is None else max(end - time.monotonic(), 0.0)

    def _fetch_early(self, needs: Mapping[str, Need]) -> None:
        """Fetch the next blocks beside the calls, so that none waits for a turn. A credit is spent without any."""
        now = time.monotonic()
        low = {
            key: replace(need, most=0)
            for key, need in needs.items()
            if not ((pot := self._pots[key]).is_denied or pot.lean_until > now)
            if not need.terms.has_credit or (pot.granted and pot.spent)  # of one of many, a second call is rare
            if need.waiting or self._free(key, need.terms) < EARLY * CALLS_A_BLOCK * (pot.mean or need.most)
        }
        if low and not self._lock.locked() and now >= self._away_until:
            task = asyncio.create_task(self._refill(low, is_early=True))
            self._tasks.add(task)
            task.add_done_callback(self._forget_task)

    def _forget_task(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.debug("budgets: %s", error)

    async def _refill(self, needs: Mapping[str, Need], *, is_early: bool = False) -> None:
        """Ask for more, together with all that waits for the turn in flight. Raises AwayError."""
        for key, need in needs.items():
            waiting = self._wants.get(key)
            self._wants[key] = need if waiting is None or waiting.most < need.most else waiting
        async with self._lock:
            wants, self._wants = self._wants, {}
            if not is_early and all(self._free(key, need.terms) >= need.most for key, need in needs.items()):
                self._wants = {key: need for key, need in wants.items() if key not in needs}
                return  # the turn in flight has brought it
            await self._spread_out(wants)
            before = {key: (pot.window, pot.granted) for key in wants if (pot := self._pots.get(key))}
            await self.take_turn(wants)
            for key, need in wants.items():
                pot = self._pot(key, need.terms)
                pot.is_denied = not is_early and self._free(key, need.terms) < need.most
                window, granted = before.get(key, (-1, 0))
                more = pot.granted - (granted if window == pot.window else 0)
                if more < (pot.mean or need.most):
                    pause = LEAN.seconds(pot.leans + 1) if need.terms.is_rate else sys.maxsize
                    pot.leans, pot.lean_until = pot.leans + 1, time.monotonic() + pause

    async def _spread_out(self, wants: Mapping[str, Need]) -> None:
        """Wait a moment at the turn of a window, when all workers ask at once."""
        ends = [
            self._windows[every].end for need in wants.values() if (every := need.terms.every or "") in self._windows
        ]
        if any(end <= time.monotonic() for end in ends):
            await asyncio.sleep(random.uniform(0.0, SPREAD))  # noqa: S311 - spreads load, guards nothing

    async def take_turn(
        self,
        wants: Mapping[str, Need],
        *,
        gives_back: bool = False,
        is_last: bool = False,
        within: timedelta = TURN_TIMEOUT,
    ) -> None:
        """Settle, ask for more, and give back what cannot be used. Raises AwayError. One at a time."""
        if (pause := self._away_until - time.monotonic()) > 0:
            raise AwayError(f"the workflow of the budgets did not answer; the next turn is in {pause:.0f} s")
        keys = {
            key: self._key_turn(key, wants.get(key), gives_back=gives_back)
            for key in self._keys_to_settle(wants, gives_back=gives_back)
        }
        sent = {key: asked.spent for key, asked in keys.items()}
        terms = {key: self._pots[key].terms for key in keys}
        by_budget = {_budget_of(key): each for key, each in terms.items()}
        turn = BudgetTurn(worker=self.worker, seq=self._next_seq(), terms=by_budget, keys=keys, is_last=is_last)
        began = time.monotonic()  # before it is sent: windows end no later than the entity says
        answer = await self._send(turn, within)
        for every, window in answer.windows.items():
            end = float("inf") if window.seconds is None else began + window.seconds
            self._windows[every] = KnownWindow(window.start, end, window.credit)
        for key, granted in answer.granted.items():
            pot = self._pot(key, terms[key])
            pot.granted, pot.is_stopped, pot.used_up = granted, key in answer.stopped, answer.used_up.get(key)
            if pot.window == keys[key].window:
                pot.settled = sent[key]
        self._note_changes(answer.changes)

    def _keys_to_settle(self, wants: Mapping[str, Need], *, gives_back: bool) -> list[str]:
        for key, need in wants.items():
            self._pot(key, need.terms)
        dirty = [key for key, pot in self._pots.items() if key not in wants and _is_dirty(pot, gives_back=gives_back)]
        return [*wants, *dirty[:MOST_KEYS]]

    def _key_turn(self, key: str, need: Need | None, *, gives_back: bool) -> KeyTurn:
        """Return the worker's part of the turn. What it gives back it does not spend from now on."""
        pot = self._pots[key]
        held = pot.spent + pot.reserved
        is_scrap = need is not None and not pot.reserved and pot.granted - held < need.most
        if gives_back or is_scrap:
            pot.granted = held
        want = 0 if need is None else max(int(CALLS_A_BLOCK * (pot.mean or need.most)), need.most)
        if need is not None and need.terms.is_rate:
            spent = 0 if self._knows_window(pot.terms) else pot.spent  # in the window that is over
            first = 0 if pot.mean else (pot.terms.limit or 0) // FIRST_ASKED  # without calls that tell its need
            want = max(want, first, 2 * spent + int(need.waiting * (pot.mean or need.most)))
        return KeyTurn(
            window=pot.window, spent=pot.spent, keep=max(pot.granted, held), want=want, most=need.most if need else 0
        )

    def _next_seq(self) -> int:
        self._seq = max(self._seq + 1, time.time_ns() // 1_000_000)
        return self._seq

    async def _send(self, turn: BudgetTurn, within: timedelta) -> BudgetAnswer:
        """Send the turn, and start the entity if there is none. Raises AwayError."""
        try:
            try:
                answer = await self._update(turn, within)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                await start_budgets(self.client, self.task_queue, within)
                answer = await self._update(turn, within)
        except _UNANSWERED as error:
            self._failures += 1
            self._away_until = time.monotonic() + AWAY_PAUSES.seconds(self._failures)
            raise AwayError(f"the workflow of the budgets does not answer: {error}") from None
        self._failures = 0
        return answer

    async def _update(self, turn: BudgetTurn, within: timedelta) -> BudgetAnswer:
        answer: BudgetAnswer = await self.client.get_workflow_handle(budgets_id(self.task_queue)).execute_update(
            "turn", turn, id=f"{turn.worker}:{turn.seq}", result_type=BudgetAnswer, rpc_timeout=within
        )
        return answer

    async def is_denied(self, key: str) -> bool:
        """Return whether the allowance, which a call was refused, would be refused again."""
        pot = self._pots.get(key)
        if pot is None or (self._seconds_left(pot.terms) or 1.0) <= 0:
            return False
        self._heard_at = 0.0
        return not await self._was_changed() and pot.is_denied

    async def _was_changed(self) -> bool:
        """Return whether a budget was raised or reset since the last turn. To read a description is no Action."""
        if time.monotonic() - self._heard_at < HEAR_EVERY:
            return False
        self._heard_at = time.monotonic()
        try:
            described = await self.client.get_workflow_handle(budgets_id(self.task_queue)).describe()
            changes = int((await described.memo()).get(CHANGES, 0))
        except (RPCError, ValueError, TypeError):
            return False
        return self._note_changes(changes)

    def _note_changes(self, changes: int) -> bool:
        if changes == self._changes:
            return False
        self._changes = changes
        for pot in self._pots.values():
            pot.is_denied, pot.lean_until = False, 0.0
        return True

    def _open_journal(self) -> None:
        if self._journal is None and self.folder is not None:
            try:
                self._journal = SpendJournal(self.folder, self.worker)
            except OSError as error:
                _log.warning("budgets have no journal here, so what a killed worker held counts as spent: %s", error)
                self.folder = None

    async def serve(self) -> None:
        """Settle and give back what is idle, and read the journals of workers that are gone, until it is cancelled."""
        while True:
            try:
                await self._settle_idle()
            except AwayError as error:
                _log.debug("budgets: %s", error)
            await asyncio.sleep(CHECK_EVERY)

    async def _settle_idle(self) -> None:
        now = time.monotonic()
        if self.folder is not None and now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            await self.sweep(self.folder)
        if now - self._used_at >= IDLE and any(_is_dirty(pot, gives_back=True) for pot in self._pots.values()):
            async with self._lock:
                await self.take_turn({}, gives_back=True)
            self._drop_old()

    def _drop_old(self) -> None:
        """Drop the pots of windows that are over."""
        now = time.monotonic()
        over = {every for every, window in self._windows.items() if window.end <= now}
        self._pots = {
            key: pot for key, pot in self._pots.items() if (pot.terms.every or "") not in over or pot.reserved
        }

    async def sweep(self, folder: Path) -> None:
        """Settle for workers that were killed, as their journals say. Raises AwayError."""
        boot = self._journal.entries.boot if self._journal else None
        for path, entries in open_left(folder):
            if boot is None:
                self._open_journal()
                boot = self._journal.entries.boot if self._journal else ""
            if entries.boot == boot and (sums := entries.total()):
                await self._settle_for(entries, sums)
            if entries.boot == boot or not entries.worker:
                path.unlink(missing_ok=True)

    async def _settle_for(self, entries: Entries, sums: Mapping[str, tuple[int, int]]) -> None:
        known = {key: sum_ for key, sum_ in sums.items() if _budget_of(key) in self.terms}
        keys = {key: KeyTurn(window=window, spent=spent, keep=spent) for key, (window, spent) in known.items()}
        async with self._lock:
            turn = BudgetTurn(worker=entries.worker, seq=self._next_seq(), terms=self.terms, keys=keys, is_last=True)
            await self._send(turn, TURN_TIMEOUT)

    async def give_back(self) -> None:
        """Give back what is not reserved, as the worker stops: it can still answer its own turn."""
        if not any(pot.reserved for pot in self._pots.values()):
            self._is_closed = True
        await self._leave()

    async def close(self) -> None:
        """Settle the calls that have ended since, and leave. What cannot be settled stays in the journal."""
        was_closed, self._is_closed = self._is_closed, True
        for task in tuple(self._tasks):
            task.cancel()
        is_settled = was_closed or await self._leave()
        if self._journal is not None:
            self._journal.close(is_settled=is_settled and not any(map(_is_changed, self._pots.values())))

    async def _leave(self) -> bool:
        """Send the last turn if there is anything to settle. Return whether all is settled."""
        has_credit = any(window.credit for window in self._windows.values())
        if not (has_credit or any(_is_dirty(pot, gives_back=True) for pot in self._pots.values())):
            return True
        try:
            async with asyncio.timeout(2 * LAST_TIMEOUT.total_seconds()), self._lock:
                self._away_until = 0.0
                await self.take_turn({}, gives_back=True, is_last=self._is_closed, within=LAST_TIMEOUT)
        except (AwayError, TimeoutError):
            return False
        return True


def _is_changed(pot: Pot) -> bool:
    """Return whether the entity does not know all that was spent, or that may be."""
    return pot.spent != pot.settled or pot.reserved != 0


def _is_dirty(pot: Pot, *, gives_back: bool) -> bool:
    """Return whether the entity does not know what was spent, or the pot holds more than its calls may cost."""
    return pot.spent != pot.settled or (gives_back and pot.granted > pot.spent + pot.reserved)


def _budget_of(key: str) -> str:
    return "/".join(split_key(key)[:2])


async def start_budgets(client: Client, task_queue: str, within: timedelta) -> None:
    """Start the entity, with the state of one that was terminated; if that cannot be read, nothing may be spent.

    Raises RPCError, WorkflowQueryFailedError.
    """
    summary, memo = f"budgets of {task_queue}", {CHANGES: "changes"}
    await start_entity(client, "Budgets", budgets_id(task_queue), task_queue, BudgetsState(), within, summary, memo)
