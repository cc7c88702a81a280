"""The bridge between a folder and its mailbox: claims and delivers files; the mailbox orders the rest (`carry`).

A message stays in the incoming folder or in `.pending/` until its result is written. So a bridge can end at any time:
the next one delivers again, and the mailbox knows what it has. If a mailbox ends, the next one gets all again.
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
FEW = 10  # deliveries in a batch to a mailbox that was full
CYCLE = 1.0  # seconds between cycles if nothing wakes it
PATIENCE = 30.0  # seconds for the answer to a delivery
LONGEST_PAUSE = 10.0  # seconds between retries while the server, the mailbox or the disk fails
OTHERS_EVERY, OTHERS_AFTER = 5.0, 10.0  # seconds; claims that another bridge did not deliver are delivered
SAME_EVERY = 60.0  # seconds between checks that the mailbox is the same

Place = tuple[str, str]  # a file in `.pending/`: its plan and its name
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
    open: int = 0  # open messages, as the mailbox last reported
    asking: int = 0  # open messages that wait for a person's pick
    trouble: str = ""  # the error that blocks all work
    unread: dict[Place, str] = field(default_factory=dict)  # read errors by file, retried later
    cycled: asyncio.Event = field(default_factory=asyncio.Event)  # set after each cycle
    _backlog: deque[Claimed] = field(default_factory=deque)
    _known: set[Place] = field(default_factory=set)  # files in `.pending/` that this bridge handles
    _parked: dict[Place, Delivery] = field(default_factory=dict)  # without their inputs
    _undelivered: dict[Place, float] = field(default_factory=dict)
    _looked_at: float | None = None
    _is_attached: bool = False  # the mailbox knows this bridge
    _mailbox: str = ""  # its execution
    _seen_at: float = 0.0  # the last check that it is the same
    _failures: int = 0
    _reported: str = ""  # the last logged error
    _batch_limit: int = MOST_DELIVERIES
    _inputs_due: float | None = field(default_factory=lambda: time.monotonic() + INPUTS_AFTER)

    @property
    def is_quiet(self) -> bool:
        """All files have been delivered, and no new one has arrived."""
        waits = self._backlog or self._undelivered or self._is_soon or self.trouble or self._looked_at is None
        return not waits and self.folder.is_through

    @property
    def hindrance(self) -> str:
        """The error that blocks the bridge or a part of its work, if any."""
        refused = (*self.folder.refused.values(), *self.unread.values())
        return self.trouble or self.folder.undone or next(iter(refused), "")

    @property
    def _is_soon(self) -> bool:
        """A file has arrived that is read once it is complete."""
        return self.folder.has_fresh or self._inputs_due is not None

    def _signed(self, view: RunView, answer: HumanInput) -> HumanInput:
        """Sign an answer; without the run's key it stays unsigned, and the run rejects it."""
        try:
            return self.keys.signed(view.run_id, view.execution, view.answer_keys, answer)
        except MissingKeyError:
            return answer

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped; disk and server errors are retried."""
        own = Told(self.folder, self.folder.agent)
        watcher, picks, pages = Watcher(self.folder), Picks(self.client, own, self._signed), Pages(self.client, own)
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await watcher.start()  # before the scan: a file that arrives meanwhile wakes the next cycle
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
        """Wait until a file arrives or the next cycle is due."""
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
        """Wait, dormant, for a file or a change of mailbox."""
        while self._is_attached:
            came, _ = await asyncio.wait(waits_for, timeout=SAME_EVERY, return_when=asyncio.FIRST_COMPLETED)
            if came:
                return
            await self._check_mailbox()
        self.pace = woken(self.pace, _now())

    async def _check_mailbox(self) -> None:
        """Check that the mailbox is the same: a new one does not know the earlier deliveries, and sends no event."""
        if not self._is_attached or time.monotonic() - self._seen_at < SAME_EVERY:
            return
        self._seen_at = time.monotonic()
        with suppress(RPCError):  # retried later
            mailbox = await opened(self.client, self.folder.agent)
            self._is_attached = mailbox is not None and self._mailbox in ("", mailbox)

    async def _once(self, watcher: Watcher, picks: Picks, pages: Pages) -> bool:
        """Run a cycle. Return whether it completed some work."""
        self.cycle += 1
        has_worked, failure = False, None
        try:
            has_worked = await self._look_and_deliver(watcher)
        except FAULTS as error:
            failure = error
        if not isinstance(failure, NotAMailbox):  # the folder may have another owner now
            try:
                await self._tend(picks, pages, has_worked=has_worked)
            except FAULTS as error:
                failure = failure or error
        if failure is not None:
            self._in_trouble(self._why(failure))
            return False
        self._reported = self.trouble
        return has_worked

    async def _look_and_deliver(self, watcher: Watcher) -> bool:
        if watcher.has_inputs:  # they may be incomplete
            watcher.has_inputs, self._inputs_due = False, time.monotonic() + INPUTS_AFTER
        if self._inputs_due is not None and self._inputs_due <= time.monotonic():
            self._inputs_due = None
            self._unpark()
        await self._check_mailbox()
        if await self._find_strangers() and not watcher.is_watching:
            self._unpark()  # no watcher reports inputs
        return await self._deliver_next()

    async def _tend(self, picks: Picks, pages: Pages, *, has_worked: bool) -> None:
        """Process people's picks and refresh their pages, even if the delivery failed."""
        if self.cycle % 10 == 0 or not has_worked:
            self.asking = await picks.look()
        if self.open and self.cycle % PAGES_EVERY == 0:
            await pages.refresh()

    def _why(self, error: Exception) -> str:
        match error:
            case RPCError():
                return f"the mailbox cannot be reached: {cut(error.message, 200)}"
            case WorkflowUpdateRPCTimeoutOrCancelledError() | TimeoutError():
                return "the mailbox cannot be reached: no worker answers"
            case WorkflowUpdateFailedError():
                return f"the mailbox rejected the delivery: {cut(str(error.cause), 200)}"
            case OSError() if not isinstance(error, NotAMailbox):
                return f"{self.folder.root}: {told(error)}"
            case _:
                return str(error)

    def _in_trouble(self, error: str) -> None:
        """Record an error, and log it once."""
        if error != self._reported:
            _log.warning("agent.mail.trouble", extra={"event": self._event("agent.mail.trouble", why=error)})
        self.trouble, self._reported, self._failures = error, error, self._failures + 1

    async def _deliver_next(self) -> bool:
        if not self._backlog:
            self._backlog.extend(await asyncio.to_thread(self._claim))
        batch = [self._backlog[number] for number in range(min(len(self._backlog), self._batch_limit))]
        if not batch and self._is_attached:
            self.trouble, self._failures = "", 0
            return False
        messages = await asyncio.to_thread(self._look, batch)
        tried = batch[: at_once_of(messages)]
        readable = [message for message in messages[: len(tried)] if message is not None]
        if any(message.is_early for message in readable):
            self._inputs_due = time.monotonic() + INPUTS_AFTER
        new = [message for message in readable if self._parked.get(_place(message.delivery)) != message.delivery]
        has_delivery = new or not self._is_attached
        answer = await self._deliver(tuple(message.delivery for message in new)) if has_delivery else None
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
        self._batch_limit = FEW if is_full else min(2 * self._batch_limit, MOST_DELIVERIES)
        if not is_full:
            self.trouble, self._failures = "", 0
            return bool(batch)
        self.trouble = "the mailbox is full: the other files wait"
        self._failures = self._failures + 1 if set(verdicts.values()) == {Verdict.full} else 1
        return False

    def _claim(self) -> list[Claimed]:
        """Claim the next files, plan by plan. A disk error on one does not block the others."""
        claims, errors = list[Claimed](), list[OSError]()
        for file in self.folder.scan(MOST_DELIVERIES):
            try:
                claim = self.folder.claim(file)
            except OSError as error:
                errors.append(error)
                continue
            if claim is not None:
                claims.append(claim)
                self._known.add((claim.plan, claim.file))
        self.folder.settle_claims({claim.plan for claim in claims})
        if errors and not claims:
            raise errors[0]
        if errors:
            _log.warning("a file cannot be claimed: %s", told(errors[0]))
        return claims

    def _look(self, batch: list[Claimed]) -> list[Looked | None]:
        """Read claimed files. Those that are gone become None, as do unreadable ones, which are retried later."""
        messages: list[Looked | None] = []
        for claimed in batch:
            place = (claimed.plan, claimed.file)
            self._known.add(place)
            self.unread.pop(place, None)
            try:
                messages.append(look(self.folder, claimed))
            except FileNotFoundError:
                messages.append(self._lost(place))
            except OSError as error:
                self.unread[place] = f"{'/'.join(place)} is tried again: {told(error)}"
                _log.warning("%s: %s", self.folder.root, self.unread[place])
                self._known.discard(place)
                messages.append(None)
        return messages

    def _lost(self, place: Place) -> Looked | None:
        """Return a failed delivery for a parked file that was removed: its message must end."""
        parked = self._parked.get(place)
        if parked is None or self.folder.is_put_away(*place):
            self._parked.pop(place, None)
            return None
        return Looked(parked.model_copy(update={"missing": (), "fault": LOST}))

    def _judged(self, new: list[Looked], answer: Delivered) -> dict[Place, Verdict]:
        """Record the mailbox's verdicts, and park messages that wait for inputs."""
        if self._mailbox not in ("", answer.mailbox):
            self._forget()
        self._is_attached, self._mailbox, self._seen_at = True, answer.mailbox, time.monotonic()
        self.open = answer.open
        verdicts: dict[Place, Verdict] = {}
        for message, verdict in zip(new, answer.verdicts, strict=True):
            place = _place(message.delivery)
            self._known.add(place)
            verdicts[place] = verdict
            self._parked.pop(place, None)
            if verdict is Verdict.blocked:
                self._parked[place] = message.delivery
        return verdicts

    def _forget(self) -> None:
        """Reset the state for a new mailbox: all files in `.pending/` are delivered again."""
        self._known.clear()
        self._parked.clear()
        self._undelivered.clear()
        self._looked_at = None

    async def _deliver(self, deliveries: tuple[Delivery, ...]) -> Delivered:
        request = DeliverRequest(folder=self.folder.id, deliveries=deliveries)
        async with asyncio.timeout(PATIENCE):
            return await deliver(self.client, self.task_queue, self.folder.agent, request)

    def _list(self, new: list[Looked], answer: Delivered) -> None:
        at = _now().isoformat(timespec="milliseconds")
        lines = []
        for message, verdict in zip(new, answer.verdicts, strict=True):
            if verdict is Verdict.full:
                continue
            delivery = message.delivery
            line: dict[str, Any] = {"at": at, "plan": delivery.plan, "file": delivery.file, "sha256": delivery.sha256}
            if (head := delivery.head) is not None:
                line |= {"message_id": head.message_id, "task_id": head.task_id}
                line |= {"idempotency_key": head.idempotency_key} if head.idempotency_key else {}
            fault = {"fault": delivery.fault} if delivery.fault else {}
            missing = {"missing": list(delivery.missing)} if delivery.missing else {}
            line |= {"verdict": verdict, **fault, **missing, **({"note": message.note} if message.note else {})}
            lines.append(json.dumps(line, ensure_ascii=False))
        if lines:
            self.folder.below.append("".join(f"{line}\n" for line in lines).encode(errors="replace"), DELIVERIES)

    def _unpark(self) -> None:
        """Add parked messages to the backlog: their inputs may have arrived."""
        waiting = {(claimed.plan, claimed.file) for claimed in self._backlog}
        self._backlog.extend(Claimed(plan, file) for plan, file in sorted(self._parked.keys() - waiting))

    async def _find_strangers(self) -> bool:
        """Add files in `.pending/` that this bridge has not delivered: first all, later those no other bridge delivers.

        Return whether the folder was scanned.
        """
        now, first = time.monotonic(), self._looked_at is None
        if self._looked_at is not None and now - self._looked_at < OTHERS_EVERY:
            return False
        await asyncio.to_thread(self.folder.check)
        files = await asyncio.to_thread(lambda: list(self.folder.pending()))
        pending = {(claimed.plan, claimed.file): claimed for claimed in files}
        waiting = {(claimed.plan, claimed.file) for claimed in self._backlog}
        self._known &= pending.keys()
        self.unread = {place: error for place, error in self.unread.items() if place in pending}
        gone = sorted(self._parked.keys() - pending.keys() - waiting)
        since = {place: self._undelivered.get(place, now) for place in pending if place not in self._known | waiting}
        due = [place for place, seen in since.items() if first or now - seen >= OTHERS_AFTER]
        self._looked_at = now
        self._undelivered = {place: seen for place, seen in since.items() if place not in due}
        self._backlog.extend(pending[place] for place in due)
        self._backlog.extend(Claimed(plan, file) for plan, file in gone)
        return True

    async def _tell(self) -> None:
        """Log and write the state of the cycle, which shows that the bridge is alive."""
        state = self._event("agent.mail.heartbeat", heartbeat_at=_now().isoformat(timespec="milliseconds"))
        _log.info("agent.mail.heartbeat", extra={"event": state})
        fields = {name: value for name, value in state.items() if name != "event"}
        with suppress(OSError):  # a disk error is reported by the delivery
            data = json.dumps({**fields, "trouble": self.hindrance}, indent=2).encode() + b"\n"
            await asyncio.to_thread(self.folder.below.write, data, STATE)
        self.cycled.set()

    def _event(self, name: str, **more: Any) -> dict[str, Any]:
        known = {"agent": self.folder.agent, "mode": self.pace.mode, "cycle": self.cycle, "open": self.open}
        return {"event": name, **known, "folder": self.folder.id, "pid": os.getpid(), **more}


def at_once_of(messages: Sequence[Looked | None]) -> int:
    """Return how many of the messages fit into one delivery."""
    readable = [(number, message.delivery) for number, message in enumerate(messages) if message is not None]
    limit = at_once([delivery for _, delivery in readable])
    return readable[limit][0] if limit < len(readable) else len(messages)


def _place(delivery: Delivery) -> Place:
    return delivery.plan, delivery.file


def _now() -> datetime:
    return datetime.now(UTC)
