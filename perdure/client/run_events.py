"""The events of a run, and reading them from its history."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from perdure.activities.telemetry.attributes import AGENT_STATUS, WAITING_FOR
from perdure.client.errors import UNEXPECTED_SHAPE
from perdure.contracts.failures import HELD
from perdure.contracts.media import Attachment, Attachments
from perdure.contracts.run.events import ToolResultEvent
from perdure.contracts.run.signals import ANSWER_REPORT, QUESTION_CLOSED, HumanInput
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.contracts.run.turn import (
    Acceptance,
    ContextFull,
    FailedTurn,
    FusedTurn,
    ModelTurn,
    PolicyReview,
    PolicyVerdicts,
    Summary,
)
from perdure.contracts.tool import Hold, ToolCall, ToolError, ToolOutcome, error_outcome
from perdure.decisions.run.question import answer_digest
from perdure.decisions.text.formatting import call_line
from perdure.decisions.text.visible_text import cut_text
from perdure.decisions.tool_requests import REQUEST_TYPE_PREFIX
from perdure.decisions.tools import unwrap_use
from perdure.registry import event_readers, feature_tools, load, paces

# The trace holds more notices; people see the others as a call, a summary, a question or the end.
PLANNED = "agent.call.planned"
PUBLIC_NOTICES = (PLANNED, "agent.guardrail.escalated", "agent.exhaustion.soft_limit")


@dataclass(frozen=True)
class TimedEvent:
    """The base of all events. `at` is the time of the server's event, or of the reading if it is not in history."""

    type: ClassVar[str]
    at: datetime | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class RunStarted(TimedEvent):
    type: ClassVar = "run_started"
    goal: str
    attachments: tuple[Attachment, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class ModelCallStarted(TimedEvent):
    type: ClassVar = "model_call_started"
    phase: str  # plan or reflect
    turn: int


@dataclass(frozen=True)
class ModelReplied(TimedEvent):
    type: ClassVar = "model_replied"
    phase: str
    turn: int
    reply: ModelTurn
    calls: tuple[str, ...] = ()
    """The reply's calls of features' tools that have no events of their own, each as a line."""


@dataclass(frozen=True)
class ContextFilled(TimedEvent):
    """The conversation is too long for the model: it was not called, or refused."""

    type: ClassVar = "context_full"
    full: ContextFull


@dataclass(frozen=True)
class ContextCompacted(TimedEvent):
    """A summary replaces the older messages."""

    type: ClassVar = "context_compacted"
    summary: Summary


@dataclass(frozen=True)
class OutcomeChecked(TimedEvent):
    """The agent's `accept` accepted the outcome, or rejected it with a reason."""

    type: ClassVar = "outcome_checked"
    acceptance: Acceptance


@dataclass(frozen=True)
class CallsReviewed(TimedEvent):
    """Models reviewed calls, as rules of the policy ask for."""

    type: ClassVar = "calls_reviewed"
    reviews: tuple[PolicyReview, ...]


@dataclass(frozen=True)
class NoticeAdded(TimedEvent):
    """A limit or a loop that the run acted on, or a call that its plan approves, with its figures."""

    type: ClassVar = "notice_added"
    event: dict[str, Any]


@dataclass(frozen=True)
class ToolCallStarted(TimedEvent):
    type: ClassVar = "tool_call_started"
    call: ToolCall


@dataclass(frozen=True)
class ToolCallFinished(TimedEvent):
    type: ClassVar = "tool_call_finished"
    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True)
class ToolCallRefused(TimedEvent):
    """A call that was not made: it is denied or invalid, or nothing is left for it. `call` is the call as a line.

    `step` is unset if the call was refused before it took one.
    """

    type: ClassVar = "tool_call_refused"
    tool: str
    tool_use_id: str
    step: int | None
    call: str
    error: ToolError


@dataclass(frozen=True)
class ToolResultReceived(TimedEvent):
    """A result from outside has reached the run, which takes it if it waits for it. A large one is cut."""

    type: ClassVar = "tool_result_received"
    step: int
    tool: str
    outcome: ToolOutcome


@dataclass(frozen=True)
class SubtaskMove:
    """A subtask as an event reports it. `run_id` is empty for a peer that lives outside."""

    id: str
    agent: str
    run_id: str
    status: str
    outcome: str = ""


