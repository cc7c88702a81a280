"""What a run's events tell of its turns, calls and questions: a fold over its history, execution by execution."""

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
from decisions.tool_requests import PREFIX

Event = Mapping[str, Any]
MODEL = ("plan", "reflect", "summarize")


@dataclass
class _Activity:
    """An activity of the history, as far as it has been read."""

    kind: str
    at: datetime
    request: Mapping[str, Any]
    attempts: int = 0
    worker: str = ""


@dataclass
class Told:
    """All that the events tell. `segments` name what of the transcript lies in stores, `head` its end there."""

    start: Any = None
    turns: list[ExportedTurn] = field(default_factory=list)
    calls: dict[str, ExportedCall] = field(default_factory=dict)
    questions: list[ExportedQuestion] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    received: list[ExportedArrival] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    conversation: str | None = None  # the store in which a turn of a conversation has left its record
    length: int = 0
    head: str = ""
    workers: list[str] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)

    @property
    def usage(self) -> Usage:
        return sum((turn.usage for turn in self.turns), Usage())

    @property
    def cost_usd(self) -> float | None:
        """None where a model answered whose price is not known."""
        costs = [turn.cost_usd for turn in self.turns if turn.model]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def told(executions: Sequence[ExportedExecution]) -> Told:
    fold = _Fold()
    for number, execution in enumerate(executions):
        fold.begin(is_first=number == 0)
        for event in execution.events:
            fold.take(event)
    return fold.told


def shown(calls: Mapping[str, ExportedCall], parts: Sequence[Part]) -> list[ExportedCall]:
    """The calls with what the model was shown as their results."""
    blocks = {block.get("tool_use_id"): (part, block) for part in parts for block in part.content}
    found = []
    for call in calls.values():
        part, block = blocks.get(call.tool_use_id, (None, {}))
        if part is not None and part.kind is PartKind.result:
            step = call.step if call.step is not None else part.about.get("step")
            told = {"shown": block.get("content"), "is_error": bool(block.get("is_error")), "step": step}
            found.append(call.model_copy(update=told))
        else:
            found.append(call)
    return found


