"""The bridge between a folder and the lanes of its agent: claims files, and brings messages to their end.

Of several bridges on a folder one serves it, and the others wait for its lock. The folder holds all that is in hand: a
message stays in the incoming folder or in `.pending/` until its end is written, and the record of its task tells how
far it is. So a bridge can end at any time, and the next one goes on.
"""

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.runtime import Runtime
from temporalio.service import RPCError
from temporalio.worker import Worker

from perdure.activities.redaction import RedactionInterceptor
from perdure.activities.security import NO_SECRETS, Secrets
from perdure.activities.telemetry.metrics import add_counts
from perdure.answer_keys import NO_KEYS, AnswerKeys, MissingKeyError
from perdure.contracts.bounds import Backoff
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import RunView
from perdure.decisions import ids, telemetry
from perdure.decisions.text.formatting import truncate
from perdure.features.mailbox.activities.folder import (
    DELIVERIES,
    STATE,
    ClaimedFile,
    MailFolder,
    MailFolderError,
    format_os_error,
)
from perdure.features.mailbox.activities.handler import MessageHandler
from perdure.features.mailbox.activities.inputs import PreparedDelivery, prepare_delivery
from perdure.features.mailbox.activities.pages import TaskPages
from perdure.features.mailbox.activities.peers import OutsidePeer
from perdure.features.mailbox.activities.picks import InputPicks
from perdure.features.mailbox.activities.records import TaskRecords
from perdure.features.mailbox.activities.server import OpenWork, check_open_work
from perdure.features.mailbox.activities.watch import FolderWatcher
from perdure.features.mailbox.activities.writer import MailWriter
from perdure.features.mailbox.contract import Delivery, DeliveryVerdict, InboxMessage, Stage, TaskRecord, TaskState
from perdure.features.mailbox.rules.admission import (
    FILE_GONE,
    FileJudgement,
    add_transition,
    bad_message_ending,
    judge_file,
    new_message,
    stub_of,
    to_end,
)
from perdure.features.mailbox.rules.poll_mode import PollMode, PollPolicy, PollState, after_cycle, wake
from perdure.features.mailbox.rules.turns import TurnQueue
from perdure.process.guard import guard_interceptors, hold_interceptor

MAX_CLAIMS = 100  # files of a cycle
PAGE_REFRESH_CYCLES = 5  # cycles
SHORT_PAUSE, INPUT_DELAY = 0.2, 0.3  # seconds
CYCLE_SECONDS = 1.0  # seconds between cycles if nothing wakes it, and between checks of the lock
CYCLE_RETRIES = Backoff(0.5, 10.0)  # while the server or the disk fails
UNCLAIMED_SCAN_INTERVAL = 5.0  # seconds between scans for files in `.pending/` that are not in hand
MAX_TAKEN_AT_ONCE = 8  # messages that are handed to their lanes at once, so that the next turn is still open
STEP_RETRIES = Backoff(5.0, 300.0)  # of a step of a message
BRIDGE_GRACE = 5.0  # seconds for steps that are at work when the bridge stops

RETRYABLE_ERRORS = (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError, OSError)

_log = logging.getLogger(__name__)


