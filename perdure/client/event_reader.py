"""A run's history, read event by event as plain JSON (`history`): the run's own events, and its open activities."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from activities.telemetry.attributes import AGENT_STATUS, WAITING_FOR
from contracts.delegation import DelegationRequest, DelegationState
from contracts.media import Attachments
from contracts.run.batch import FailedTurn
from contracts.run.compaction import ContextFull, Summary
from contracts.run.fused_turn import FusedTurn
from contracts.run.signals import HumanInput
from contracts.run.state import RunStatus
from contracts.run.turn import Acceptance, ModelTurn, PolicyReview, PolicyVerdicts
from contracts.tool import ToolCall, ToolOutcome
from decisions.ids import is_batch_queue
from decisions.tool_requests import REQUEST_TYPE_PREFIX
from perdure.client import run_events
from perdure.client.run_events import RunEvent

Event = Mapping[str, Any]
FUSED_TURN = "read_and_reflect"
QUEUED_CALL = "queued"  # a tool call on another task queue, under an activity name of the other worker's own
LEFT_BATCH = "not awaited any more; if its batch was sent, the call is still paid"
TIMED_OUT = "no end in time, or its worker died"
_ATTACHMENTS: TypeAdapter[Attachments] = TypeAdapter(Attachments)
_TURN_RESULT: TypeAdapter[ModelTurn | ContextFull | FailedTurn] = TypeAdapter(ModelTurn | ContextFull | FailedTurn)


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


@dataclass
class EventReader:
    """Reads the executions of one run. `activities` are those open after the last event, by their event ids."""

    activities: dict[int, OpenActivity] = field(default_factory=dict)
    _waiting: bool = False

    def read(self, event: Event) -> list[RunEvent]:
        """Return the run events of the next history event. The question of a wait is not in history."""
        match event["type"]:
            case "workflow_execution_started":
                self.activities = {}
                is_first = not event.get("continued_execution_run_id")
                return [_start_event(first_value(event.get("input")))] if is_first else []
            case "activity_task_scheduled":
                return self._on_scheduled(event)
            case "activity_task_started":
                if activity := self.activities.get(event["scheduled_event_id"]):
                    activity.attempts, activity.worker = event.get("attempt", 1), event.get("identity", "")
                return []
            case "activity_task_completed":
                return self._on_completed(event)
            case "activity_task_failed" | "activity_task_timed_out" | "activity_task_canceled":
                return self._on_failed(event)
            case "start_child_workflow_execution_initiated":
                request = DelegationRequest.model_validate(first_value(event["input"]))
                return [run_events.DelegationStarted(request)]
            case "child_workflow_execution_completed":
                return [run_events.DelegationFinished(DelegationState.model_validate(first_value(event["result"])))]
            case "upsert_workflow_search_attributes":
                return self._on_search_attributes(event)
            case "workflow_execution_signaled":
                answers = self._to_answers(
                    first_value(event.get("input")), is_answer=event["signal_name"] == "human_input"
                )
                return [run_events.SignalReceived(event["signal_name"]), *answers]
            case "workflow_execution_update_accepted":
                update = (event.get("accepted_request") or {}).get("input") or {}
                return self._to_answers(first_value(update.get("args")), is_answer=update.get("name") == "answer")
            case "workflow_execution_continued_as_new":
                return [run_events.ContinuedAsNew()]
            case (
                "workflow_execution_completed"
                | "workflow_execution_failed"
                | "workflow_execution_canceled"
                | "workflow_execution_terminated"
                | "workflow_execution_timed_out"
            ):
                return [run_events.RunEnded()]
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
        told = request.get("told", ()) if kind in ("plan", "reflect", FUSED_TURN) else ()
        notices = [run_events.NoticeAdded(line) for line in told if line["event"] in run_events.PUBLIC_NOTICES]
        started = [run_events.ToolCallStarted(call) for call in calls]
        thinking = [run_events.ModelCallStarted(kind, request["turn"])] if kind in ("plan", "reflect") else []
        return [*notices, *started, *thinking]

    def _on_completed(self, event: Event) -> list[RunEvent]:
        activity, result = self.activities.pop(event["scheduled_event_id"]), first_value(event.get("result"))
        if activity.kind == FUSED_TURN:
            return _fused_events(activity, FusedTurn.model_validate(result))
        if activity.calls:
            is_raw = activity.kind == QUEUED_CALL
            outcome = ToolOutcome(result=result) if is_raw else ToolOutcome.model_validate(result)
            return [run_events.ToolCallFinished(activity.calls[0], outcome)]
        if activity.kind == "summarize":
            return [run_events.ContextCompacted(Summary.model_validate(result))]
        if activity.kind == "accept_outcome":
            return [run_events.OutcomeChecked(Acceptance.model_validate(result))]
        if activity.kind == "check_policy":
            return _review_events(PolicyVerdicts.model_validate(result).reviews)
        if activity.kind not in ("plan", "reflect"):
            return []
        return _reply_events(activity.kind, activity.request["turn"], _TURN_RESULT.validate_python(result))

    def _on_failed(self, event: Event) -> list[RunEvent]:
        activity = self.activities.pop(event["scheduled_event_id"], None)
        if activity is None or event["type"] == "activity_task_canceled":
            is_batched = (
                activity is not None and activity.kind in ("plan", "reflect") and is_batch_queue(activity.queue)
            )
            return [run_events.ActivityFailed(activity.kind, LEFT_BATCH)] if activity and is_batched else []
        is_late = event["type"] == "activity_task_timed_out"
        error = TIMED_OUT if is_late else failure_message(event.get("failure") or {})
        names = [f"{call.tool} · step {call.step}" for call in activity.calls] or [activity.kind]
        return [run_events.ActivityFailed(name, error) for name in names]

    def _on_search_attributes(self, event: Event) -> list[RunEvent]:
        fields = (event.get("search_attributes") or {}).get("indexed_fields") or {}
        status = fields.get(AGENT_STATUS.name)
        if status is None:  # another of several questions is answered
            waiting_for = fields.get(WAITING_FOR.name) if self._waiting else None
            return [run_events.WaitStarted(RunStatus.waiting_on_human, str(waiting_for))] if waiting_for else []
        was_waiting, self._waiting = self._waiting, status in (RunStatus.waiting_on_human, RunStatus.waiting_on_tool)
        if self._waiting:
            return [run_events.WaitStarted(status, str(fields.get(WAITING_FOR.name) or "a result from outside"))]
        return [run_events.WaitEnded()] if was_waiting else []

    def _to_answers(self, body: Any, *, is_answer: bool) -> list[RunEvent]:
        if is_answer and self._waiting:
            with suppress(ValidationError):
                return [run_events.AnswerReceived(HumanInput.model_validate(body))]
        return []


def _reply_events(phase: str, turn: int, reply: ModelTurn | ContextFull | FailedTurn) -> list[RunEvent]:
    if isinstance(reply, FailedTurn):
        return [run_events.ActivityFailed(phase, reply.message)]
    if isinstance(reply, ContextFull):
        return [run_events.ContextFilled(reply)]
    return [run_events.ModelReplied(phase, turn, reply), *_review_events(reply.reviews)]


def _review_events(reviews: tuple[PolicyReview, ...]) -> list[RunEvent]:
    return [run_events.CallsReviewed(reviews)] if reviews else []


def _fused_events(activity: OpenActivity, done: FusedTurn) -> list[RunEvent]:
    """Return the ends of the reads, then the model call. One that failed is made again in an activity of its own."""
    ended = zip(activity.calls, done.outcomes, strict=True)
    events: list[RunEvent] = [run_events.ToolCallFinished(call, end) for call, end in ended if end is not None]
    turn = activity.request["turn"]
    if done.reply is not None:
        return [*events, run_events.ModelCallStarted("reflect", turn), *_reply_events("reflect", turn, done.reply)]
    return [*events, run_events.ActivityRetrying("reflect", 2, done.reason)] if done.head else events


def first_value(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def failure_message(failure: Mapping[str, Any]) -> str:
    """Return a failure's message, decrypted if the run is encrypted."""
    return str((failure.get("encoded_attributes") or {}).get("message") or failure.get("message") or "")


def _start_event(start: Any) -> run_events.RunStarted:
    """Read a run's input, which may be invalid."""
    payload = start.get("payload") if isinstance(start, dict) else None
    if not isinstance(payload, dict):
        return run_events.RunStarted("")
    if start.get("type") == "agentic.resume":
        return run_events.RunStarted(_describe_origin(payload))
    attachments: Attachments = ()
    with suppress(ValidationError):
        attachments = _ATTACHMENTS.validate_python(payload.get("attachments", ()))
    return run_events.RunStarted(str(payload.get("goal", "")), attachments)


def _describe_origin(payload: Mapping[str, Any]) -> str:
    after = f", after step {payload['step']}" if payload.get("step") is not None else ""
    return f"go on from run {payload.get('run_id')}{after}{': ' + str(payload['say']) if payload.get('say') else ''}"