@dataclass(frozen=True)
class FeatureEvent(TimedEvent, ABC):
    """An event of a feature, whose reader is in the feature's row. It says itself how it is shown."""

    activity: ClassVar[str]  # what it is about, by the name that an `ActivityFailed` has

    @property
    def step(self) -> int:
        """The step of the run that it belongs to; 0: none."""
        return 0

    @property
    def doing(self) -> str:
        """The work of the run from now on; empty: none."""
        return ""

    @property
    def subtasks(self) -> tuple[SubtaskMove, ...]:
        """The subtasks that it is about."""
        return ()

    @abstractmethod
    def lines(self, width: int | None) -> Iterator[Any]:
        """Yield the lines for a person, as `perdure.terminal.event_lines` does."""


@dataclass(frozen=True)
class ActivityFailed(TimedEvent):
    """An activity failed for good; the run decides what that means. `tool_use_id` is set if it made a call."""

    type: ClassVar = "activity_failed"
    activity: str
    error: str
    tool_use_id: str = ""


@dataclass(frozen=True)
class WaitStarted(TimedEvent):
    """The run waits for a person, or for a result from outside.

    `questions` are those that are open at this point. Without a worker that answers, an open one is not known.
    """

    type: ClassVar = "wait_started"
    status: str
    waiting_for: str
    questions: tuple[QuestionView, ...] = ()

    @property
    def is_for_person(self) -> bool:
        return self.status == RunStatus.waiting_on_human


@dataclass(frozen=True)
class WaitEnded(TimedEvent):
    type: ClassVar = "wait_ended"


@dataclass(frozen=True)
class SignalReceived(TimedEvent):
    type: ClassVar = "signal_received"
    signal: str


@dataclass(frozen=True)
class AnswerReceived(TimedEvent):
    """The run took an answer to an open question. `before` has the arguments of the call, if it changed them."""

    type: ClassVar = "answer_received"
    answer: HumanInput
    before: dict[str, Any] | None = None


@dataclass(frozen=True)
class AnswerRejected(TimedEvent):
    """The run did not take an answer that had reached it, for this reason."""

    type: ClassVar = "answer_rejected"
    answer: HumanInput
    reason: str


@dataclass(frozen=True)
class QuestionClosed(TimedEvent):
    """A question is not open any more: it was `answered`, has `expired`, or was `withdrawn`.

    The run reports it with its next activity, so `at` is the time of the report, and `closed_at` that of the end.
    """

    type: ClassVar = "question_closed"
    question: QuestionView
    end: str
    closed_at: datetime


@dataclass(frozen=True)
class ContinuedAsNew(TimedEvent):
    type: ClassVar = "continued_as_new"


@dataclass(frozen=True)
class PartialText(TimedEvent):
    """The model's answer so far, or the end of a long one; not in history yet. `turn` is 0 if it is not known."""

    type: ClassVar = "partial_text"
    text: str
    turn: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True)
class RateLimitWait(PartialText):
    """A rate limit delays the model call, and the text says why; not in history."""

    type: ClassVar = "rate_limited"


@dataclass(frozen=True)
class BatchWait(PartialText):
    """The model call waits for a batch, and the text says since when; not in history."""

    type: ClassVar = "batch_wait"


@dataclass(frozen=True)
class ActivityRetrying(TimedEvent):
    """An activity failed and is tried again; in history only if it shared an activity with others."""

    type: ClassVar = "activity_retrying"
    activity: str
    attempt: int
    error: str


@dataclass(frozen=True)
class RunHeld(TimedEvent):
    """An activity waits on the server, paused, before its call; not in history.

    `by` is what holds it, such as "pause:all", and `why` says it in words. If a person paused it elsewhere,
    `by` is "".
    """

    type: ClassVar = "run_held"
    activity: str
    by: str
    why: str
    since: datetime


@dataclass(frozen=True)
class HoldEnded(RunHeld):
    """An activity that was held from `since` to `until` has ended. Only calls and model turns say so."""

    type: ClassVar = "hold_ended"
    until: datetime


@dataclass(frozen=True)
class UnreadableEvent(TimedEvent):
    """An event of the history that this version cannot read: its type in Temporal, and its number."""

    type: ClassVar = "unreadable_event"
    event_type: str
    event_id: int


@dataclass(frozen=True)
class RunEnded(TimedEvent):
    """The run has ended; `runs.wait_for_run_end` returns how."""

    type: ClassVar = "run_ended"


