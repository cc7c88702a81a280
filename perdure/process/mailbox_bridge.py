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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from activities.mailbox.client import deliver_files, open_mailbox_run_id
from activities.mailbox.folder import DELIVERIES, STATE, ClaimedFile, MailFolder, MailFolderError, format_os_error
from activities.mailbox.intake import PreparedDelivery, batch_size, prepare_delivery
from activities.mailbox.pages import TaskPages
from activities.mailbox.picks import InputPicks
from activities.mailbox.watch import FolderWatcher
from activities.mailbox.writer import MailWriter
from contracts.mail.mailbox import MAX_DELIVERIES, DeliverRequest, Delivery, DeliveryVerdict
from contracts.run.signals import HumanInput
from contracts.run.state import RunView
from decisions.mailbox.poll_mode import PollMode, PollPolicy, PollState, after_cycle, wake
from decisions.text.formatting import truncate
from perdure.answer_keys import NO_KEYS, AnswerKeys, MissingKeyError

PAGE_REFRESH_CYCLES = 5  # cycles
FILE_GONE = "its file is gone"
SHORT_PAUSE, INPUT_DELAY = 0.2, 0.3  # seconds
SMALL_BATCH = 10  # deliveries in a batch to a mailbox that was full
CYCLE_SECONDS = 1.0  # seconds between cycles if nothing wakes it
DELIVERY_TIMEOUT = 30.0  # seconds for the answer to a delivery
MAX_RETRY_PAUSE = 10.0  # seconds between retries while the server, the mailbox or the disk fails
UNDELIVERED_SCAN_INTERVAL, UNDELIVERED_DELAY = (
    5.0,
    10.0,
)  # seconds; claims that another bridge did not deliver are delivered
MAILBOX_CHECK_INTERVAL = 60.0  # seconds between checks that the mailbox is the same

RETRYABLE_ERRORS = (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError, OSError)

_log = logging.getLogger(__name__)