@dataclass
class Bridge:
    """A bridge. Runs have their workspaces below `workspaces`; `secrets` are kept out of what it logs and returns."""

    client: Client
    task_queue: str
    folder: MailFolder
    workspaces: Path
    patience: PollPolicy = field(default_factory=PollPolicy)
    keys: AnswerKeys = NO_KEYS
    secrets: Secrets = NO_SECRETS
    pace: PollState = field(default_factory=lambda: PollState(since=_utc_now()))
    cycle: int = 0
    asking: int = 0  # open messages that wait for a person's pick
    trouble: str = ""  # the error that blocks all work
    unread: dict[ClaimedFile, str] = field(default_factory=dict)  # read errors by file, retried later
    cycled: asyncio.Event = field(default_factory=asyncio.Event)  # set after each cycle
    messages: dict[str, InboxMessage] = field(default_factory=dict)  # the open messages of files, by key
    _backlog: deque[ClaimedFile] = field(default_factory=deque)
    _known: set[ClaimedFile] = field(default_factory=set)  # files in `.pending/` that were judged
    _parked: dict[ClaimedFile, Delivery] = field(default_factory=dict)  # without their inputs
    _queue: TurnQueue = field(default_factory=TurnQueue)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # by the key or the file of a message
    _taking: set[str] = field(default_factory=set)  # keys of messages that are being handed to their lanes
    _scanned_at: float | None = None
    _leads: bool = False
    _has_unclaimed: bool = True  # on standby, a file waits for its claim
    _failures: int = 0
    _reported: str = ""  # the last logged error
    _inputs_due: float | None = field(default_factory=lambda: time.monotonic() + INPUT_DELAY)

    def __post_init__(self) -> None:
        writer = MailWriter(self.folder)
        self.records = TaskRecords(self.folder.below)
        self.peer = OutsidePeer(self.client, writer)
        self._writer = writer
        self._watcher = FolderWatcher(self.folder)
        self._picks = InputPicks(self.client, writer, self._record_pick, self._sign_answer)
        self._pages = TaskPages(self.client, writer)
        self._handler = MessageHandler(self.client, writer, self._pages, self.workspaces, self.task_queue)

    @property
    def open(self) -> int:
        return len(self.messages) + len(self.peer.sent)

    @property
    def is_quiet(self) -> bool:
        """All files have been judged, and no new one has arrived. On standby: no file waits for its claim."""
        is_unsure = self._scanned_at is None if self._leads else self._has_unclaimed
        return not (self._backlog or self._is_due_soon or self.trouble or is_unsure) and self.folder.is_through

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

    async def open_work(self) -> OpenWork | None:
        """Return what the open messages wait for, by the folder. None: a file is not in any of them yet."""
        open_messages = await asyncio.to_thread(lambda: list(self.records.open_messages()))
        files = {(message.plan, message.file) for message in open_messages}
        pending = await asyncio.to_thread(lambda: list(self.folder.pending_files()))
        if any((claimed.plan, claimed.file) not in files and claimed not in self.unread for claimed in pending):
            return None
        return await check_open_work(self.client, open_messages)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped; disk and server errors are retried."""
        stopped = asyncio.create_task(stop.wait())
        async with AsyncExitStack() as stack:
            stack.callback(self.folder.resign)
            stack.push_async_callback(self._watcher.close)
            stack.push_async_callback(self._end_tasks)
            stack.callback(stopped.cancel)
            while not stop.is_set():
                await self._watcher.start()  # before the scan: a file that arrives meanwhile wakes the next cycle
                self._watcher.woken.clear()
                has_worked = await self._run_cycle(stack)
                self._set_pace(has_worked=has_worked)
                await self._publish_state()
                if not has_worked or self.trouble:
                    await self._wait_for_cycle(stopped)

    def _set_pace(self, *, has_worked: bool) -> None:
        if not self._leads:
            self.pace = PollState(mode=PollMode.standby, since=_utc_now())
            return
        if self.pace.mode is PollMode.standby:
            self.pace = PollState(since=_utc_now())
        is_due = not self.is_quiet or self.folder.has_unclaimed
        must_scan = is_due or self.asking > 0 or not self._watcher.is_watching
        self.pace = after_cycle(
            self.pace, has_worked=has_worked, must_scan=must_scan, now=_utc_now(), patience=self.patience
        )

    async def _wait_for_cycle(self, stopped: asyncio.Task[bool]) -> None:
        """Wait until a file arrives or the next cycle is due."""
        came = asyncio.create_task(self._watcher.woken.wait())
        pause = CYCLE_RETRIES.seconds(self._failures) if self.trouble else CYCLE_SECONDS
        waits_for = {stopped} if self.trouble or not self._leads else {stopped, came}
        is_soon = not self.trouble and self._leads and (self._is_due_soon or not self.folder.is_through)
        is_dormant = self.pace.mode is PollMode.dormant
        seconds = None if is_dormant else SHORT_PAUSE if is_soon else pause
        await asyncio.wait(waits_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if came.done():
            self.pace = wake(self.pace, _utc_now())
        came.cancel()

    async def _run_cycle(self, stack: AsyncExitStack) -> bool:
        """Run a cycle. Return whether it completed some work."""
        self.cycle += 1
        has_worked, failure = False, None
        self._drop_done_tasks()
        try:
            if not await self._lead(stack):
                self.trouble, self._failures, self._inputs_due = "", 0, None
                self._has_unclaimed = bool(await asyncio.to_thread(self.folder.scan, 1))
                return False
            has_worked = await self._scan_and_admit()
        except RETRYABLE_ERRORS as error:
            failure = error
        if self._leads and not isinstance(failure, MailFolderError):  # the folder may have another owner now
            try:
                await self._update_people(has_worked=has_worked)
            except RETRYABLE_ERRORS as error:
                failure = failure or error
        if failure is not None:
            self._record_error(self._format_failure(failure))
            return False
        self._reported = self.trouble
        return has_worked

    async def _lead(self, stack: AsyncExitStack) -> bool:
        """Return whether this bridge serves the folder. Once it does, go on with what is in hand."""
        if self._leads:
            return True
        if not await asyncio.to_thread(self.folder.lead):
            return False
        self._inputs_due = time.monotonic() + INPUT_DELAY
        for message in await asyncio.to_thread(lambda: list(self.records.open_messages())):
            await self._resume(message)
        if self.folder.outside:
            await stack.enter_async_context(self._peer_worker())
        self._leads = True
        return True

    def _peer_worker(self) -> Worker:
        """Return a worker for what delegations ask of an agent that lives outside."""
        return Worker(
            self.client,
            task_queue=ids.mail_queue(self.folder.agent),
            activities=[self.peer.dispatch_mail, self.peer.withdraw_mail],
            interceptors=[
                *guard_interceptors(self.client),
                hold_interceptor(self.client, self.task_queue, ["dispatch_mail"]),
                RedactionInterceptor(self.secrets),
            ],
        )

    async def _resume(self, message: InboxMessage) -> None:
        """Go on with an open message of an earlier bridge."""
        if message.stage is Stage.sent:
            self.peer.sent[message.key] = message
        elif message.stage is not Stage.blocked:
            self._accept(message)
        elif await asyncio.to_thread(self.folder.has_pending_file, message.plan, message.file):
            self.messages[message.key] = message  # its file is judged again
        else:
            self._accept(to_end(message, bad_message_ending(FILE_GONE), _utc_now()))

    async def _scan_and_admit(self) -> bool:
        if self._watcher.has_inputs:  # they may be incomplete
            self._watcher.has_inputs, self._inputs_due = False, time.monotonic() + INPUT_DELAY
        if self._inputs_due is not None and self._inputs_due <= time.monotonic():
            self._inputs_due = None
            self._requeue_parked()
        if await self._find_pending() and not self._watcher.is_watching:
            self._requeue_parked()  # no watcher reports inputs
        has_worked = await self._admit_next()
        self._begin_next()
        return has_worked

    async def _update_people(self, *, has_worked: bool) -> None:
        """Process people's picks and refresh their pages, even if nothing can be claimed."""
        if self.cycle % 10 == 0 or not has_worked:
            self.asking = await self._picks.check_requests()
        if self.open and self.cycle % PAGE_REFRESH_CYCLES == 0:
            await self._pages.refresh_pages(self.messages.values())
        await self.peer.check_sent()

    def _format_failure(self, error: Exception) -> str:
        match error:
            case RPCError():
                return f"the server cannot be reached: {truncate(error.message, 200)}"
            case WorkflowUpdateRPCTimeoutOrCancelledError():
                return "the server cannot be reached: no worker answers"
            case WorkflowUpdateFailedError():
                return f"a lane rejected it: {truncate(str(error.cause), 200)}"
            case OSError() if not isinstance(error, MailFolderError):
                return f"{self.folder.root}: {format_os_error(error)}"
            case _:
                return str(error)

    def _record_error(self, error: str) -> None:
        """Record an error, and log it once."""
        if error != self._reported:
            _log.warning("agent.mail.trouble", extra={"event": self._state_event("agent.mail.trouble", why=error)})
        self.trouble, self._reported, self._failures = error, error, self._failures + 1

    # files

    async def _admit_next(self) -> bool:
        """Claim, read and judge the next files. Return whether there were some."""
        if not self._backlog:
            self._backlog.extend(await asyncio.to_thread(self._claim_files))
        batch = list(islice(self._backlog, MAX_CLAIMS))
        found = [one for one in await asyncio.to_thread(self._read_files, batch) if one is not None]
        if any(one.is_early for one in found):
            self._inputs_due = time.monotonic() + INPUT_DELAY
        new = [one for one in found if self._parked.get(one.claimed) != one.delivery]
        judged = await asyncio.to_thread(lambda: {one.claimed: self._judge(one.delivery) for one in new})
        if new:
            await asyncio.to_thread(self._log_deliveries, new, judged)
        for one in new:
            self._follow(one, judged[one.claimed])
        for _ in batch:
            self._backlog.popleft()
        self.trouble, self._failures = "", 0
        return bool(batch)

    def _claim_files(self) -> list[ClaimedFile]:
        """Claim the next files, plan by plan. A disk error on one does not block the others."""
        claims, errors = list[ClaimedFile](), list[OSError]()
        for file in self.folder.scan(MAX_CLAIMS):
            if not self._queue.has_room(file.plan):
                continue
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

    def _read_files(self, batch: list[ClaimedFile]) -> list[PreparedDelivery | None]:
        """Read claimed files. Those that are gone become None, as do unreadable ones, which are retried later."""
        found: list[PreparedDelivery | None] = []
        for claimed in batch:
            self._known.add(claimed)
            self.unread.pop(claimed, None)
            try:
                found.append(prepare_delivery(self.folder, claimed))
            except FileNotFoundError:
                found.append(self._end_removed(claimed))
            except OSError as error:
                self.unread[claimed] = f"{claimed.plan}/{claimed.file} is tried again: {format_os_error(error)}"
                _log.warning("%s: %s", self.folder.root, self.unread[claimed])
                self._known.discard(claimed)
                found.append(None)
        return found

    def _end_removed(self, claimed: ClaimedFile) -> PreparedDelivery | None:
        """Return a failed delivery for a parked file that was removed: its message must end."""
        parked = self._parked.get(claimed)
        if parked is None or self.folder.is_put_away(claimed):
            self._parked.pop(claimed, None)
            return None
        return PreparedDelivery(claimed, parked.evolve(missing=(), fault=FILE_GONE))

    def _judge(self, delivery: Delivery) -> FileJudgement:
        """Judge a file by the record of its task, which remembers the verdict. Raises OSError."""
        if delivery.head is None:
            fault = delivery.fault or "it is not a message"
            return FileJudgement(DeliveryVerdict.dead, stub_of(delivery.plan, delivery.file), fault)
        message, verdicts = new_message(delivery, delivery.head), list[FileJudgement]()

        def change(record: TaskRecord) -> TaskRecord:
            after, judged = judge_file(record, message, delivery, _utc_now())
            verdicts.append(judged)
            return after

        self.records.update(message.task, change)
        return verdicts[-1]

    def _follow(self, found: PreparedDelivery, judged: FileJudgement) -> None:
        """Do what the verdict on a file says. Messages that wait for inputs are parked."""
        message = judged.message
        self._parked.pop(found.claimed, None)
        match judged.verdict:
            case DeliveryVerdict.blocked:
                self._parked[found.claimed] = found.delivery
                self.messages[message.key] = message
                self._start(f"state of {message.key}", message, self._writing_state(message))
            case DeliveryVerdict.dead if message.ending is None:
                if not message.key:
                    self._report_dead(message, judged.why)
                self._start(message.file, message, lambda: self._handler.put_aside(judged))
            case DeliveryVerdict.admitted | DeliveryVerdict.known | DeliveryVerdict.dead:
                self._accept(message)
            case _:
                self._start(message.file, message, lambda: self._handler.put_aside(judged))

    def _log_deliveries(self, new: list[PreparedDelivery], judged: Mapping[ClaimedFile, FileJudgement]) -> None:
        at, lines = _utc_now().isoformat(timespec="milliseconds"), []
        for one in new:
            delivery, head = one.delivery, one.delivery.head
            known = head.model_dump(include={"message_id", "task_id", "idempotency_key"}) if head else {}
            verdict = judged[one.claimed].verdict
            known |= {"verdict": verdict, "fault": delivery.fault, "missing": delivery.missing}
            known = {name: value for name, value in {**known, "note": one.note}.items() if value}
            line = {"at": at, "plan": delivery.plan, "file": delivery.file, "sha256": delivery.sha256, **known}
            lines.append(json.dumps(line, ensure_ascii=False))
        self.folder.below.append("".join(f"{line}\n" for line in lines).encode(errors="replace"), DELIVERIES)

    def _requeue_parked(self) -> None:
        """Add parked messages to the backlog: their inputs may have arrived."""
        self._backlog.extend(sorted(self._parked.keys() - set(self._backlog)))

    async def _find_pending(self) -> bool:
        """Add files in `.pending/` that were not judged: those of an earlier bridge, and those that could not be read.

        Return whether the folder was scanned.
        """
        now = time.monotonic()
        if self._scanned_at is not None and now - self._scanned_at < UNCLAIMED_SCAN_INTERVAL:
            return False
        await asyncio.to_thread(self.folder.check_identity)
        if not await asyncio.to_thread(self.folder.lead):  # the folder was replaced, and another bridge has it
            raise OSError("another bridge serves this folder")
        files = await asyncio.to_thread(lambda: list(self.folder.pending_files()))
        pending, waiting = set(files), set(self._backlog)
        self._known &= pending
        self.unread = {claimed: error for claimed, error in self.unread.items() if claimed in pending}
        gone = sorted(self._parked.keys() - pending - waiting)
        self._scanned_at = now
        self._backlog.extend((*(one for one in files if one not in self._known and one not in waiting), *gone))
        return True

    # messages

    def _accept(self, message: InboxMessage) -> None:
        """Take an open message in hand: tasks wait for their turn, and all others begin at once."""
        known = self.messages.get(message.key)
        if message.key in self._tasks or (known is not None and known.stage is Stage.admitted):
            return
        self.messages[message.key] = message
        if message.stage is Stage.admitted and not message.is_reply:
            self._queue.add(message)
        else:
            self._start_advancing(message)

    def _begin_next(self) -> None:
        """Begin the messages whose turn it is."""
        while len(self._taking) < MAX_TAKEN_AT_ONCE:
            running = [one.plan_id for key, one in self.messages.items() if key in self._tasks and not one.is_reply]
            message = self._queue.take(running)
            if message is None:
                return
            self._taking.add(message.key)
            self._start_advancing(message)

    def _start_advancing(self, message: InboxMessage) -> None:
        self._start(message.key, message, lambda: self._advance(message.key))

    async def _advance(self, key: str) -> bool:
        """Take the next step of a message. Return whether there are more."""
        message = self.messages[key]
        if message.not_before is not None and message.stage is Stage.admitted:
            await asyncio.sleep((message.not_before - _utc_now()).total_seconds())
        try:
            after = await self._handler.advance(message)
        finally:
            self._taking.discard(key)
        self._begin_next()
        if after is not None:
            self.messages[key] = after
            return True
        del self.messages[key]
        record = await asyncio.to_thread(self.records.read, message.task)
        if (seen := record.seen.get(key)) is not None and seen.verdict is DeliveryVerdict.dead:
            self._report_dead(message, seen.why)
        elif message.is_reply:
            await self.peer.close_answered(message)
        return False

    def _writing_state(self, message: InboxMessage) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: asyncio.to_thread(self._writer.write_state, message)

    def _start(self, name: str, message: InboxMessage, step: Callable[[], Awaitable[bool | None]]) -> None:
        """Begin the steps of a message."""
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._persist(name, message, step))

    async def _persist(self, name: str, message: InboxMessage, step: Callable[[], Awaitable[bool | None]]) -> None:
        """Take a step until there are no more. One that the disk or the server prevents is repeated."""
        failures, has_more = 0, True
        while has_more:
            try:
                has_more = bool(await step())
            except (*RETRYABLE_ERRORS, ValueError, RecursionError) as error:  # the last two of another program's file
                self._record_undone(message, error)
                failures += 1
                await asyncio.sleep(STEP_RETRIES.seconds(failures))
                continue
            if failures:
                self.folder.undone, failures = "", 0
        del self._tasks[name]
        self._watcher.woken.set()  # the next one may begin

    def _record_undone(self, message: InboxMessage, error: Exception) -> None:
        reason = format_os_error(error) if isinstance(error, OSError) else truncate(str(error), 200)
        problem = f"{truncate(message.file or message.message_id, 100)}: {reason}; it will be retried"
        if problem != self.folder.undone:
            _log.warning("%s: %s", self.folder.root, problem)
        self.folder.undone = problem

    def _drop_done_tasks(self) -> None:
        """Raise the error of a step that has failed by a bug."""
        for task in list(self._tasks.values()):
            if task.done():
                task.result()

    async def _end_tasks(self) -> None:
        """Stop all steps. The next bridge repeats those that were at work."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=BRIDGE_GRACE)

    async def _record_pick(self, key: str) -> None:
        """Record that a person has chosen the file of an input, so its run goes on."""
        message = self.messages.get(key)
        if message is None or message.stage is not Stage.running:
            return
        resumed = add_transition(message, TaskState.running, _utc_now()).evolve(undecided=())
        self.messages[key] = await self._handler.save(resumed)
        await asyncio.to_thread(self._writer.write_state, resumed)

    def _report_dead(self, message: InboxMessage, reason: str) -> None:
        name = "agent.mail.dead_letter"
        figures = message.model_dump(mode="json", include={"plan", "file", "message_id", "attempt"}) | {"why": reason}
        _log.warning(name, extra={"event": {"event": name, "agent": self.folder.agent, **figures}})
        add_counts(Runtime.default().metric_meter, telemetry.count_event(name, figures))

    # its own state

    async def _publish_state(self) -> None:
        """Log and write the state of the cycle, which shows that the bridge is alive."""
        if self._leads:
            state = self._state_event(
                "agent.mail.heartbeat", heartbeat_at=_utc_now().isoformat(timespec="milliseconds")
            )
            _log.info("agent.mail.heartbeat", extra={"event": state})
            fields = {name: value for name, value in state.items() if name != "event"}
            with suppress(OSError):  # a disk error is reported by the cycle
                data = json.dumps({**fields, "trouble": self.last_error}, indent=2).encode() + b"\n"
                await asyncio.to_thread(self.folder.below.write, data, STATE)
        self.cycled.set()

    def _state_event(self, name: str, **more: Any) -> dict[str, Any]:
        known = {"agent": self.folder.agent, "mode": self.pace.mode, "cycle": self.cycle, "open": self.open}
        return {"event": name, **known, "folder": self.folder.id, "pid": os.getpid(), **more}


def _utc_now() -> datetime:
    return datetime.now(UTC)
