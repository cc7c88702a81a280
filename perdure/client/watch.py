"""A run as a stream of events, read from its history as it grows.

History has each event once and in order, and needs no worker. Partial text and retries are not in history, and are
read from the pending activity.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from activities.telemetry.attributes import AGENT_STATUS, WAITING_FOR
from contracts.delegation import DelegationRequest, DelegationState
from contracts.run.compaction import ContextFull, Summary
from contracts.run.events import ToolRequestEvent
from contracts.run.signals import HumanInput
from contracts.run.state import RunStatus
from contracts.run.turn import ModelTurn, TurnRequest
from contracts.tool import ToolCall, ToolOutcome
from decisions import ids
from decisions.text.formatting import truncate
from perdure.client.errors import RunNotFoundError
from perdure.client.run_events import (
    PUBLIC_NOTICES,
    ActivityFailed,
    ActivityRetrying,
    AnswerReceived,
    ContextCompacted,
    ContextFilled,
    ContinuedAsNew,
    DelegationFinished,
    DelegationStarted,
    ModelCallStarted,
    ModelReplied,
    NoticeAdded,
    PartialText,
    RateLimitWait,
    RunEnded,
    RunEvent,
    RunStarted,
    SignalReceived,
    ToolCallFinished,
    ToolCallStarted,
    WaitEnded,
    WaitStarted,
)
from perdure.client.run_list import find_run, first_retained, is_retained
from perdure.client.runs import query_run_state

QUEUED_CALL = "queued"  # a tool call on another task queue
PENDING_POLL_INTERVAL = 0.3  # seconds between polls of pending activities
POLL_ENDED = "branch tokens"  # in the server's message if it ends a long poll
MAX_POLL_RETRIES = 5  # in a row
MAX_READ_AHEAD = 16  # events read ahead of a slow reader


_END_EVENTS = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    }
)


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


@dataclass
class Watch:
    """Follows one run. Raises RunNotFoundError."""

    client: Client
    run_id: str
    follow: bool = True  # False: only the events so far
    after: EventPosition | None = None  # the last event that the reader has
    look_every: float = PENDING_POLL_INTERVAL
    _scheduled: dict[int, tuple[str, Any]] = field(default_factory=dict)
    _queue: asyncio.Queue[tuple[EventPosition | None, RunEvent]] = field(
        default_factory=lambda: asyncio.Queue(MAX_READ_AHEAD)
    )
    _waiting: bool = False
    _task_queue: str = ""
    _is_behind: bool = False  # `after` has not been reached yet

    async def events(self) -> AsyncIterator[RunEvent]:
        """Yield events from the run's first, or from `after`, to its end."""
        async with aclosing(self.positioned_events()) as entries:
            async for _, run_event in entries:
                yield run_event

    async def positioned_events(self) -> AsyncGenerator[tuple[EventPosition | None, RunEvent]]:
        """Yield events with their positions, if they are in history."""
        await find_run(self.client, self.run_id)
        tasks = [asyncio.create_task(self._read_history())]
        if self.follow:
            tasks.append(asyncio.create_task(self._poll_pending()))
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

    @property
    def _workflow_id(self) -> str:
        return ids.run_workflow_id(ids.run_id_of_workflow(self.run_id))

    async def _read_history(self) -> None:
        run = await find_run(self.client, self.run_id)
        execution: str | None = await first_retained(self.client, run)
        # If the history up to `after` is past retention, all remaining events are new.
        self._is_behind = self.after is not None and await is_retained(
            self.client, self._workflow_id, self.after.execution
        )
        while execution is not None:
            current, execution = execution, None
            async with aclosing(self._history_events(current)) as events:
                async for event in events:
                    self._is_behind = self._is_behind and not self._is_past(current, event.event_id)
                    for part, run_event in enumerate(await self._to_run_events(event)):
                        at = EventPosition(current, event.event_id, part, event.event_time.ToDatetime(UTC))
                        if not self._is_behind and not self._is_seen(at):
                            await self._queue.put((at, run_event))
                    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                        execution = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id

    async def _history_events(self, execution: str) -> AsyncGenerator[HistoryEvent]:
        """Yield each history event once. If the run changes at a bad moment the server ends the poll; it is retried."""
        handle = self.client.get_workflow_handle(self._workflow_id, run_id=execution)
        seen, failures = 0, 0
        while True:
            try:
                async for event in handle.fetch_history_events(wait_new_event=self.follow):
                    if event.event_id > seen:
                        seen, failures = event.event_id, 0
                        yield event
                return
            except RPCError as error:
                failures += 1
                if POLL_ENDED not in error.message or failures > MAX_POLL_RETRIES:
                    raise
            await asyncio.sleep(self.look_every)

    def _is_past(self, execution: str, event: int) -> bool:
        """Return whether the events from here on may be new."""
        return self.after is not None and execution == self.after.execution and event >= self.after.event

    def _is_seen(self, at: EventPosition) -> bool:
        after = self.after
        if after is None or at.execution != after.execution:
            return False
        return (at.event, at.part) <= (after.event, after.part)

    async def _to_run_events(self, event: HistoryEvent) -> list[RunEvent]:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                started = event.workflow_execution_started_event_attributes
                self._task_queue = started.task_queue.name
                inputs = await self.client.data_converter.decode(started.input.payloads)
                return [] if started.continued_execution_run_id else [RunStarted(_goal_of(inputs))]
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                return await self._on_scheduled(event)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                done = event.activity_task_completed_event_attributes
                return await self._on_completed(done.scheduled_event_id, done.result)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                failed = event.activity_task_failed_event_attributes
                return self._on_failed(failed.scheduled_event_id, await self._failure_message(failed.failure))
            case EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                late = event.activity_task_timed_out_event_attributes
                return self._on_failed(late.scheduled_event_id, "no end in time, or its worker died")
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                child = event.start_child_workflow_execution_initiated_event_attributes
                return [DelegationStarted(await self._decode_first(child.input, DelegationRequest))]
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                joined = event.child_workflow_execution_completed_event_attributes
                return [DelegationFinished(await self._decode_first(joined.result, DelegationState))]
            case EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
                upsert = event.upsert_workflow_search_attributes_event_attributes
                return await self._on_status(dict(upsert.search_attributes.indexed_fields))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signalled = event.workflow_execution_signaled_event_attributes
                answers = await self._to_answers(signalled.input) if signalled.signal_name == "human_input" else []
                return [SignalReceived(signalled.signal_name), *answers]
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                update = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
                return await self._to_answers(update.args) if update.name == "answer" else []
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                return [ContinuedAsNew()]
            case _:
                return [RunEnded()] if event.event_type in _END_EVENTS else []

    async def _to_answers(self, inputs: Payloads) -> list[RunEvent]:
        values = await self.client.data_converter.decode(inputs.payloads) if self._waiting else []
        with suppress(ValidationError):
            return [AnswerReceived(HumanInput.model_validate(value)) for value in values[:1]]
        return []

    async def _on_scheduled(self, event: HistoryEvent) -> list[RunEvent]:
        scheduled = event.activity_task_scheduled_event_attributes
        kind = scheduled.activity_type.name
        if scheduled.task_queue.name != self._task_queue:  # a tool of the kind `queue`
            request = (await self._decode_first(scheduled.input, ToolRequestEvent)).payload
            call = ToolCall(step=request.step, tool=request.tool, tool_use_id="", arguments=request.tool_payload)
            self._scheduled[event.event_id] = (QUEUED_CALL, call)
            return [ToolCallStarted(call)]
        if kind in ("plan", "reflect"):
            request = await self._decode_first(scheduled.input, TurnRequest)
            self._scheduled[event.event_id] = (kind, request)
            notices = [NoticeAdded(event) for event in request.told if event["event"] in PUBLIC_NOTICES]
            return [*notices, ModelCallStarted(kind, request.turn)]
        if kind == "call_tool":
            call = await self._decode_first(scheduled.input, ToolCall)
            self._scheduled[event.event_id] = (kind, call)
            return [ToolCallStarted(call)]
        self._scheduled[event.event_id] = (kind, None)
        return []

    async def _on_completed(self, scheduled: int, result: Payloads) -> list[RunEvent]:
        kind, request = self._scheduled.pop(scheduled, ("", None))
        if kind in ("plan", "reflect"):
            reply: ModelTurn | ContextFull = await self._decode_first(result, ModelTurn | ContextFull)
            return [ContextFilled(reply) if isinstance(reply, ContextFull) else ModelReplied(kind, request.turn, reply)]
        if kind == "summarize":
            return [ContextCompacted(await self._decode_first(result, Summary))]
        if kind == "call_tool":
            return [ToolCallFinished(request, await self._decode_first(result, ToolOutcome))]
        if kind == QUEUED_CALL:
            return [
                ToolCallFinished(
                    request, ToolOutcome(result=await self._decode_first(result, Any) if result.payloads else None)
                )
            ]
        return []

    def _on_failed(self, scheduled: int, error: str) -> list[RunEvent]:
        kind, request = self._scheduled.pop(scheduled, ("", None))
        return [
            ActivityFailed(f"{request.tool} · step {request.step}" if isinstance(request, ToolCall) else kind, error)
        ]

    async def _on_status(self, fields: dict[str, Payload]) -> list[RunEvent]:
        if AGENT_STATUS.name not in fields:
            return []
        status = json.loads(fields[AGENT_STATUS.name].data)
        if status not in (RunStatus.waiting_on_human, RunStatus.waiting_on_tool):
            was_waiting, self._waiting = self._waiting, False
            return [WaitEnded()] if was_waiting else []
        self._waiting = True
        reason = json.loads(fields[WAITING_FOR.name].data) if WAITING_FOR.name in fields else "a result from outside"
        question = None
        if status == RunStatus.waiting_on_human and not self._is_behind:
            with suppress(RunNotFoundError):
                view = await query_run_state(self.client, self.run_id)
                question = view.question if view else None
        return [WaitStarted(status, str(reason), question)]

    async def _poll_pending(self) -> None:
        handle = self.client.get_workflow_handle(self._workflow_id)
        reported: set[tuple[str, int]] = set()
        shown = PartialText("")
        while True:
            await asyncio.sleep(self.look_every)
            with suppress(RPCError):
                for pending in (await handle.describe()).raw_description.pending_activities:
                    key = (pending.activity_id, pending.attempt)
                    if pending.attempt > 1 and key not in reported:
                        reported.add(key)
                        error = truncate(await self._failure_message(pending.last_failure) or "its worker died", 200)
                        await self._queue.put(
                            (None, ActivityRetrying(pending.activity_type.name, pending.attempt, error))
                        )
                    live = await self._partial_text(pending.heartbeat_details)
                    if live.text and live != shown:
                        shown = live
                        await self._queue.put((None, live))

    async def _failure_message(self, failure: Failure) -> str:
        """Return a failure's message, decrypted if the run is encrypted."""
        if not failure.HasField("encoded_attributes"):
            return failure.message
        error = await self.client.data_converter.decode_failure(failure)
        return str(getattr(error, "message", error))

    async def _partial_text(self, details: Payloads) -> PartialText:
        if not details.payloads:
            return PartialText("")
        beat = (await self.client.data_converter.decode(details.payloads))[0]
        if not isinstance(beat, dict):
            return PartialText("")
        return RateLimitWait(str(beat["held"])) if beat.get("held") else PartialText(str(beat.get("text", "")))

    async def _decode_first(self, payloads: Payloads, kind: Any) -> Any:
        return (await self.client.data_converter.decode(payloads.payloads, [kind]))[0]


def _goal_of(inputs: list[Any]) -> str:
    """Return the goal in a run's input, which may be invalid."""
    start = inputs[0] if inputs else None
    payload = start.get("payload") if isinstance(start, dict) else None
    if not isinstance(start, dict) or not isinstance(payload, dict):
        return ""
    if start.get("type") != "agentic.resume":
        return str(payload.get("goal", ""))
    after = f", after step {payload['step']}" if payload.get("step") is not None else ""
    return f"go on from run {payload.get('run_id')}{after}{': ' + str(payload['say']) if payload.get('say') else ''}"