ModelEvent = (
    ModelCallStarted | ModelReplied | ContextFilled | ContextCompacted | OutcomeChecked | CallsReviewed | NoticeAdded
)
CallEvent = ToolCallStarted | ToolCallFinished | ToolCallRefused | ToolResultReceived | FeatureEvent | ActivityFailed
PersonEvent = WaitStarted | WaitEnded | SignalReceived | AnswerReceived | AnswerRejected | QuestionClosed
LiveEvent = PartialText | RateLimitWait | BatchWait | ActivityRetrying | RunHeld  # not in history
OtherEvent = RunStarted | HoldEnded | ContinuedAsNew | UnreadableEvent | RunEnded
RunEvent = ModelEvent | CallEvent | PersonEvent | OtherEvent | LiveEvent


def event_to_json(event: RunEvent) -> str:
    """Format an event as one line of JSON, in ASCII: other characters may end a line for its reader (U+2028)."""

    def to_plain(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        if isinstance(value, datetime):
            return value.isoformat(timespec="milliseconds")
        if isinstance(value, tuple):
            return [to_plain(part) for part in value]
        return value if isinstance(value, dict) else str(value)

    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return json.dumps({"type": event.type, **values}, default=to_plain)


Event = Mapping[str, Any]
FUSED_TURN = "read_and_reflect"
MODEL_TURNS = ("plan", "reflect")  # activity types, live and in batches
QUEUED_CALL = "queued"  # a tool call on another task queue, under an activity name of the other worker's own
TIMED_OUT = "no end in time, or its worker died"
STOPPED = error_outcome("cancelled", "the run was stopped in the call")
RESULT_SIZE = 64 * 1024  # characters of a result from outside in an event
_LATER = ConfigDict(defer_build=True)  # at the first use
_ATTACHMENTS: TypeAdapter[Attachments] = TypeAdapter(Attachments, config=_LATER)
_TURN_RESULT: TypeAdapter[ModelTurn | ContextFull | FailedTurn] = TypeAdapter(
    ModelTurn | ContextFull | FailedTurn, config=_LATER
)


@dataclass
class OpenActivity:
    """An activity that is open at this point of the history. `calls` are the tool calls that it makes.

    `request` is the model call's, if there is one, and `queue` its task queue.
    """

    kind: str
    at: datetime
    request: Mapping[str, Any]
    calls: tuple[ToolCall, ...] = ()
    queue: str = ""
    attempts: int = 0
    worker: str = ""
    began: datetime | None = None  # its last attempt


@dataclass
class EventReader:
    """Reads the executions of one run. `activities` are those open after the last event, by their event ids."""

    activities: dict[int, OpenActivity] = field(default_factory=dict)
    _waiting: bool = False
    _updates: dict[int, HumanInput] = field(default_factory=dict)  # answers that the run still checks, by event
    _signals: list[HumanInput] = field(default_factory=list)  # answers on which the run has not reported
    _reports: set[str] = field(default_factory=set)  # the reports so far: an activity may bring one again
    _arguments: dict[str, Any] = field(default_factory=dict)  # of the latest reply's calls, by tool use

    def read(self, event: Event) -> list[RunEvent]:
        """Return the run events of the next history event. The question of a wait is not in history.

        An event that cannot be read is named, so that no reader ends at it.
        """
        try:
            events = self._read(event)
        except UNEXPECTED_SHAPE:
            events = [UnreadableEvent(event["type"], event["id"])]
        at = datetime.fromisoformat(event["at"])
        for run_event in events:
            if isinstance(run_event, ModelReplied):
                uses = (use for use in map(unwrap_use, run_event.reply.content) if use["type"] == "tool_use")
                self._arguments = {use["id"]: use["input"] for use in uses}
        return [replace(run_event, at=at) for run_event in events]

    def _read(self, event: Event) -> list[RunEvent]:
        match event["type"]:
            case "workflow_execution_started":
                self.activities, self._updates = {}, {}
                is_first = not event.get("continued_execution_run_id")
                return [_start_event(first_value(event.get("input")))] if is_first else []
            case "activity_task_scheduled":
                return self._on_scheduled(event)
            case "activity_task_started":
                if activity := self.activities.get(event["scheduled_event_id"]):
                    activity.attempts, activity.worker = event.get("attempt", 1), event.get("identity", "")
                    activity.began = datetime.fromisoformat(event["at"])
                return []
            case "activity_task_completed":
                return self._on_completed(event)
            case "activity_task_failed" | "activity_task_timed_out" | "activity_task_canceled":
                return self._on_failed(event)
            case str(kind) if "workflow_type" in event and "child_workflow" in kind:
                return _feature_events(event["workflow_type"]["name"], event)
            case "upsert_workflow_search_attributes":
                return self._on_search_attributes(event)
            case "workflow_execution_signaled":
                if answer := answer_in(event):
                    self._signals.append(answer)
                if event["signal_name"] == "tool_result":
                    return _result_events(first_value(event.get("input")))
                return [SignalReceived(event["signal_name"])]
            case "workflow_execution_update_accepted":
                if answer := answer_in(event):
                    self._updates[event["id"]] = answer
                update = (event.get("accepted_request") or {}).get("input") or {}
                is_result = update.get("name") == "deliver_result"
                return _result_events(first_value(update.get("args"))) if is_result else []
            case "workflow_execution_update_completed":
                return self._on_updated(event)
            case "marker_recorded":  # a local activity, whose request is not in history
                result = first_value((event.get("details") or {}).get("result"))
                return self._on_reports(result.get("trace") or ()) if isinstance(result, Mapping) else []
            case "workflow_execution_continued_as_new":
                return [ContinuedAsNew()]
            case (
                "workflow_execution_completed"
                | "workflow_execution_failed"
                | "workflow_execution_canceled"
                | "workflow_execution_terminated"
                | "workflow_execution_timed_out"
            ):
                return [RunEnded()]
            case _:
                return []

    def _on_scheduled(self, event: Event) -> list[RunEvent]:
        value = first_value(event.get("input"))
        request, kind = value if isinstance(value, Mapping) else {}, event["activity_type"]["name"]
        calls: tuple[ToolCall, ...] = ()
        if str(request.get("type", "")).startswith(REQUEST_TYPE_PREFIX):
            kind, payload = QUEUED_CALL, request["payload"]
            arguments = payload["tool_payload"]
            calls = (ToolCall(step=payload["step"], tool=payload["tool"], tool_use_id="", arguments=arguments),)
        elif kind == "call_tool":
            calls = (ToolCall.model_validate(request),)
        elif kind == FUSED_TURN:
            calls, request = tuple(ToolCall.model_validate(read) for read in request["reads"]), request["turn"]
        queue = (event.get("task_queue") or {}).get("name", "")
        self.activities[event["id"]] = OpenActivity(kind, datetime.fromisoformat(event["at"]), request, calls, queue)
        lines = request.get("trace", ()) if kind in (*MODEL_TURNS, FUSED_TURN) else ()
        notices = [NoticeAdded(line) for line in lines if line["event"] in PUBLIC_NOTICES]
        reports = self._on_reports(request.get("trace") or ())
        started = [ToolCallStarted(call) for call in calls]
        thinking = [ModelCallStarted(kind, request["turn"])] if kind in MODEL_TURNS else []
        return [*notices, *reports, *started, *thinking]

    def _on_completed(self, event: Event) -> list[RunEvent]:
        activity, result = self.activities.pop(event["scheduled_event_id"]), first_value(event.get("result"))
        return [*_hold_events(activity, result), *self._result_events(activity, result, event)]

    def _result_events(self, activity: OpenActivity, result: Any, event: Event) -> list[RunEvent]:
        if activity.kind == FUSED_TURN:
            return _fused_events(activity, FusedTurn.model_validate(result))
        if activity.calls:
            is_raw = activity.kind == QUEUED_CALL
            outcome = ToolOutcome(result=result) if is_raw else ToolOutcome.model_validate(result)
            return [ToolCallFinished(activity.calls[0], outcome)]
        if activity.kind == "summarize":
            return [ContextCompacted(Summary.model_validate(result))]
        if activity.kind == "accept_outcome":
            return [OutcomeChecked(Acceptance.model_validate(result))]
        if activity.kind == "check_policy":
            return _review_events(PolicyVerdicts.model_validate(result).reviews)
        if activity.kind not in MODEL_TURNS:
            return _feature_events(activity.kind, {**event, "request": activity.request})
        return _reply_events(activity.kind, activity.request["turn"], _TURN_RESULT.validate_python(result))

    def _on_failed(self, event: Event) -> list[RunEvent]:
        activity = self.activities.pop(event["scheduled_event_id"], None)
        if activity is None or is_hold(event.get("failure") or {}):  # its run schedules it again
            return []
        if event["type"] == "activity_task_canceled":
            left = [pace.left for pace in paces().values() if activity.queue.endswith(pace.queue_suffix)]
            stopped = [ToolCallFinished(call, STOPPED) for call in activity.calls]
            return [*stopped, *(ActivityFailed(activity.kind, line) for line in left if activity.kind in MODEL_TURNS)]
        is_late = event["type"] == "activity_task_timed_out"
        error = TIMED_OUT if is_late else failure_message(event.get("failure") or {})
        failed = [ActivityFailed(f"{c.tool} · step {c.step}", error, c.tool_use_id) for c in activity.calls]
        return [*failed] or [ActivityFailed(activity.kind, error)]

    def _on_search_attributes(self, event: Event) -> list[RunEvent]:
        fields = (event.get("search_attributes") or {}).get("indexed_fields") or {}
        status = fields.get(AGENT_STATUS.name)
        if status is None:  # another of several questions is answered
            waiting_for = fields.get(WAITING_FOR.name) if self._waiting else None
            return [WaitStarted(RunStatus.waiting_on_human, str(waiting_for))] if waiting_for else []
        was_waiting, self._waiting = self._waiting, status in (RunStatus.waiting_on_human, RunStatus.waiting_on_tool)
        if self._waiting:
            return [WaitStarted(status, str(fields.get(WAITING_FOR.name) or "a result from outside"))]
        return [WaitEnded()] if was_waiting else []

    def _on_updated(self, event: Event) -> list[RunEvent]:
        """Return whether the run took an answer by update, whose changed arguments it may have checked first."""
        answer = self._updates.pop(event.get("accepted_event_id", 0), None)
        outcome = event.get("outcome") or {}
        if answer is None:
            return []
        if failure := outcome.get("failure"):
            return [AnswerRejected(answer, failure_message(failure))]
        return [AnswerReceived(answer, (first_value(outcome.get("success")) or {}).get("before"))]

    def _on_reports(self, lines: Iterable[Mapping[str, Any]]) -> list[RunEvent]:
        """Return what the run reports in its trace lines: history has no event of these things."""
        events: list[RunEvent] = []
        for line in lines:
            if line["event"] not in self._REPORTS or line["key"] in self._reports:
                continue
            self._reports.add(line["key"])
            events += self._REPORTS[line["event"]](self, line)
        return events

    def _on_answer(self, line: Mapping[str, Any]) -> list[RunEvent]:
        """Return what became of an answer by signal."""
        fits = (at for at, sent in enumerate(self._signals) if answer_digest(sent) == line["answer"])
        if (at := next(fits, None)) is None:
            return []
        answer, reason = self._signals.pop(at), line.get("reason")
        return [AnswerReceived(answer, line.get("before")) if reason is None else AnswerRejected(answer, reason)]

    def _on_closed(self, line: Mapping[str, Any]) -> list[RunEvent]:
        question = line["question"]
        if question.get("call"):
            question = {**question, "arguments": self._arguments.get(question.get("tool_use_id", ""))}
        view = QuestionView.model_validate({"options": (), **question})
        return [QuestionClosed(view, line["end"], datetime.fromisoformat(line["at"]))]

    def _on_refused(self, line: Mapping[str, Any]) -> list[RunEvent]:
        error = ToolError(kind=line["kind"] or "", message=line["error"])
        tool_use_id = line["key"].removeprefix("refused:")
        return [ToolCallRefused(line["tool"], tool_use_id, line["step"], line["call"], error)]

    _REPORTS: ClassVar[Mapping[str, Callable[["EventReader", Mapping[str, Any]], list[RunEvent]]]] = {
        ANSWER_REPORT: _on_answer,
        QUESTION_CLOSED: _on_closed,
        "refused": _on_refused,
    }


def answer_in(event: Event) -> HumanInput | None:
    """Return the answer that a signal or an accepted update brings to a run, if it is one."""
    name, body = event.get("signal_name"), first_value(event.get("input"))
    if event["type"] == "workflow_execution_update_accepted":
        update = (event.get("accepted_request") or {}).get("input") or {}
        name, body = update.get("name"), first_value(update.get("args"))
    with suppress(ValidationError):
        return HumanInput.model_validate(body) if name in ("human_input", "answer") else None
    return None


def _result_events(body: Any) -> list[RunEvent]:
    """Return the result from outside that a signal or an update brings, if it can be read."""
    try:
        result = ToolResultEvent.model_validate(body).payload
    except ValidationError:
        return [SignalReceived("tool_result")]
    shown = json.dumps(result.result, ensure_ascii=False)
    value = result.result if len(shown) <= RESULT_SIZE else cut_text(shown, RESULT_SIZE)
    outcome = ToolOutcome(status=result.status, result=value, error=result.error)
    return [ToolResultReceived(result.step, result.tool, outcome)]


def _hold_events(activity: OpenActivity, result: Any) -> list[RunEvent]:
    """Return the end of the hold that an activity's result tells of, if one does."""
    found = result.get("hold") if isinstance(result, Mapping) and activity.kind != QUEUED_CALL else None
    if not found:
        return []
    hold = Hold.model_validate(found)
    return [HoldEnded(activity.kind, hold.by, hold.why, hold.since, activity.began or hold.since)]


def _feature_events(kind: str, event: Event) -> list[RunEvent]:
    """Return the run events of a child workflow or activity. One that no feature reads, such as a notice, has none."""
    reader = event_readers().get(kind)
    events: list[RunEvent] = load(reader)(event) if reader else []
    return events


def _reply_events(phase: str, turn: int, reply: ModelTurn | ContextFull | FailedTurn) -> list[RunEvent]:
    if isinstance(reply, FailedTurn):
        return [ActivityFailed(phase, reply.message)]
    if isinstance(reply, ContextFull):
        return [ContextFilled(reply)]
    return [ModelReplied(phase, turn, reply, _feature_calls(reply)), *_review_events(reply.reviews)]


def _feature_calls(reply: ModelTurn) -> tuple[str, ...]:
    uses = [use for use in map(unwrap_use, reply.content) if use["type"] == "tool_use"]
    tools = feature_tools()
    shown = (use for use in uses if use["name"] in tools and not tools[use["name"]].has_events)
    return tuple(call_line(use["name"], use["input"]) for use in shown)


def _review_events(reviews: tuple[PolicyReview, ...]) -> list[RunEvent]:
    return [CallsReviewed(reviews)] if reviews else []


def _fused_events(activity: OpenActivity, done: FusedTurn) -> list[RunEvent]:
    """Return the ends of the reads, then the model call. One that failed is made again in an activity of its own."""
    ended = zip(activity.calls, done.outcomes, strict=True)
    events: list[RunEvent] = [ToolCallFinished(call, end) for call, end in ended if end is not None]
    turn = activity.request["turn"]
    if done.reply is not None:
        return [*events, ModelCallStarted("reflect", turn), *_reply_events("reflect", turn, done.reply)]
    return [*events, ActivityRetrying("reflect", 2, done.reason)] if done.head else events


def first_value(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def is_hold(failure: Mapping[str, Any]) -> bool:
    """Return whether an attempt failed as it was held: it had not begun."""
    return (failure.get("application_failure_info") or {}).get("type") == HELD


def failure_message(failure: Mapping[str, Any]) -> str:
    """Return a failure's message, decrypted if the run is encrypted."""
    return str((failure.get("encoded_attributes") or {}).get("message") or failure.get("message") or "")


def _start_event(start: Any) -> RunStarted:
    """Read a run's input, which may be invalid."""
    payload = start.get("payload") if isinstance(start, dict) else None
    if not isinstance(payload, dict):
        return RunStarted("")
    if start.get("type") == "agentic.resume":
        return RunStarted(_describe_origin(payload))
    attachments: Attachments = ()
    with suppress(ValidationError):
        attachments = _ATTACHMENTS.validate_python(payload.get("attachments", ()))
    return RunStarted(str(payload.get("goal", "")), attachments, bool(payload.get("dry_run")))


def _describe_origin(payload: Mapping[str, Any]) -> str:
    after = f", after step {payload['step']}" if payload.get("step") is not None else ""
    return f"go on from run {payload.get('run_id')}{after}{': ' + str(payload['say']) if payload.get('say') else ''}"
