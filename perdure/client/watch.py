"""A run as a stream of events, read from its history as it grows.

History has each event once and in order, and needs no worker. Partial text and retries are not in history, and are
read from the pending activity.
"""

import asyncio
import base64
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.service import RPCError

from perdure.activities.effects.held import held_activity
from perdure.activities.storage.watchers import keep_watched
from perdure.client.errors import RunNotFoundError
from perdure.client.records.event_reader import (
    CHECK_TASK,
    FUSED_TURN,
    TURN_ACTIVITIES,
    EventReader,
    failure_message,
    first_value,
    is_hold,
)
from perdure.client.run_events import (
    ActivityRetrying,
    BatchWait,
    ModelCallStarted,
    PartialText,
    QuestionClosed,
    RateLimitWait,
    RunEvent,
    RunHeld,
    ToolCallWaiting,
    WaitStarted,
)
from perdure.client.run_list import RunInfo, find_run, first_retained, is_retained
from perdure.client.runs import query_run_state
from perdure.contracts.models import nesting_depth
from perdure.contracts.run.export import ExportedExecution
from perdure.contracts.run.state import QuestionView
from perdure.decisions.ids import run_id_of_workflow
from perdure.decisions.text.formatting import split_waits, truncate
from perdure.registry import Pacing, load, paces

POLL_ENDED = "branch tokens"  # in the server's message if it ends a long poll
MAX_POLL_RETRIES = 5  # in a row
MAX_PAYLOAD_NESTING = 100  # levels of a payload that is exported as JSON; a deeper one is base64


@dataclass(frozen=True)
class HistoryReader:
    """Reads the history of a run, also as it grows."""

    client: Client
    retry_pause: float = 0.3  # seconds

    async def read_executions(self, run: RunInfo) -> list[ExportedExecution]:
        """Return all executions of the run that the server still has. Raises UnknownKeyError."""
        executions: dict[str, list[dict[str, Any]]] = {}
        async for execution, event in self.read_events(run):
            executions.setdefault(execution, []).append(await self.event_to_json(event))
        return [ExportedExecution(execution=execution, events=events) for execution, events in executions.items()]

    async def read_events(self, run: RunInfo, *, follow: bool = False) -> AsyncGenerator[tuple[str, HistoryEvent]]:
        """Yield each event with its execution, from the earliest that the server still has."""
        execution: str | None = await first_retained(self.client, run)
        while execution is not None:
            current, execution = execution, None
            async with aclosing(self._execution_events(run.execution.id, current, follow=follow)) as events:
                async for event in events:
                    yield current, event
                    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                        execution = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id

    async def _execution_events(
        self, workflow_id: str, execution: str, *, follow: bool
    ) -> AsyncGenerator[HistoryEvent]:
        """Yield each event once. If the run changes at a bad moment the server ends the poll; it is retried."""
        handle = self.client.get_workflow_handle(workflow_id, run_id=execution)
        seen, failures = 0, 0
        while True:
            try:
                async for event in handle.fetch_history_events(wait_new_event=follow):
                    if event.event_id > seen:
                        seen, failures = event.event_id, 0
                        yield event
                return
            except RPCError as error:
                failures += 1
                if POLL_ENDED not in error.message or failures > MAX_POLL_RETRIES:
                    raise
            await asyncio.sleep(self.retry_pause)

    async def event_to_json(self, event: HistoryEvent) -> dict[str, Any]:
        """Convert an event to an entry of `perdure.contracts.run.export.ExportedExecution`."""
        kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()
        plain = {"id": event.event_id, "type": kind, "at": event.event_time.ToDatetime(UTC).isoformat()}
        if event.user_metadata.HasField("summary"):
            plain["summary"] = await self._payload_to_json(event.user_metadata.summary)
        attributes = event.WhichOneof("attributes")
        fields: Mapping[str, Any] = await self.to_json(getattr(event, attributes)) if attributes else {}
        return {**fields, **plain}

    async def to_json(self, value: Any) -> Any:
        """Convert a value of Temporal's API to JSON."""
        plain: Any
        match value:
            case Payload():
                plain = await self._payload_to_json(value)
            case Payloads():
                plain = [await self._payload_to_json(payload) for payload in value.payloads]
            case Timestamp():
                plain = value.ToDatetime(UTC).isoformat()
            case Duration():
                plain = value.ToTimedelta().total_seconds()
            case Message():
                plain = {field.name: await self._field_to_json(field, inner) for field, inner in value.ListFields()}
            case bytes():
                plain = base64.b64encode(value).decode()
            case _:
                plain = value
        return plain

    async def _field_to_json(self, field: Any, value: Any) -> Any:
        if field.message_type and field.message_type.GetOptions().map_entry:
            return {str(key): await self.to_json(inner) for key, inner in value.items()}
        values = value if field.is_repeated else [value]
        if field.enum_type:
            plain: list[Any] = [_enum_name(field.enum_type, number) for number in values]
        else:
            plain = [await self.to_json(element) for element in values]
        return plain if field.is_repeated else plain[0]

    async def _payload_to_json(self, payload: Payload) -> Any:
        """Decode a payload, also from the object store. Raises UnknownKeyError, OSError."""
        clear: Payload = (await self.client.data_converter.decode([payload], [RawValue]))[0].payload
        try:
            value = json.loads(clear.data) if clear.data else None
            if nesting_depth(value) <= MAX_PAYLOAD_NESTING:
                return value
        except (ValueError, RecursionError):  # not JSON, or too deep to write inside other values
            pass
        encoding = clear.metadata.get("encoding", b"").decode(errors="replace")
        return {"encoding": encoding, "base64": base64.b64encode(clear.data).decode()}


