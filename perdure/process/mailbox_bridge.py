"""Between a folder and its mailbox: what comes is claimed and delivered. All that follows are orders (`carry`).

A message is in the incoming folder, or in `.pending/`, until it has been told what became of it. So a bridge may end at
any moment: the next one delivers again, and the mailbox knows what it has. A mailbox may end, too: the next one has it
all again, by whatever bridge is there.
"""

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from activities.mailbox.client import deliver, opened
from activities.mailbox.delivery import Looked, at_once, look
from activities.mailbox.folder import DELIVERIES, STATE, Claimed, MailFolder, NotAMailbox, told
from activities.mailbox.pages import Pages
from activities.mailbox.picks import Picks
from activities.mailbox.watch import Watcher
from activities.mailbox.writer import Told
from contracts.mail.mailbox import MOST_DELIVERIES, Delivered, DeliverRequest, Delivery, Verdict
from contracts.run.signals import HumanInput
from contracts.run.state import RunView
from decisions.mailbox.poll_mode import Mode, Pace, Patience, after_cycle, woken
from decisions.text.formatting import cut
from perdure.answer_keys import NO_KEYS, AnswerKeys, MissingKeyError

PAGES_EVERY = 5  # cycles
LOST = "its file is gone"
SOON, INPUTS_AFTER = 0.2, 0.3  # seconds
FEW = 10  # are delivered at once to a mailbox that was full
CYCLE = 1.0  # seconds between looks where nothing wakes it
PATIENCE = 30.0  # seconds in which a delivery is answered
LONGEST_PAUSE = 10.0  # seconds between tries while the server, the mailbox or the disk does not take it
OTHERS_EVERY, OTHERS_AFTER = 5.0, 10.0  # what another bridge has claimed and not delivered is delivered after this

SAME_EVERY = 60.0  # seconds between looks whether the mailbox is still the one that it was delivered to

Place = tuple[str, str]  # of a file in `.pending/`: its plan and its name
FAULTS = (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError, OSError)

_log = logging.getLogger(__name__)