@dataclass
class Bridge:
    client: Client
    task_queue: str
    folder: MailFolder
    patience: PollPolicy = field(default_factory=PollPolicy)
    keys: AnswerKeys = NO_KEYS
    pace: PollState = field(default_factory=lambda: PollState(since=_utc_now()))
    cycle: int = 0
    open: int = 0  # open messages, as the mailbox last reported
    asking: int = 0  # open messages that wait for a person's pick
    trouble: str = ""  # the error that blocks all work
    unread: dict[ClaimedFile, str] = field(default_factory=dict)  # read errors by file, retried later
    cycled: asyncio.Event = field(default_factory=asyncio.Event)  # set after each cycle
    _backlog: deque[ClaimedFile] = field(default_factory=deque)
    _known: set[ClaimedFile] = field(default_factory=set)  # files in `.pending/` that this bridge handles
    _parked: dict[ClaimedFile, Delivery] = field(default_factory=dict)  # without their inputs
    _undelivered: dict[ClaimedFile, float] = field(default_factory=dict)
    _looked_at: float | None = None
    _is_attached: bool = False  # the mailbox knows this bridge
    _mailbox: str = ""  # its execution
    _seen_at: float = 0.0  # the last check that it is the same
    _failures: int = 0
    _reported: str = ""  # the last logged error
    _batch_limit: int = MAX_DELIVERIES
    _inputs_due: float | None = field(default_factory=lambda: time.monotonic() + INPUT_DELAY)

    def __post_init__(self) -> None:
        writer = MailWriter(self.folder)
        self._watcher = FolderWatcher(self.folder)
        self._picks = InputPicks(self.client, writer, self._sign_answer)
        self._pages = TaskPages(self.client, writer)

    @property
    def is_quiet(self) -> bool:
        """All files have been delivered, and no new one has arrived."""
        waits = self._backlog or self._undelivered or self._is_due_soon or self.trouble or self._looked_at is None
        return not waits and self.folder.is_through

    @property
    def last_error(self) -> str:
        """The error that blocks the bridge or a part of its work, if any."""
        refused = (*self.folder.refused.values(), *self.unread.values())
        return self.trouble or self.folder.undone or next(iter(refused), "")

    @property
    def _is_due_soon(self) -> bool:
        """A file has arrived that is read once it is complete."""
        return self.folder.has_fresh or self._inputs_due is not None

    def _sign_answer(self, view: RunView, answer: HumanInput) -> HumanInput:
        """Sign an answer; without the run's key it stays unsigned, and the run rejects it."""
        try:
            return self.keys.sign_for(view.run_id, view.execution, view.answer_keys, answer)
        except MissingKeyError:
            return answer

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped; disk and server errors are retried."""
        watcher = self._watcher
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await watcher.start()  # before the scan: a file that arrives meanwhile wakes the next cycle
                watcher.woken.clear()
                has_worked = await self._run_cycle()
                is_due = not self.is_quiet or self.folder.has_unclaimed
                must_look = is_due or self.asking > 0 or not watcher.is_watching
                self.pace = after_cycle(
                    self.pace, has_worked=has_worked, must_look=must_look, now=_utc_now(), patience=self.patience
                )
                await self._publish_state()
                if not has_worked or self.trouble:
                    await self._wait_for_cycle(stopped)
        finally:
            stopped.cancel()
            await watcher.close()

    async def _wait_for_cycle(self, stopped: asyncio.Task[bool]) -> None:
        """Wait until a file arrives or the next cycle is due."""
        came = asyncio.create_task(self._watcher.woken.wait())
        pause = min(MAX_RETRY_PAUSE, 0.25 * 2 ** min(self._failures, 8)) if self.trouble else CYCLE_SECONDS
        waits_for = {stopped} if self.trouble else {stopped, came}
        is_soon = not self.trouble and (self._is_due_soon or not self.folder.is_through)
        if self.pace.mode is PollMode.dormant:
            await self._wait_dormant(waits_for)
        else:
            seconds = SHORT_PAUSE if is_soon else pause
            await asyncio.wait(waits_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if came.done():
            self.pace = wake(self.pace, _utc_now())
        came.cancel()

    async def _wait_dormant(self, waits_for: set[asyncio.Task[Any]]) -> None:
        """Wait, dormant, for a file or a change of mailbox."""
        while self._is_attached:
            came, _ = await asyncio.wait(waits_for, timeout=MAILBOX_CHECK_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
            if came:
                return
            await self._check_mailbox()
        self.pace = wake(self.pace, _utc_now())

    async def _check_mailbox(self) -> None:
        """Check that the mailbox is the same: a new one does not know the earlier deliveries, and sends no event."""
        if not self._is_attached or time.monotonic() - self._seen_at < MAILBOX_CHECK_INTERVAL:
            return
        self._seen_at = time.monotonic()
        with suppress(RPCError):  # retried later
            mailbox = await open_mailbox_run_id(self.client, self.folder.agent)
            self._is_attached = mailbox is not None and self._mailbox in ("", mailbox)

    async def _run_cycle(self) -> bool:
        """Run a cycle. Return whether it completed some work."""
        self.cycle += 1
        has_worked, failure = False, None
        try:
            has_worked = await self._look_and_deliver()
        except RETRYABLE_ERRORS as error:
            failure = error
        if not isinstance(failure, MailFolderError):  # the folder may have another owner now
            try:
                await self._update_people(has_worked=has_worked)
            except RETRYABLE_ERRORS as error:
                failure = failure or error
        if failure is not None:
            self._record_error(self._format_failure(failure))
            return False
        self._reported = self.trouble
        return has_worked

    async def _look_and_deliver(self) -> bool:
        if self._watcher.has_inputs:  # they may be incomplete
            self._watcher.has_inputs, self._inputs_due = False, time.monotonic() + INPUT_DELAY
        if self._inputs_due is not None and self._inputs_due <= time.monotonic():
            self._inputs_due = None
            self._requeue_parked()
        await self._check_mailbox()
        if await self._find_undelivered() and not self._watcher.is_watching:
            self._requeue_parked()  # no watcher reports inputs
        return await self._deliver_next()

    async def _update_people(self, *, has_worked: bool) -> None:
        """Process people's picks and refresh their pages, even if the delivery failed."""
        if self.cycle % 10 == 0 or not has_worked:
            self.asking = await self._picks.check_requests()
        if self.open and self.cycle % PAGE_REFRESH_CYCLES == 0:
            await self._pages.refresh_pages()

    def _format_failure(self, error: Exception) -> str:
        match error:
            case RPCError():
                return f"the mailbox cannot be reached: {truncate(error.message, 200)}"
            case WorkflowUpdateRPCTimeoutOrCancelledError() | TimeoutError():
                return "the mailbox cannot be reached: no worker answers"
            case WorkflowUpdateFailedError():
                return f"the mailbox rejected the delivery: {truncate(str(error.cause), 200)}"
            case OSError() if not isinstance(error, MailFolderError):
                return f"{self.folder.root}: {format_os_error(error)}"
            case _:
                return str(error)

    def _record_error(self, error: str) -> None:
        """Record an error, and log it once."""
        if error != self._reported:
            _log.warning("agent.mail.trouble", extra={"event": self._state_event("agent.mail.trouble", why=error)})
        self.trouble, self._reported, self._failures = error, error, self._failures + 1

    async def _deliver_next(self) -> bool:
        if not self._backlog:
            self._backlog.extend(await asyncio.to_thread(self._claim_files))
        batch = list(islice(self._backlog, self._batch_limit))
        if not batch and self._is_attached:
            self.trouble, self._failures = "", 0
            return False
        messages = await asyncio.to_thread(self._read_messages, batch)
        tried = batch[: batch_size(messages)]
        readable = [message for message in messages[: len(tried)] if message is not None]
        if any(message.is_early for message in readable):
            self._inputs_due = time.monotonic() + INPUT_DELAY
        new = [message for message in readable if self._parked.get(message.claimed) != message.delivery]
        verdicts = await self._send_deliveries(new) if new or not self._is_attached else {}
        for _ in tried:
            self._backlog.popleft()
        self._backlog.extendleft(
            claimed for claimed in reversed(tried) if verdicts.get(claimed) is DeliveryVerdict.full
        )
        if new:
            await asyncio.to_thread(self._log_deliveries, new, verdicts)
        is_full = DeliveryVerdict.full in verdicts.values()
        self._batch_limit = SMALL_BATCH if is_full else min(2 * self._batch_limit, MAX_DELIVERIES)
        if not is_full:
            self.trouble, self._failures = "", 0
            return bool(batch)
        self.trouble = "the mailbox is full: the other files wait"
        self._failures = self._failures + 1 if set(verdicts.values()) == {DeliveryVerdict.full} else 1
        return False

    def _claim_files(self) -> list[ClaimedFile]:
        """Claim the next files, plan by plan. A disk error on one does not block the others."""
        claims, errors = list[ClaimedFile](), list[OSError]()
        for file in self.folder.scan(MAX_DELIVERIES):
            try:
                claim = self.folder.claim(file)
            except OSError as error:
                errors.append(error)
                continue
            if claim is not None:
                claims.append(claim)
                self._known.add(claim)
        self.folder.settle_claims({claim.plan for claim in claims})
        if errors and not claims:
            raise errors[0]
        if errors:
            _log.warning("a file cannot be claimed: %s", format_os_error(errors[0]))
        return claims

    def _read_messages(self, batch: list[ClaimedFile]) -> list[PreparedDelivery | None]:
        """Read claimed files. Those that are gone become None, as do unreadable ones, which are retried later."""
        messages: list[PreparedDelivery | None] = []
        for claimed in batch:
            self._known.add(claimed)
            self.unread.pop(claimed, None)
            try:
                messages.append(prepare_delivery(self.folder, claimed))
            except FileNotFoundError:
                messages.append(self._end_removed(claimed))
            except OSError as error:
                self.unread[claimed] = f"{claimed.plan}/{claimed.file} is tried again: {format_os_error(error)}"
                _log.warning("%s: %s", self.folder.root, self.unread[claimed])
                self._known.discard(claimed)
                messages.append(None)
        return messages

    def _end_removed(self, claimed: ClaimedFile) -> PreparedDelivery | None:
        """Return a failed delivery for a parked file that was removed: its message must end."""
        parked = self._parked.get(claimed)
        if parked is None or self.folder.is_put_away(claimed):
            self._parked.pop(claimed, None)
            return None
        return PreparedDelivery(claimed, parked.model_copy(update={"missing": (), "fault": FILE_GONE}))

    async def _send_deliveries(self, new: list[PreparedDelivery]) -> dict[ClaimedFile, DeliveryVerdict]:
        """Deliver files, or only attach. Return the mailbox's verdicts; messages that wait for inputs are parked."""
        request = DeliverRequest(folder=self.folder.id, deliveries=tuple(message.delivery for message in new))
        async with asyncio.timeout(DELIVERY_TIMEOUT):
            answer = await deliver_files(self.client, self.task_queue, self.folder.agent, request)
        if self._mailbox not in ("", answer.mailbox):  # a new mailbox: all files in `.pending/` are delivered again
            self._known.clear()
            self._parked.clear()
            self._undelivered.clear()
            self._looked_at = None
        self._is_attached, self._mailbox, self._seen_at = True, answer.mailbox, time.monotonic()
        self.open = answer.open
        verdicts = {message.claimed: verdict for message, verdict in zip(new, answer.verdicts, strict=True)}
        self._known |= verdicts.keys()
        for message in new:
            self._parked.pop(message.claimed, None)
            if verdicts[message.claimed] is DeliveryVerdict.blocked:
                self._parked[message.claimed] = message.delivery
        return verdicts

    def _log_deliveries(self, new: list[PreparedDelivery], verdicts: Mapping[ClaimedFile, DeliveryVerdict]) -> None:
        at, lines = _utc_now().isoformat(timespec="milliseconds"), []
        for message in new:
            if verdicts[message.claimed] is DeliveryVerdict.full:
                continue
            delivery, head = message.delivery, message.delivery.head
            known = head.model_dump(include={"message_id", "task_id", "idempotency_key"}) if head else {}
            known |= {"verdict": verdicts[message.claimed], "fault": delivery.fault, "missing": delivery.missing}
            known = {name: value for name, value in {**known, "note": message.note}.items() if value}
            line = {"at": at, "plan": delivery.plan, "file": delivery.file, "sha256": delivery.sha256, **known}
            lines.append(json.dumps(line, ensure_ascii=False))
        if lines:
            self.folder.below.append("".join(f"{line}\n" for line in lines).encode(errors="replace"), DELIVERIES)

    def _requeue_parked(self) -> None:
        """Add parked messages to the backlog: their inputs may have arrived."""
        self._backlog.extend(sorted(self._parked.keys() - set(self._backlog)))

    async def _find_undelivered(self) -> bool:
        """Add files in `.pending/` that this bridge has not delivered: first all, later those no other bridge delivers.

        Return whether the folder was scanned.
        """
        now, first = time.monotonic(), self._looked_at is None
        if self._looked_at is not None and now - self._looked_at < UNDELIVERED_SCAN_INTERVAL:
            return False
        await asyncio.to_thread(self.folder.check_identity)
        files = await asyncio.to_thread(lambda: list(self.folder.pending_files()))
        pending, waiting = set(files), set(self._backlog)
        self._known &= pending
        self.unread = {claimed: error for claimed, error in self.unread.items() if claimed in pending}
        gone = sorted(self._parked.keys() - pending - waiting)
        handled = self._known | waiting
        since = {claimed: self._undelivered.get(claimed, now) for claimed in files if claimed not in handled}
        due = [claimed for claimed, seen in since.items() if first or now - seen >= UNDELIVERED_DELAY]
        self._looked_at = now
        self._undelivered = {claimed: seen for claimed, seen in since.items() if claimed not in due}
        self._backlog.extend((*due, *gone))
        return True

    async def _publish_state(self) -> None:
        """Log and write the state of the cycle, which shows that the bridge is alive."""
        state = self._state_event("agent.mail.heartbeat", heartbeat_at=_utc_now().isoformat(timespec="milliseconds"))
        _log.info("agent.mail.heartbeat", extra={"event": state})
        fields = {name: value for name, value in state.items() if name != "event"}
        with suppress(OSError):  # a disk error is reported by the delivery
            data = json.dumps({**fields, "trouble": self.last_error}, indent=2).encode() + b"\n"
            await asyncio.to_thread(self.folder.below.write, data, STATE)
        self.cycled.set()

    def _state_event(self, name: str, **more: Any) -> dict[str, Any]:
        known = {"agent": self.folder.agent, "mode": self.pace.mode, "cycle": self.cycle, "open": self.open}
        return {"event": name, **known, "folder": self.folder.id, "pid": os.getpid(), **more}


def _utc_now() -> datetime:
    return datetime.now(UTC)