class _Fold:
    def __init__(self) -> None:
        self.told = Told()
        self._running: dict[int, _Activity] = {}
        self._asked = 0
        self._is_first = True
        self._takes: dict[str, Callable[[Event, datetime], None]] = {
            "workflow_execution_started": self._started,
            "workflow_task_completed": self._worked,
            "activity_task_scheduled": self._scheduled,
            "activity_task_started": self._begun,
            "activity_task_completed": self._completed,
            "activity_task_failed": self._failed,
            "activity_task_timed_out": self._failed,
            "activity_task_canceled": self._failed,
            "marker_recorded": self._marked,
            "workflow_execution_signaled": self._signalled,
            "workflow_execution_update_accepted": self._updated,
            "workflow_execution_cancel_requested": self._cancelled,
            "upsert_workflow_search_attributes": self._status,
        }

    def begin(self, *, is_first: bool) -> None:
        self._running, self._is_first = {}, is_first

    def take(self, event: Event) -> None:
        if handler := self._takes.get(event["type"]):
            handler(event, datetime.fromisoformat(event["at"]))

    def _started(self, event: Event, at: datetime) -> None:
        given = _first(event.get("input"))
        if self._is_first:
            self.told.start = given
            self._receive("start", "", given, event.get("identity", ""), at)
        if event.get("continued_execution_run_id"):
            self._carried(given)

    def _carried(self, given: Mapping[str, Any]) -> None:
        """What another run, or an earlier execution, hands over: how many questions there were, and its segments."""
        self._asked = max(self._asked, given["state"].get("questions", 0))
        for segment in given["segments"]:
            self._keep(segment)

    def _keep(self, segment: Mapping[str, Any]) -> None:
        one = Segment.model_validate(segment)
        if one not in self.told.segments:
            self.told.segments.append(one)

    def _worked(self, event: Event, _: datetime) -> None:
        if event.get("identity"):
            _add(self.told.workers, event["identity"])
        build = event.get("deployment_version") or {}
        if build.get("build_id"):
            _add(self.told.builds, f"{build.get('deployment_name', '')}:{build['build_id']}")

    def _scheduled(self, event: Event, at: datetime) -> None:
        given = _first(event.get("input"))
        request = given if isinstance(given, Mapping) else {}
        kind = event["activity_type"]["name"]
        if str(request.get("type", "")).startswith(PREFIX):  # whatever the activity is called over there
            kind, request = "queued", self._handed_on(request)
        self._running[event["id"]] = _Activity(kind, at, request)
        self.told.notices += request.get("told", ())
        if kind in MODEL:
            _add(self.told.definitions, request.get("definition", ""))
        elif kind == "close_segment":
            self._closing(request, (request.get("turn") or {}).get("owner"))

    def _handed_on(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """A call of the kind `queue`, as the activity `call_tool` gets others. The event names no tool use."""
        payload = event["payload"]
        tool, step, arguments = payload["tool"], payload["step"], payload["tool_payload"]
        digest = call_digest(tool, arguments)
        fits = (call for call in self.told.calls.values() if call.digest == digest and call.step in (None, step))
        known = next(fits, None)
        if known is not None:
            self.told.calls[known.tool_use_id] = known.model_copy(update={"step": step})
        return {
            "tool_use_id": known.tool_use_id if known else f"step-{step}",
            "tool": tool,
            "step": step,
            "arguments": arguments,
            "effect": None,
            "attempt": generation_of(event["dedupe_key"]),
        }

    def _begun(self, event: Event, _: datetime) -> None:
        activity = self._running.get(event["scheduled_event_id"])
        if activity is not None:
            activity.attempts, activity.worker = event.get("attempt", 1), event.get("identity", "")

    def _completed(self, event: Event, at: datetime) -> None:
        activity, result = self._running.pop(event["scheduled_event_id"]), _first(event.get("result"))
        found = result if isinstance(result, Mapping) else {}
        match activity.kind:
            case "plan" | "reflect" | "summarize":
                self.told.turns.append(_turn(activity, at, found))
                for block in found.get("content", ()):
                    if block.get("type") == "tool_use":
                        self._used(block, activity.request.get("turn"))
            case "call_tool":
                self._made(activity, at, outcome=_whole(found))
            case "queued":
                self._made(activity, at, outcome=_whole({"result": result}))
            case "keep_result":
                self._kept(activity.request["step"], found)
            case "inherit":
                self._carried(found)
            case kind:
                self._filed(kind, found)

    def _marked(self, event: Event, _: datetime) -> None:
        """A local activity stands in history as a marker, with its result and without its input."""
        details = event.get("details") or {}
        about, result = _first(details.get("data")), _first(details.get("result"))
        if isinstance(about, Mapping) and isinstance(result, Mapping):
            kind = about.get("activity_type", "")
            self._filed(kind, result)
            if kind == "close_segment":
                self._closing(result, None)  # a turn is closed by an ordinary one
                self.told.notices += result.get("told", ())

    def _filed(self, kind: str, found: Mapping[str, Any]) -> None:
        if kind in ("close_segment", "join_conversation") and found.get("segment"):
            self._keep(found["segment"])

    def _closing(self, about: Mapping[str, Any], owner: str | None) -> None:
        self.told.length, self.told.head = about.get("length", 0), about.get("head", "")
        self.told.conversation = owner

    def _failed(self, event: Event, at: datetime) -> None:
        activity = self._running.pop(event["scheduled_event_id"], None)
        if activity is None:
            return
        why = _why(event)
        if activity.kind in MODEL:
            self.told.turns.append(_turn(activity, at, {}, failure=why))
        elif activity.kind in ("call_tool", "queued"):
            self._made(activity, at, failure=why)

    def _used(self, block: Mapping[str, Any], turn: int | None) -> None:
        arguments = block.get("input")
        digest = call_digest(block["name"], arguments if isinstance(arguments, Mapping) else {})
        call = ExportedCall(tool_use_id=block["id"], tool=block["name"], turn=turn, arguments=arguments, digest=digest)
        self.told.calls[call.tool_use_id] = call

    def _made(self, activity: _Activity, at: datetime, **end: Any) -> None:
        request = activity.request
        known = self.told.calls.get(request["tool_use_id"])
        if known is None:  # its turn was another run's, or is past the retention
            self._used({"id": request["tool_use_id"], "name": request["tool"], "input": request["arguments"]}, None)
            known = self.told.calls[request["tool_use_id"]]
        attempt = ExportedAttempt(
            generation=request.get("attempt", 1),
            requested_at=activity.at,
            ended_at=at,
            attempts=activity.attempts,
            worker=activity.worker,
            approval=request.get("approval"),
            **end,
        )
        told = {"step": request["step"], "effect": request.get("effect", "read"), "made": (*known.made, attempt)}
        self.told.calls[known.tool_use_id] = known.model_copy(update=told)

    def _kept(self, step: int, outcome: Mapping[str, Any]) -> None:
        """The large result of another worker is an artifact by now."""
        call = next(call for call in self.told.calls.values() if call.step == step and call.made)
        last = call.made[-1].model_copy(update={"outcome": _whole(outcome)})
        self.told.calls[call.tool_use_id] = call.model_copy(update={"made": (*call.made[:-1], last)})

    def _signalled(self, event: Event, at: datetime) -> None:
        body = _first(event.get("input"))
        self._receive("signal", event["signal_name"], body, event.get("identity", ""), at)
        if event["signal_name"] == "human_input":
            self._answered(body, at, "signal", event.get("identity", ""))
        elif event["signal_name"] == "tool_result" and isinstance(body, Mapping):
            self._add_result(body, at)

    def _add_result(self, body: Mapping[str, Any], at: datetime) -> None:
        """A result from outside, by signal or update, without the nonce that it brought back."""
        payload = body.get("payload")
        step = payload.get("step") if isinstance(payload, Mapping) else None
        event = {name: value for name, value in body.items() if name != "nonce"}
        for call in [call for call in self.told.calls.values() if step is not None and call.step == step]:
            came = (*call.from_outside, {"at": at.isoformat(), "event": event})
            self.told.calls[call.tool_use_id] = call.model_copy(update={"from_outside": came})

    def _updated(self, event: Event, at: datetime) -> None:
        request = event.get("accepted_request") or {}
        given = request.get("input") or {}
        body, identity = _first(given.get("args")), (request.get("meta") or {}).get("identity", "")
        self._receive("update", given.get("name", ""), body, identity, at)
        if given.get("name") == "answer":
            self._answered(body, at, "update", identity)
        elif given.get("name") == "deliver_result" and isinstance(body, Mapping):
            self._add_result(body, at)

    def _cancelled(self, event: Event, at: datetime) -> None:
        self._receive("cancel", "", None, event.get("identity", ""), at)

    def _receive(self, kind: str, name: str, body: Any, identity: str, at: datetime) -> None:
        sent = sent_by(body, identity)
        self.told.received.append(
            ExportedArrival.model_validate({"at": at, "kind": kind, "name": name, **sent.model_dump()})
        )

    def _answered(self, body: Any, at: datetime, via: str, identity: str) -> None:
        try:
            said = HumanInput.model_validate(body)
        except ValidationError:
            return  # it has answered nothing; the event tells of it
        if not self._is_open or said.question_id not in (None, self.told.questions[-1].id):
            return
        kept = said.model_dump(mode="json", include={"sender", "by", "decision", "text", "call", "signature"})
        answer = ExportedAnswer.model_validate({"at": at, "via": via, "identity": identity, **kept})
        question = self.told.questions[-1]
        self.told.questions[-1] = question.model_copy(update={"answers": (*question.answers, answer)})

    @property
    def _is_open(self) -> bool:
        return bool(self.told.questions) and self.told.questions[-1].closed_at is None

    def _status(self, event: Event, at: datetime) -> None:
        fields = (event.get("search_attributes") or {}).get("indexed_fields") or {}
        status = fields.get("AgentStatus")
        if status is None:
            return
        if self._is_open:
            self.told.questions[-1] = self.told.questions[-1].model_copy(update={"closed_at": at})
        if status == RunStatus.waiting_on_human:
            self._asked += 1
            text = self._whole(str(fields.get("WaitingFor", "")))
            self.told.questions.append(ExportedQuestion(id=question_id(self._asked), text=text, asked_at=at))

    def _whole(self, waiting_for: str) -> str:
        """The question as the agent put it: the search attribute is cut."""
        for call in reversed(self.told.calls.values()):
            asked = call.arguments.get("question") if isinstance(call.arguments, Mapping) else None
            if call.tool == ASK_HUMAN and isinstance(asked, str) and format_wait(f"asks: {asked}") == waiting_for:
                return asked
        return waiting_for.removeprefix("human: ")


def _turn(activity: _Activity, at: datetime, reply: Mapping[str, Any], failure: str | None = None) -> ExportedTurn:
    """A reply, a summary, or neither: the conversation was too long to be asked about."""
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


def _whole(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """With what history leaves out."""
    return ToolOutcome.model_validate(outcome).model_dump(mode="json")


def _why(event: Event) -> str:
    failure = event.get("failure") or {}
    cause = failure.get("cause") or {}
    told = [each.get("message") or (each.get("encoded_attributes") or {}).get("message") for each in (failure, cause)]
    kind = (failure.get("application_failure_info") or {}).get("type", "")
    words = ": ".join(each for each in [kind, *told] if each)
    return words or event["type"].removeprefix("activity_task_").replace("_", " ")


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _add(values: list[str], value: str) -> None:
    if value and value not in values:
        values.append(value)
