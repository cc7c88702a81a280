"""A fold over a run's history, execution by execution, that collects its turns, calls and questions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from contracts.run.export import (
    ExportedAnswer,
    ExportedArrival,
    ExportedAttempt,
    ExportedCall,
    ExportedExecution,
    ExportedQuestion,
    ExportedTurn,
)
from contracts.run.signals import HumanInput
from contracts.run.state import RunStatus
from contracts.run.transcript import Part, PartKind, Segment
from contracts.run.turn import Usage
from contracts.tool import ToolOutcome
from decisions.builtin_tools import ASK_HUMAN
from decisions.ids import call_digest, generation_of, question_id
from decisions.sender import sent_by
from decisions.text.formatting import format_wait
from decisions.tool_requests import REQUEST_TYPE_PREFIX

Event = Mapping[str, Any]
MODEL = ("plan", "reflect", "summarize")


@dataclass
class _Activity:
    """An activity that is open at this point of the history."""

    kind: str
    at: datetime
    request: Mapping[str, Any]
    attempts: int = 0
    worker: str = ""


@dataclass
class RunFacts:
    """The facts in a run's events. `segments` are the parts of the transcript that are in stores, `head` their end."""

    start: Any = None
    turns: list[ExportedTurn] = field(default_factory=list)
    calls: dict[str, ExportedCall] = field(default_factory=dict)
    questions: list[ExportedQuestion] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    received: list[ExportedArrival] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    conversation: str | None = None  # the store that holds the record of a conversation's turn
    length: int = 0
    head: str = ""
    workers: list[str] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)

    @property
    def usage(self) -> Usage:
        return sum((turn.usage for turn in self.turns), Usage())

    @property
    def cost_usd(self) -> float | None:
        """The total, if the price of every model that answered is known."""
        costs = [turn.cost_usd for turn in self.turns if turn.model]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def fold_executions(executions: Sequence[ExportedExecution]) -> RunFacts:
    fold = _Fold()
    for number, execution in enumerate(executions):
        fold.begin_execution(is_first=number == 0)
        for event in execution.events:
            fold.apply_event(event)
    return fold.facts


def with_shown_results(calls: Mapping[str, ExportedCall], parts: Sequence[Part]) -> list[ExportedCall]:
    """Return the calls with their results as the model received them."""
    blocks = {block.get("tool_use_id"): (part, block) for part in parts for block in part.content}
    completed = []
    for call in calls.values():
        part, block = blocks.get(call.tool_use_id, (None, {}))
        changes: dict[str, Any] = {}
        if part is not None and part.kind is PartKind.result:
            step = call.step if call.step is not None else part.about.get("step")
            changes = {"shown": block.get("content"), "is_error": bool(block.get("is_error")), "step": step}
        completed.append(call.model_copy(update=changes))
    return completed


