"""A run as a stream of events, read from its history as it grows.

History has each event once and in order, and needs no worker. Partial text and retries are not in history, and are
read from the pending activity.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Self

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError

from activities.storage.watchers import keep_watched
from contracts.run.state import RunStatus
from decisions.ids import run_id_of_workflow
from decisions.text.formatting import truncate
from perdure.client.batches import format_batch_wait, is_batched, query_pool
from perdure.client.errors import RunNotFoundError
from perdure.client.event_reader import FUSED_TURN, EventReader, failure_message, first_value
from perdure.client.history import HistoryReader
from perdure.client.run_events import (
    ActivityRetrying,
    BatchWait,
    ModelCallStarted,
    PartialText,
    RateLimitWait,
    RunEvent,
    WaitStarted,
)
from perdure.client.run_list import RunInfo, find_run, is_retained
from perdure.client.runs import query_run_state

PENDING_POLL_INTERVAL = 0.2  # seconds between polls of a pending model turn
RETRY_POLL_INTERVAL = 1.0  # seconds between polls of other pending activities, which only report retries
MODEL_TURNS = frozenset({"plan", "reflect", FUSED_TURN})  # activity types
BATCH_POLL_INTERVALS = (5.0, 300.0)  # seconds between queries of the pool of batches, until the batch is sent and after
MAX_READ_AHEAD = 16  # events read ahead of a slow reader


@dataclass(frozen=True)
class EventPosition:
    """An event's place in history: the Temporal execution, the history event, and the number within it.

    It is the same for every reader. As text: `<execution>.<event>.<part>`.
    """

    execution: str
    event: int
    part: int
    time: datetime | None = field(default=None, compare=False)

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
    _batch: tuple[str, ...] = ()  # the call that waits for a batch, and the batch, as last reported
    _batch_due: float = 0.0  # when the pool is queried next
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
        history, reader, after = HistoryReader(self.client), EventReader(), self.after
        # If the history up to `after` is past retention, all remaining events are new.
        is_behind = after is not None and await is_retained(self.client, run.execution.id, after.execution)
        async with aclosing(history.read_events(run, follow=self.follow)) as events:
            async for execution, event in events:
                self._has_moved.set()
                if after is not None and execution == after.execution and event.event_id >= after.event:
                    is_behind = False
                for part, run_event in enumerate(reader.read(await history.event_to_json(event))):
                    at = EventPosition(execution, event.event_id, part, event.event_time.ToDatetime(UTC))
                    if not is_behind and not (after is not None and at.is_up_to(after)):
                        await self._queue.put((at, await self._with_question(run_event)))

    async def _with_question(self, run_event: RunEvent) -> RunEvent:
        if isinstance(run_event, WaitStarted) and run_event.status == RunStatus.waiting_on_human:
            with suppress(RunNotFoundError):
                if view := await query_run_state(self.client, self.run_id):
                    return replace(run_event, question=view.question)
        return run_event

    async def _poll_pending(self, run: RunInfo) -> None:
        handle, history = self.client.get_workflow_handle(run.execution.id), HistoryReader(self.client)
        reported: set[tuple[str, int]] = set()
        shown, thinking = PartialText(""), 0
        activities: Sequence[PendingActivityInfo] = ()
        queue = run.execution.task_queue
        while True:
            await self._wait_to_poll(
                [each for each in activities if not is_batched(each, queue)], is_pending=bool(activities)
            )
            self._has_moved.clear()
            try:
                activities = (await handle.describe()).raw_description.pending_activities
                for pending in activities:
                    if is_batched(pending, queue):
                        await self._report_batch(queue, pending.activity_id)
                    key = (pending.activity_id, pending.attempt)
                    if pending.attempt > 1 and key not in reported:
                        reported.add(key)
                        message = failure_message(await history.to_json(pending.last_failure))
                        retry = ActivityRetrying(
                            pending.activity_type.name, pending.attempt, truncate(message or "its worker died", 200)
                        )
                        await self._queue.put((None, retry))
                    beat = first_value(await history.to_json(pending.heartbeat_details))
                    if pending.activity_type.name == FUSED_TURN and (turn := _turn_in(beat)) > thinking:
                        thinking = turn  # its reads have ended
                        await self._queue.put((None, ModelCallStarted("reflect", turn)))
                    live = _partial_text(beat)
                    if live.text and live != shown:
                        shown = live
                        await self._queue.put((None, live))
            except RPCError:
                self._has_moved.set()

    async def _report_batch(self, task_queue: str, call: str) -> None:
        """Report the batch that the call waits for, once it waits and once it is sent."""
        if monotonic() < self._batch_due and call in self._batch:
            return
        pool = await query_pool(self.client, task_queue, call)
        self._batch_due = monotonic() + BATCH_POLL_INTERVALS[bool(pool and pool.open)]
        if pool and (batch := (call, *(known.id for known in pool.open))) != self._batch:
            self._batch = batch
            await self._queue.put((None, BatchWait(format_batch_wait(pool))))

    async def _wait_to_poll(self, activities: Sequence[PendingActivityInfo], *, is_pending: bool) -> None:
        """Wait until a poll may find something new. A run without pending activities has none until history grows."""
        if not any(pending.activity_type.name in MODEL_TURNS for pending in activities):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_moved.wait(), RETRY_POLL_INTERVAL if is_pending else None)
        await asyncio.sleep(PENDING_POLL_INTERVAL)


def _turn_in(beat: Any) -> int:
    return int(beat.get("turn", 0)) if isinstance(beat, dict) else 0


def _partial_text(beat: Any) -> PartialText:
    if not isinstance(beat, dict):
        return PartialText("")
    return RateLimitWait(str(beat["held"])) if beat.get("held") else PartialText(str(beat.get("text", "")))
