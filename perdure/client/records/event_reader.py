"""Reading the events of a run from its history."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from perdure.activities.telemetry.attributes import AGENT_STATUS, WAITING_FOR
from perdure.client.errors import UNEXPECTED_SHAPE
from perdure.client.run_events import (
    PUBLIC_NOTICES,
    ActivityFailed,
    ActivityRetrying,
    AnswerReceived,
    AnswerRejected,
    CallsReviewed,
    ContextCompacted,
    ContextFilled,
    ContinuedAsNew,
    HoldEnded,
    ModelCallStarted,
    ModelReplied,
    NoticeAdded,
    OutcomeChecked,
    QuestionClosed,
    RunEnded,
    RunEvent,
    RunStarted,
    SignalReceived,
    ToolCallFinished,
    ToolCallRefused,
    ToolCallStarted,
    ToolCallWaiting,
    ToolResultReceived,
    UnreadableEvent,
    WaitEnded,
    WaitStarted,
)
from perdure.contracts.failures import HELD
from perdure.contracts.media import Attachments
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
from perdure.decisions.text.formatting import call_line, format_task
from perdure.decisions.text.visible_text import cut_text
from perdure.decisions.tool_requests import REQUEST_TYPE_PREFIX
from perdure.decisions.tools import unwrap_use
from perdure.registry import event_readers, feature_tools, load, paces

Event = Mapping[str, Any]
FUSED_TURN = "read_and_reflect"
TURN_ACTIVITIES = ("plan", "reflect")  # activity types, live and in batches
CHECK_TASK, CANCEL_TASK = "check_task", "cancel_task"  # activity types of a call that its server has made a task
QUEUED_CALL = "queued"  # a tool call on another task queue, under an activity name of the other worker's own
TIMED_OUT = "no end in time, or its worker died"
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
                    return _arrival_events(first_value(event.get("input")))
                return [SignalReceived(event["signal_name"])]
            case "workflow_execution_update_accepted":
                if answer := answer_in(event):
                    self._updates[event["id"]] = answer
                update = (event.get("accepted_request") or {}).get("input") or {}
                is_result = update.get("name") == "deliver_result"
                return _arrival_events(first_value(update.get("args"))) if is_result else []
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
        elif kind == "call_tool" or kind in (CHECK_TASK, CANCEL_TASK):
            calls = (ToolCall.model_validate(request),)
        elif kind == FUSED_TURN:
            calls, request = tuple(ToolCall.model_validate(read) for read in request["reads"]), request["turn"]
        queue = (event.get("task_queue") or {}).get("name", "")
        self.activities[event["id"]] = OpenActivity(kind, datetime.fromisoformat(event["at"]), request, calls, queue)
        lines = request.get("trace", ()) if kind in (*TURN_ACTIVITIES, FUSED_TURN) else ()
        notices = [NoticeAdded(line) for line in lines if line["event"] in PUBLIC_NOTICES]
        reports = self._on_reports(request.get("trace") or ())
        started = [ToolCallStarted(call) for call in calls if kind not in (CHECK_TASK, CANCEL_TASK)]
        thinking = [ModelCallStarted(kind, request["turn"])] if kind in TURN_ACTIVITIES else []
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
            return [_end_event(activity.calls[0], outcome)]
        if activity.kind == "summarize":
            return [ContextCompacted(Summary.model_validate(result))]
        if activity.kind == "accept_outcome":
            return [OutcomeChecked(Acceptance.model_validate(result))]
        if activity.kind == "check_policy":
            return _review_events(PolicyVerdicts.model_validate(result).reviews)
        if activity.kind not in TURN_ACTIVITIES:
            return _feature_events(activity.kind, {**event, "request": activity.request})
        return _reply_events(activity.kind, activity.request["turn"], _TURN_RESULT.validate_python(result))

    def _on_failed(self, event: Event) -> list[RunEvent]:
        activity = self.activities.pop(event["scheduled_event_id"], None)
        if activity is None or is_hold(event.get("failure") or {}):  # its run schedules it again
            return []
        if activity.kind == CHECK_TASK:  # its run cancels the task
            return []
        if event["type"] == "activity_task_canceled":
            left = [pace.left for pace in paces().values() if activity.queue.endswith(pace.queue_suffix)]
            outcome = error_outcome("cancelled", "the run was stopped in the call")
            stopped = [ToolCallFinished(call, outcome) for call in activity.calls]
            return [
                *stopped,
                *(ActivityFailed(activity.kind, line) for line in left if activity.kind in TURN_ACTIVITIES),
            ]
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


def _arrival_events(body: Any) -> list[RunEvent]:
    """Return the result from outside that a signal or an update brings, if it can be read."""
    try:
        result = ToolResultEvent.model_validate(body).payload
    except ValidationError:
        return [SignalReceived("tool_result")]
    shown = json.dumps(result.result, ensure_ascii=False)
    value = result.result if len(shown) <= RESULT_SIZE else cut_text(shown, RESULT_SIZE)
    outcome = ToolOutcome(status=result.status, result=value, error=result.error)
    return [ToolResultReceived(result.step, result.tool, outcome)]


def _end_event(call: ToolCall, outcome: ToolOutcome) -> ToolCallFinished | ToolCallWaiting:
    """Return the end of a call, or what it waits for at its server."""
    left = outcome.unfinished
    if left is None:
        return ToolCallFinished(call, outcome)
    asks = "; ".join(f"asks: {asked.message or asked.refused}" for asked in left.inputs)
    about = format_task(left.task) if left.task else f"server {left.server}"
    text = cut_text("; ".join(filter(None, [about, asks])), 500)
    return ToolCallWaiting(text, call.step, call.tool, call.tool_use_id)


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
    events: list[RunEvent] = [_end_event(call, end) for call, end in ended if end is not None]
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