class _Fold:
    def __init__(self) -> None:
        self.facts = RunFacts()
        self._running: dict[int, _Activity] = {}
        self._asked = 0
        self._is_first = True
        self._takes: dict[str, Callable[[Event, datetime], None]] = {
            "workflow_execution_started": self._on_started,
            "workflow_task_completed": self._on_task_completed,
            "activity_task_scheduled": self._on_scheduled,
            "activity_task_started": self._on_activity_started,
            "activity_task_completed": self._on_completed,
            "activity_task_failed": self._on_failed,
            "activity_task_timed_out": self._on_failed,
            "activity_task_canceled": self._on_failed,
            "marker_recorded": self._on_marker,
            "workflow_execution_signaled": self._on_signal,
            "workflow_execution_update_accepted": self._on_update,
            "workflow_execution_cancel_requested": self._on_cancel_requested,
            "upsert_workflow_search_attributes": self._on_search_attributes,
        }

    def begin_execution(self, *, is_first: bool) -> None:
        self._running, self._is_first = {}, is_first

    def apply_event(self, event: Event) -> None:
        if handler := self._takes.get(event["type"]):
            handler(event, datetime.fromisoformat(event["at"]))

    def _on_started(self, event: Event, at: datetime) -> None:
        value = _first_value(event.get("input"))
        if self._is_first:
            self.facts.start = value
            self._add_arrival("start", "", value, event.get("identity", ""), at)
        if event.get("continued_execution_run_id"):
            self._apply_handover(value)

    def _apply_handover(self, handover: Mapping[str, Any]) -> None:
        """Apply the state from another run or an earlier execution: its number of questions and its segments."""
        self._asked = max(self._asked, handover["state"].get("questions", 0))
        for segment in handover["segments"]:
            self._add_segment(segment)

    def _add_segment(self, segment: Mapping[str, Any]) -> None:
        parsed = Segment.model_validate(segment)
        if parsed not in self.facts.segments:
            self.facts.segments.append(parsed)

    def _on_task_completed(self, event: Event, _: datetime) -> None:
        if event.get("identity"):
            _add_unique(self.facts.workers, event["identity"])
        build = event.get("deployment_version") or {}
        if build.get("build_id"):
            _add_unique(self.facts.builds, f"{build.get('deployment_name', '')}:{build['build_id']}")

    def _on_scheduled(self, event: Event, at: datetime) -> None:
        value = _first_value(event.get("input"))
        request = value if isinstance(value, Mapping) else {}
        kind = event["activity_type"]["name"]
        if str(request.get("type", "")).startswith(REQUEST_TYPE_PREFIX):  # an activity of the other worker's own name
            kind, request = "queued", self._queue_request(request)
        self._running[event["id"]] = _Activity(kind, at, request)
        self.facts.notices += request.get("told", ())
        if kind in MODEL:
            _add_unique(self.facts.definitions, request.get("definition", ""))
        elif kind == "close_segment":
            self._apply_close(request, (request.get("turn") or {}).get("owner"))

    def _queue_request(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call of kind `queue` in the form of a `call_tool` request. The event names no tool use."""
        payload = event["payload"]
        tool, step, arguments = payload["tool"], payload["step"], payload["tool_payload"]
        digest = call_digest(tool, arguments)
        fits = (call for call in self.facts.calls.values() if call.digest == digest and call.step in (None, step))
        known = next(fits, None)
        if known is not None:
            self.facts.calls[known.tool_use_id] = known.model_copy(update={"step": step})
        return {
            "tool_use_id": known.tool_use_id if known else f"step-{step}",
            "tool": tool,
            "step": step,
            "arguments": arguments,
            "effect": None,
            "attempt": generation_of(event["dedupe_key"]),
        }

    def _on_activity_started(self, event: Event, _: datetime) -> None:
        activity = self._running.get(event["scheduled_event_id"])
        if activity is not None:
            activity.attempts, activity.worker = event.get("attempt", 1), event.get("identity", "")

    def _on_completed(self, event: Event, at: datetime) -> None:
        activity, result = self._running.pop(event["scheduled_event_id"]), _first_value(event.get("result"))
        fields = result if isinstance(result, Mapping) else {}
        match activity.kind:
            case "plan" | "reflect" | "summarize":
                self.facts.turns.append(_export_turn(activity, at, fields))
                for block in fields.get("content", ()):
                    if block.get("type") == "tool_use":
                        self._add_call(block, activity.request.get("turn"))
            case "call_tool":
                self._add_attempt(activity, at, outcome=_full_outcome(fields))
            case "queued":
                self._add_attempt(activity, at, outcome=_full_outcome({"result": result}))
            case "keep_result":
                self._replace_outcome(activity.request["step"], fields)
            case "inherit":
                self._apply_handover(fields)
            case kind:
                self._apply_segment(kind, fields)

    def _on_marker(self, event: Event, _: datetime) -> None:
        """Apply a local activity, which history records as a marker with a result and no input."""
        details = event.get("details") or {}
        activity, result = _first_value(details.get("data")), _first_value(details.get("result"))
        if isinstance(activity, Mapping) and isinstance(result, Mapping):
            kind = activity.get("activity_type", "")
            self._apply_segment(kind, result)
            if kind == "close_segment":
                self._apply_close(result, None)  # an ordinary activity closes a turn
                self.facts.notices += result.get("told", ())

    def _apply_segment(self, kind: str, result: Mapping[str, Any]) -> None:
        if kind in ("close_segment", "join_conversation") and result.get("segment"):
            self._add_segment(result["segment"])

    def _apply_close(self, record: Mapping[str, Any], owner: str | None) -> None:
        self.facts.length, self.facts.head = record.get("length", 0), record.get("head", "")
        self.facts.conversation = owner

    def _on_failed(self, event: Event, at: datetime) -> None:
        activity = self._running.pop(event["scheduled_event_id"], None)
        if activity is None:
            return
        reason = _failure_text(event)
        if activity.kind in MODEL:
            self.facts.turns.append(_export_turn(activity, at, {}, failure=reason))
        elif activity.kind in ("call_tool", "queued"):
            self._add_attempt(activity, at, failure=reason)

    def _add_call(self, block: Mapping[str, Any], turn: int | None) -> None:
        arguments = block.get("input")
        digest = call_digest(block["name"], arguments if isinstance(arguments, Mapping) else {})
        call = ExportedCall(tool_use_id=block["id"], tool=block["name"], turn=turn, arguments=arguments, digest=digest)
        self.facts.calls[call.tool_use_id] = call

    def _add_attempt(self, activity: _Activity, at: datetime, **end: Any) -> None:
        request = activity.request
        known = self.facts.calls.get(request["tool_use_id"])
        if known is None:  # its turn belongs to another run, or is past the retention
            self._add_call({"id": request["tool_use_id"], "name": request["tool"], "input": request["arguments"]}, None)
            known = self.facts.calls[request["tool_use_id"]]
        attempt = ExportedAttempt(
            generation=request.get("attempt", 1),
            requested_at=activity.at,
            ended_at=at,
            attempts=activity.attempts,
            worker=activity.worker,
            approval=request.get("approval"),
            **end,
        )
        changes = {"step": request["step"], "effect": request.get("effect", "read"), "made": (*known.made, attempt)}
        self.facts.calls[known.tool_use_id] = known.model_copy(update=changes)

    def _replace_outcome(self, step: int, outcome: Mapping[str, Any]) -> None:
        """Record that the large result of another worker became an artifact."""
        call = next(call for call in self.facts.calls.values() if call.step == step and call.made)
        last = call.made[-1].model_copy(update={"outcome": _full_outcome(outcome)})
        self.facts.calls[call.tool_use_id] = call.model_copy(update={"made": (*call.made[:-1], last)})

    def _on_signal(self, event: Event, at: datetime) -> None:
        body = _first_value(event.get("input"))
        self._add_arrival("signal", event["signal_name"], body, event.get("identity", ""), at)
        if event["signal_name"] == "human_input":
            self._apply_answer(body, at, "signal", event.get("identity", ""))
        elif event["signal_name"] == "tool_result" and isinstance(body, Mapping):
            self._add_result(body, at)

    def _add_result(self, body: Mapping[str, Any], at: datetime) -> None:
        """Record a result from outside, by signal or update, without its nonce."""
        payload = body.get("payload")
        step = payload.get("step") if isinstance(payload, Mapping) else None
        event = {name: value for name, value in body.items() if name != "nonce"}
        for call in [call for call in self.facts.calls.values() if step is not None and call.step == step]:
            results = (*call.from_outside, {"at": at.isoformat(), "event": event})
            self.facts.calls[call.tool_use_id] = call.model_copy(update={"from_outside": results})

    def _on_update(self, event: Event, at: datetime) -> None:
        request = event.get("accepted_request") or {}
        update = request.get("input") or {}
        body, identity = _first_value(update.get("args")), (request.get("meta") or {}).get("identity", "")
        self._add_arrival("update", update.get("name", ""), body, identity, at)
        if update.get("name") == "answer":
            self._apply_answer(body, at, "update", identity)
        elif update.get("name") == "deliver_result" and isinstance(body, Mapping):
            self._add_result(body, at)

    def _on_cancel_requested(self, event: Event, at: datetime) -> None:
        self._add_arrival("cancel", "", None, event.get("identity", ""), at)

    def _add_arrival(self, kind: str, name: str, body: Any, identity: str, at: datetime) -> None:
        sent = sent_by(body, identity)
        self.facts.received.append(
            ExportedArrival.model_validate({"at": at, "kind": kind, "name": name, **sent.model_dump()})
        )

    def _apply_answer(self, body: Any, at: datetime, via: str, identity: str) -> None:
        try:
            reply = HumanInput.model_validate(body)
        except ValidationError:
            return  # not an answer; `received` has the signal or update
        if not self._is_open or reply.question_id not in (None, self.facts.questions[-1].id):
            return
        fields = reply.model_dump(mode="json", include={"sender", "by", "decision", "text", "call", "signature"})
        answer = ExportedAnswer.model_validate({"at": at, "via": via, "identity": identity, **fields})
        question = self.facts.questions[-1]
        self.facts.questions[-1] = question.model_copy(update={"answers": (*question.answers, answer)})

    @property
    def _is_open(self) -> bool:
        return bool(self.facts.questions) and self.facts.questions[-1].closed_at is None

    def _on_search_attributes(self, event: Event, at: datetime) -> None:
        fields = (event.get("search_attributes") or {}).get("indexed_fields") or {}
        status = fields.get("AgentStatus")
        if status is None:
            return
        if self._is_open:
            self.facts.questions[-1] = self.facts.questions[-1].model_copy(update={"closed_at": at})
        if status == RunStatus.waiting_on_human:
            self._asked += 1
            text = self._full_question(str(fields.get("WaitingFor", "")))
            self.facts.questions.append(ExportedQuestion(id=question_id(self._asked), text=text, asked_at=at))

    def _full_question(self, waiting_for: str) -> str:
        """Return the agent's full question: the search attribute is truncated."""
        for call in reversed(self.facts.calls.values()):
            question = call.arguments.get("question") if isinstance(call.arguments, Mapping) else None
            if call.tool == ASK_HUMAN and isinstance(question, str) and format_wait(f"asks: {question}") == waiting_for:
                return question
        return waiting_for.removeprefix("human: ")


def _export_turn(
    activity: _Activity, at: datetime, reply: Mapping[str, Any], failure: str | None = None
) -> ExportedTurn:
    """Return the turn of a reply or a summary. A result without a model means that the conversation was too long."""
    is_full = not failure and "model" not in reply
    return ExportedTurn(
        activity=activity.kind,
        turn=activity.request.get("turn"),
        requested_at=activity.at,
        ended_at=at,
        attempts=activity.attempts,
        worker=activity.worker,
        model=reply.get("model", ""),
        stop_reason=reply.get("stop_reason"),
        usage=Usage.model_validate(reply.get("usage", {})),
        cost_usd=reply.get("cost_usd"),
        duration_ms=reply.get("duration_ms", 0),
        definition=activity.request.get("definition", ""),
        failure="the conversation was too long for the model" if is_full else failure,
    )


def _full_outcome(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome with the defaults that history omits."""
    return ToolOutcome.model_validate(outcome).model_dump(mode="json")


def _failure_text(event: Event) -> str:
    failure = event.get("failure") or {}
    cause = failure.get("cause") or {}
    messages = [one.get("message") or (one.get("encoded_attributes") or {}).get("message") for one in (failure, cause)]
    kind = (failure.get("application_failure_info") or {}).get("type", "")
    text = ": ".join(part for part in [kind, *messages] if part)
    return text or event["type"].removeprefix("activity_task_").replace("_", " ")


def _first_value(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _add_unique(values: list[str], value: str) -> None:
    if value and value not in values:
        values.append(value)