@dataclass
class Bridge:
    client: Client
    task_queue: str
    folder: MailFolder
    patience: Patience = field(default_factory=Patience)
    keys: AnswerKeys = NO_KEYS
    pace: Pace = field(default_factory=lambda: Pace(since=_now()))
    cycle: int = 0
    open: int = 0  # messages in hand, as the mailbox said last
    asking: int = 0  # of them, those that wait for a person's pick
    trouble: str = ""  # why nothing goes on just now
    unread: dict[Place, str] = field(default_factory=dict)  # what the disk did not give, and why: tried again later
    cycled: asyncio.Event = field(default_factory=asyncio.Event)  # set after each cycle, for who shows it
    _backlog: deque[Claimed] = field(default_factory=deque)
    _known: set[Place] = field(default_factory=set)  # in `.pending/`, and in hand
    _parked: dict[Place, Delivery] = field(default_factory=dict)  # without their inputs
    _strangers: dict[Place, float] = field(default_factory=dict)
    _looked_at: float | None = None
    _is_attached: bool = False  # the mailbox knows where to send its orders
    _mailbox: str = ""  # which one that was
    _seen_at: float = 0.0  # when it was last looked for
    _failures: int = 0
    _said: str = ""  # the trouble that was told of
    _most: int = MOST_DELIVERIES  # of the next batch
    _inputs_due: float | None = field(default_factory=lambda: time.monotonic() + INPUTS_AFTER)

    @property
    def is_quiet(self) -> bool:
        """Nothing more has come, and all that had has been delivered."""
        waits = self._backlog or self._strangers or self._is_soon or self.trouble or self._looked_at is None
        return not waits and self.folder.is_through

    @property
    def hindrance(self) -> str:
        """What keeps it, or a part of its work, from going on."""
        refused = (*self.folder.refused.values(), *self.unread.values())
        return self.trouble or self.folder.undone or next(iter(refused), "")

    @property
    def _is_soon(self) -> bool:
        """Something is there that is looked at once it has come to rest."""
        return self.folder.has_fresh or self._inputs_due is not None

    def _signed(self, view: RunView, answer: HumanInput) -> HumanInput:
        """Return the answer signed; without the run's key as it is, and the run says what it lacks."""
        try:
            return self.keys.signed(view.run_id, view.execution, view.answer_keys, answer)
        except MissingKeyError:
            return answer

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is stopped. Nothing that a disk or a server does ends it."""
        own = Told(self.folder, self.folder.agent)
        watcher, picks, pages = Watcher(self.folder), Picks(self.client, own, self._signed), Pages(self.client, own)
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await watcher.start()  # before the look: what comes during it wakes the next one
                watcher.woken.clear()
                has_worked = await self._once(watcher, picks, pages)
                is_due = not self.is_quiet or self.folder.has_unclaimed
                must_look = is_due or self.asking > 0 or not watcher.is_watching
                self.pace = after_cycle(
                    self.pace, has_worked=has_worked, must_look=must_look, now=_now(), patience=self.patience
                )
                await self._tell()
                if not has_worked or self.trouble:
                    await self._rest(watcher, stopped)
        finally:
            stopped.cancel()
            await watcher.close()

    async def _rest(self, watcher: Watcher, stopped: asyncio.Task[bool]) -> None:
        """Until something wakes it, or the next cycle is due."""
        came = asyncio.create_task(watcher.woken.wait())
        pause = min(LONGEST_PAUSE, 0.25 * 2 ** min(self._failures, 8)) if self.trouble else CYCLE
        waits_for = {stopped} if self.trouble else {stopped, came}
        is_soon = not self.trouble and (self._is_soon or not self.folder.is_through)
        if self.pace.mode is Mode.dormant:
            await self._sleep(waits_for)
        else:
            seconds = SOON if is_soon else pause
            await asyncio.wait(waits_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if came.done():
            self.pace = woken(self.pace, _now())
        came.cancel()

    async def _sleep(self, waits_for: set[asyncio.Task[Any]]) -> None:
        """Dormant, it waits for a file alone, or for its mailbox to be another."""
        while self._is_attached:
            came, _ = await asyncio.wait(waits_for, timeout=SAME_EVERY, return_when=asyncio.FIRST_COMPLETED)
            if came:
                return
            await self._check_mailbox()
        self.pace = woken(self.pace, _now())

    async def _check_mailbox(self) -> None:
        """Somebody may have ended it: then nobody knows any more what was delivered, and no event tells of that."""
        if not self._is_attached or time.monotonic() - self._seen_at < SAME_EVERY:
            return
        self._seen_at = time.monotonic()
        with suppress(RPCError):  # who cannot be reached now is asked again
            there = await opened(self.client, self.folder.agent)
            self._is_attached = there is not None and self._mailbox in ("", there)

    async def _once(self, watcher: Watcher, picks: Picks, pages: Pages) -> bool:
        """A cycle. Whether there was something to do, and it was done."""
        self.cycle += 1
        has_worked, fault = False, None
        try:
            has_worked = await self._look_and_deliver(watcher)
        except FAULTS as error:
            fault = error
        if not isinstance(fault, NotAMailbox):  # the folder may be somebody else's now
            try:
                await self._tend(picks, pages, has_worked=has_worked)
            except FAULTS as error:
                fault = fault or error
        if fault is not None:
            self._in_trouble(self._why(fault))
            return False
        self._said = self.trouble
        return has_worked

    async def _look_and_deliver(self, watcher: Watcher) -> bool:
        if watcher.has_inputs:  # they may still be being written
            watcher.has_inputs, self._inputs_due = False, time.monotonic() + INPUTS_AFTER
        if self._inputs_due is not None and self._inputs_due <= time.monotonic():
            self._inputs_due = None
            self._unpark()
        await self._check_mailbox()
        if await self._find_strangers() and not watcher.is_watching:
            self._unpark()  # nothing tells of inputs
        return await self._deliver_next()

    async def _tend(self, picks: Picks, pages: Pages, *, has_worked: bool) -> None:
        """What people decide, and what they read, whatever became of the delivery."""
        if self.cycle % 10 == 0 or not has_worked:
            self.asking = await picks.look()
        if self.open and self.cycle % PAGES_EVERY == 0:
            await pages.refresh()

    def _why(self, fault: Exception) -> str:
        match fault:
            case RPCError():
                return f"the mailbox cannot be reached: {cut(fault.message, 200)}"
            case WorkflowUpdateRPCTimeoutOrCancelledError() | TimeoutError():
                return "the mailbox cannot be reached: no worker answers"
            case WorkflowUpdateFailedError():
                return f"the mailbox refuses the delivery: {cut(str(fault.cause), 200)}"
            case OSError() if not isinstance(fault, NotAMailbox):
                return f"{self.folder.root}: {told(fault)}"
            case _:
                return str(fault)

    def _in_trouble(self, why: str) -> None:
        """Said once, however long it lasts."""
        if why != self._said:
            _log.warning("agent.mail.trouble", extra={"event": self._event("agent.mail.trouble", why=why)})
        self.trouble, self._said, self._failures = why, why, self._failures + 1

    async def _deliver_next(self) -> bool:
        if not self._backlog:
            self._backlog.extend(await asyncio.to_thread(self._claim))
        batch = [self._backlog[number] for number in range(min(len(self._backlog), self._most))]
        if not batch and self._is_attached:
            self.trouble, self._failures = "", 0
            return False
        looked = await asyncio.to_thread(self._look, batch)
        tried = batch[: at_once_of(looked)]
        found = [each for each in looked[: len(tried)] if each is not None]
        if any(each.is_early for each in found):
            self._inputs_due = time.monotonic() + INPUTS_AFTER
        new = [each for each in found if self._parked.get(_place(each.delivery)) != each.delivery]
        answer = await self._deliver(tuple(each.delivery for each in new)) if new or not self._is_attached else None
        verdicts = self._judged(new, answer) if answer is not None else {}
        later: list[Claimed] = []
        for claimed in tried:
            self._backlog.popleft()
            if verdicts.get((claimed.plan, claimed.file)) is Verdict.full:
                later.append(claimed)
        self._backlog.extendleft(reversed(later))
        if answer is not None:
            await asyncio.to_thread(self._list, new, answer)
        is_full = Verdict.full in verdicts.values()
        self._most = FEW if is_full else min(2 * self._most, MOST_DELIVERIES)
        if not is_full:
            self.trouble, self._failures = "", 0
            return bool(batch)
        self.trouble = "the mailbox is full: the rest waits"
        self._failures = self._failures + 1 if set(verdicts.values()) == {Verdict.full} else 1
        return False

    def _claim(self) -> list[Claimed]:
        """What comes next, in turn of the plans. What was claimed is delivered, whatever the disk says to the rest."""
        claimed, faults = list[Claimed](), list[OSError]()
        for found in self.folder.scan(MOST_DELIVERIES):
            try:
                each = self.folder.claim(found)
            except OSError as error:
                faults.append(error)
                continue
            if each is not None:
                claimed.append(each)
                self._known.add((each.plan, each.file))
        self.folder.settle_claims({each.plan for each in claimed})
        if faults and not claimed:
            raise faults[0]
        if faults:
            _log.warning("a file cannot be claimed: %s", told(faults[0]))
        return claimed

    def _look(self, batch: list[Claimed]) -> list[Looked | None]:
        """None of what is gone, or can only be had later; then it is looked at as what another bridge has left."""
        looked: list[Looked | None] = []
        for claimed in batch:
            place = (claimed.plan, claimed.file)
            self._known.add(place)
            self.unread.pop(place, None)
            try:
                looked.append(look(self.folder, claimed))
            except FileNotFoundError:
                looked.append(self._lost(place))
            except OSError as error:
                self.unread[place] = f"{'/'.join(place)} is tried again: {told(error)}"
                _log.warning("%s: %s", self.folder.root, self.unread[place])
                self._known.discard(place)
                looked.append(None)
        return looked

    def _lost(self, place: Place) -> Looked | None:
        """Somebody took away what waited for its inputs: nothing else would ever end it."""
        parked = self._parked.get(place)
        if parked is None or self.folder.is_put_away(*place):
            self._parked.pop(place, None)
            return None
        return Looked(parked.model_copy(update={"missing": (), "fault": LOST}))

    def _judged(self, new: list[Looked], answer: Delivered) -> dict[Place, Verdict]:
        """What each was found to be; those without their inputs are kept in mind."""
        if self._mailbox not in ("", answer.mailbox):
            self._forget()
        self._is_attached, self._mailbox, self._seen_at = True, answer.mailbox, time.monotonic()
        self.open = answer.open
        verdicts: dict[Place, Verdict] = {}
        for each, verdict in zip(new, answer.verdicts, strict=True):
            place = _place(each.delivery)
            self._known.add(place)
            verdicts[place] = verdict
            self._parked.pop(place, None)
            if verdict is Verdict.blocked:
                self._parked[place] = each.delivery
        return verdicts

    def _forget(self) -> None:
        """It is another mailbox, which has nothing yet: all that lies there is looked at as by a bridge that begins."""
        self._known.clear()
        self._parked.clear()
        self._strangers.clear()
        self._looked_at = None

    async def _deliver(self, deliveries: tuple[Delivery, ...]) -> Delivered:
        request = DeliverRequest(folder=self.folder.id, deliveries=deliveries)
        async with asyncio.timeout(PATIENCE):
            return await deliver(self.client, self.task_queue, self.folder.agent, request)

    def _list(self, new: list[Looked], answer: Delivered) -> None:
        at = _now().isoformat(timespec="milliseconds")
        lines = []
        for looked, verdict in zip(new, answer.verdicts, strict=True):
            if verdict is Verdict.full:
                continue
            each = looked.delivery
            line: dict[str, Any] = {"at": at, "plan": each.plan, "file": each.file, "sha256": each.sha256}
            if each.head is not None:
                line |= {"message_id": each.head.message_id, "task_id": each.head.task_id}
                line |= {"idempotency_key": each.head.idempotency_key} if each.head.idempotency_key else {}
            why = {"fault": each.fault} if each.fault else {}
            missing = {"missing": list(each.missing)} if each.missing else {}
            line |= {"verdict": verdict, **why, **missing, **({"note": looked.note} if looked.note else {})}
            lines.append(json.dumps(line, ensure_ascii=False))
        if lines:
            self.folder.below.append("".join(f"{line}\n" for line in lines).encode(errors="replace"), DELIVERIES)

    def _unpark(self) -> None:
        """Inputs have come: whoever waits for some is looked at again."""
        waiting = {(each.plan, each.file) for each in self._backlog}
        self._backlog.extend(Claimed(plan, file) for plan, file in sorted(self._parked.keys() - waiting))

    async def _find_strangers(self) -> bool:
        """What lies in `.pending/` and was not delivered from here: first all, later what nobody else delivers.

        Whether it was time to look.
        """
        now, first = time.monotonic(), self._looked_at is None
        if self._looked_at is not None and now - self._looked_at < OTHERS_EVERY:
            return False
        await asyncio.to_thread(self.folder.check)
        there = {(each.plan, each.file): each for each in await asyncio.to_thread(lambda: list(self.folder.pending()))}
        waiting = {(each.plan, each.file) for each in self._backlog}
        self._known &= there.keys()
        self.unread = {place: why for place, why in self.unread.items() if place in there}
        gone = sorted(self._parked.keys() - there.keys() - waiting)
        since = {place: self._strangers.get(place, now) for place in there if place not in self._known | waiting}
        due = [place for place, seen in since.items() if first or now - seen >= OTHERS_AFTER]
        self._looked_at = now
        self._strangers = {place: seen for place, seen in since.items() if place not in due}
        self._backlog.extend(there[place] for place in due)
        self._backlog.extend(Claimed(plan, file) for plan, file in gone)
        return True

    async def _tell(self) -> None:
        """Of each cycle, so that anybody can see whether the bridge is alive."""
        state = self._event("agent.mail.heartbeat", heartbeat_at=_now().isoformat(timespec="milliseconds"))
        _log.info("agent.mail.heartbeat", extra={"event": state})
        told_of = {name: value for name, value in state.items() if name != "event"}
        with suppress(OSError):  # the disk's trouble is told where it matters
            data = json.dumps({**told_of, "trouble": self.hindrance}, indent=2).encode() + b"\n"
            await asyncio.to_thread(self.folder.below.write, data, STATE)
        self.cycled.set()

    def _event(self, name: str, **more: Any) -> dict[str, Any]:
        known = {"agent": self.folder.agent, "mode": self.pace.mode, "cycle": self.cycle, "open": self.open}
        return {"event": name, **known, "folder": self.folder.id, "pid": os.getpid(), **more}


def at_once_of(looked: Sequence[Looked | None]) -> int:
    """How many of them are delivered together."""
    there = [number for number, each in enumerate(looked) if each is not None]
    most = at_once([each.delivery for each in looked if each is not None])
    return there[most] if most < len(there) else len(looked)


def _place(delivery: Delivery) -> Place:
    return delivery.plan, delivery.file


def _now() -> datetime:
    return datetime.now(UTC)