def _enum_name(kind: EnumDescriptor, number: int) -> str:
    known = kind.values_by_number.get(number)
    return known.name if known else str(number)


PENDING_POLL_INTERVAL = 0.2  # seconds between polls of a pending model turn
RETRY_POLL_INTERVAL = 1.0  # seconds between polls of other pending activities, which only report retries
SEEN_AT = re.compile(r"looked at [0-9: UTC-]+")
MAX_READ_AHEAD = 16  # events read ahead of a slow reader


@dataclass(frozen=True)
class EventPosition:
    """An event's place in history: the Temporal execution, the history event, and the number within it.

    It is the same for every reader. As text: `<execution>.<event>.<part>`.
    """

    execution: str
    event: int
    part: int

    def __str__(self) -> str:
        return f"{self.execution}.{self.event}.{self.part}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a position. Raises ValueError."""
        match = re.fullmatch(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(\d{1,9})\.(\d{1,3})", text, re.ASCII)
        if match is None:
            raise ValueError("invalid event id")
        return cls(match[1], int(match[2]), int(match[3]))

    def is_up_to(self, other: "EventPosition") -> bool:
        """Return whether it is `other`, or earlier in the same execution."""
        return self.execution == other.execution and (self.event, self.part) <= (other.event, other.part)


@dataclass
class Watch:
    """Follows one run. Raises RunNotFoundError."""

    client: Client
    run_id: str
    follow: bool = True  # False: only the events so far
    after: EventPosition | None = None  # the last event that the reader has
    workspaces: Path | None = None  # if set, the run is marked as watched, and partial text comes while it is written
    _queue: asyncio.Queue[tuple[EventPosition | None, RunEvent]] = field(
        default_factory=lambda: asyncio.Queue(MAX_READ_AHEAD)
    )
    _waits: dict[str, Any] = field(default_factory=dict)  # what says what a call waits for, by the suffix of its queue
    _seen: str = ""  # what the last look at a task has found
    _has_moved: asyncio.Event = field(default_factory=asyncio.Event)  # history has grown since the last poll

    async def events(self) -> AsyncIterator[RunEvent]:
        """Yield events from the run's first, or from `after`, to its end."""
        async with aclosing(self.positioned_events()) as entries:
            async for _, run_event in entries:
                yield run_event

    async def positioned_events(self) -> AsyncGenerator[tuple[EventPosition | None, RunEvent]]:
        """Yield events with their positions, if they are in history."""
        run = await find_run(self.client, self.run_id)
        marked = (
            keep_watched(self.workspaces, run_id_of_workflow(run.execution.id)) if self.workspaces else nullcontext()
        )
        async with marked, aclosing(self._read_run(run)) as entries:
            async for entry in entries:
                yield entry

    async def _read_run(self, run: RunInfo) -> AsyncGenerator[tuple[EventPosition | None, RunEvent]]:
        tasks = [asyncio.create_task(self._read_history(run))]
        if self.follow:
            tasks.append(asyncio.create_task(self._poll_pending(run)))
        getting = asyncio.create_task(self._queue.get())
        try:
            while True:
                await asyncio.wait({getting, tasks[0]}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    tasks[0].result()  # the reader ends at the end of history, or with an error
                    return
                entry, getting = getting.result(), asyncio.create_task(self._queue.get())
                yield entry
        finally:
            for task in (*tasks, getting):
                task.cancel()
            await asyncio.gather(*tasks, getting, return_exceptions=True)

    async def _read_history(self, run: RunInfo) -> None:
        history, reader, held, after = HistoryReader(self.client), EventReader(), _HeldEvents(), self.after
        is_live = False  # from the event on that was the latest as the reading began
        # If the history up to `after` is past retention, all remaining events are new.
        is_behind = after is not None and await is_retained(self.client, run.execution.id, after.execution)
        async with aclosing(history.read_events(run, follow=self.follow)) as events:
            async for execution, event in events:
                self._has_moved.set()
                if after is not None and execution == after.execution and event.event_id >= after.event:
                    is_behind = False
                for part, run_event in enumerate(reader.read(await history.event_to_json(event))):
                    at = EventPosition(execution, event.event_id, part)
                    held.add(at, run_event)
                    if is_behind or (after is not None and at.is_up_to(after)):
                        held.entries.clear()
                is_latest = execution == run.execution.run_id and event.event_id >= run.execution.history_length
                is_live = is_live or is_latest
                await self._release(held, ask=is_live)
        await self._release(held, ask=False, all_of_them=True)

    async def _release(self, held: "_HeldEvents", *, ask: bool, all_of_them: bool = False) -> None:
        """Hand on events up to a wait whose questions are not known. With `ask`, the run is asked for open ones."""
        while held.entries:
            at, run_event = held.entries[0]
            if isinstance(run_event, WaitStarted) and run_event.is_for_person:
                questions = held.closed_after(run_event)
                is_whole = len(questions) >= len(split_waits(run_event.waiting_for))
                if not is_whole and not ask and not all_of_them:
                    return
                if not is_whole and ask:
                    questions += await self._open_questions(run_event)
                run_event = replace(run_event, questions=questions)
            held.entries.popleft()
            await self._queue.put((at, run_event))

    async def _open_questions(self, wait: WaitStarted) -> tuple[QuestionView, ...]:
        """Return the questions of a wait that are still open, if a worker answers."""
        view = None
        with suppress(RunNotFoundError):
            view = await query_run_state(self.client, self.run_id)
        return tuple(q for q in (view.questions if view else ()) if _was_asked(q, wait))

    async def _poll_pending(self, run: RunInfo) -> None:
        handle, history = self.client.get_workflow_handle(run.execution.id), HistoryReader(self.client)
        reported: set[tuple[str, int]] = set()
        shown, thinking = PartialText(""), 0
        activities: Sequence[PendingActivityInfo] = ()
        queue = run.execution.task_queue
        while True:
            await self._wait_to_poll(
                [each for each in activities if not _pacing_of(each, queue)], is_pending=bool(activities)
            )
            self._has_moved.clear()
            try:
                activities = (await handle.describe()).raw_description.pending_activities
                for pending in activities:
                    if pacing := _pacing_of(pending, queue):
                        await self._report_wait(pacing, queue, pending.activity_id)
                    key = (pending.activity_id, pending.attempt)
                    if (pending.attempt > 1 or pending.paused) and key not in reported:
                        reported.add(key)
                        if (delay := await _delay_of(run, pending, history)) and self._is_news(delay):
                            await self._put_live(delay)
                    beat = first_value(await history.to_json(pending.heartbeat_details))
                    if pending.activity_type.name == FUSED_TURN and (turn := _turn_in(beat)) > thinking:
                        thinking = turn  # its reads have ended
                        await self._put_live(ModelCallStarted("reflect", turn))
                    live = _partial_text(beat)
                    if live.text and live != shown:
                        shown = live
                        await self._put_live(live)
            except RPCError:
                self._has_moved.set()

    def _is_news(self, delay: RunEvent) -> bool:
        """Return whether a look at a task has found something else than the one before. Any other delay is news."""
        if not isinstance(delay, ToolCallWaiting):
            return True
        before, self._seen = self._seen, SEEN_AT.sub("", delay.text)
        return self._seen != before

    async def _put_live(self, live: RunEvent) -> None:
        """Hand on what is not in history."""
        await self._queue.put((None, replace(live, at=datetime.now(UTC))))

    async def _report_wait(self, pacing: Pacing, task_queue: str, call: str) -> None:
        if pacing.queue_suffix not in self._waits:
            self._waits[pacing.queue_suffix] = load(pacing.watch)(self.client)
        report: str | None = await self._waits[pacing.queue_suffix].report(task_queue, call)
        if report is not None:
            await self._put_live(BatchWait(report))

    async def _wait_to_poll(self, activities: Sequence[PendingActivityInfo], *, is_pending: bool) -> None:
        """Wait until a poll may find something new. A run without pending activities has none until history grows."""
        if not any(pending.activity_type.name in (*TURN_ACTIVITIES, FUSED_TURN) for pending in activities):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_moved.wait(), RETRY_POLL_INTERVAL if is_pending else None)
        await asyncio.sleep(PENDING_POLL_INTERVAL)


@dataclass
class _HeldEvents:
    """Events from a wait for a person on: what was asked is in history once the question has closed."""

    entries: deque[tuple[EventPosition, RunEvent]] = field(default_factory=deque)
    _closed: list[QuestionClosed] = field(default_factory=list)

    def add(self, at: EventPosition, run_event: RunEvent) -> None:
        self.entries.append((at, run_event))
        if isinstance(run_event, QuestionClosed):
            self._closed.append(run_event)

    def closed_after(self, wait: WaitStarted) -> tuple[QuestionView, ...]:
        """Return the questions that were open at the wait and have closed since."""
        still_open = (c for c in self._closed if wait.at is not None and c.closed_at > wait.at)
        return tuple(closed.question for closed in still_open if _was_asked(closed.question, wait))


def _was_asked(question: QuestionView, wait: WaitStarted) -> bool:
    return question.asked_at is None or wait.at is None or question.asked_at <= wait.at


def _pacing_of(pending: PendingActivityInfo, task_queue: str) -> Pacing | None:
    """Return the pace of a model call that waits apart from the run's task queue."""
    queue = pending.activity_options.task_queue.name
    return next((pacing for pacing in paces().values() if queue == f"{task_queue}{pacing.queue_suffix}"), None)


async def _delay_of(run: RunInfo, pending: PendingActivityInfo, history: HistoryReader) -> RunEvent | None:
    """Return why an activity is not in its first attempt, or is paused; None for one that has just gone on."""
    kind = pending.activity_type.name
    if held := held_activity(run.execution.id, run.execution.run_id, pending):
        return RunHeld(kind, held.by, held.why, held.since)
    failure = await history.to_json(pending.last_failure)
    if is_hold(failure):
        return None
    if kind == CHECK_TASK and failure_message(failure):
        return ToolCallWaiting(truncate(failure_message(failure), 500))
    return ActivityRetrying(kind, pending.attempt, truncate(failure_message(failure) or "its worker died"))


def _turn_in(beat: Any) -> int:
    return int(beat.get("turn", 0)) if isinstance(beat, dict) else 0


def _partial_text(beat: Any) -> PartialText:
    if not isinstance(beat, dict):
        return PartialText("")
    turn = _turn_in(beat)
    if beat.get("held"):
        return RateLimitWait(str(beat["held"]), turn=turn)
    return PartialText(str(beat.get("text", "")), turn=turn)
