"""The turns, calls and questions of a run, collected from its history for an export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from perdure.client import run_events
from perdure.client.errors import UNEXPECTED_SHAPE
from perdure.client.records.event_reader import (
    FUSED_TURN,
    QUEUED_CALL,
    Event,
    EventReader,
    OpenActivity,
    answer_in,
    failure_message,
    first_value,
)
from perdure.client.run_events import RunEvent
from perdure.contracts.run.export import (
    ExportedAnswer,
    ExportedArrival,
    ExportedAttempt,
    ExportedCall,
    ExportedExecution,
    ExportedQuestion,
    ExportedTurn,
    RejectedAnswer,
)
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.transcript import Part, PartKind, Segment
from perdure.contracts.run.turn import Acceptance, ModelTurn, PolicyReview, Summary, Usage
from perdure.contracts.tool import ToolCall, ToolOutcome
from perdure.decisions.ids import call_digest, generation_of, question_id
from perdure.decisions.people.terms import sent_by
from perdure.decisions.run.transcript import cited_urls
from perdure.decisions.telemetry import MODEL_TURNS
from perdure.decisions.text.formatting import format_wait, split_waits
from perdure.decisions.tools import ASK_HUMAN, unwrap_use


class QuestionLog:
    """The questions so far. History has no event of a question: its text is in `WaitingFor`, and its id is counted."""

    def __init__(self) -> None:
        self.questions: list[ExportedQuestion] = []
        self._asked = 0
        self._sent: list[tuple[HumanInput, int, ExportedAnswer]] = []  # answers without an outcome, with their places

    def continue_from(self, asked: int) -> None:
        """Count on from the questions of another run or an earlier execution."""
        self._asked = max(self._asked, asked)

    def note_answer(self, answer: HumanInput, event: Event, at: datetime) -> None:
        """Note an answer that has come. It counts once the run has taken it (`settle_answer`)."""
        is_signal = event["type"] == "workflow_execution_signaled"
        place = self._find_question(answer.question_id, is_signal=is_signal)
        if place is None:
            return
        source = {"via": "signal", "identity": event.get("identity", "")}
        if not is_signal:
            source = {"via": "update", "identity": sender_of_update(event)}
        fields = answer.model_dump(mode="json", include=set(ExportedAnswer.model_fields))
        self._sent.append((answer, place, ExportedAnswer.model_validate({"at": at, **source, **fields})))

    def settle_answer(
        self, answer: HumanInput, *, before: dict[str, Any] | None = None, reason: str | None = None
    ) -> None:
        """Record an answer that the run took, or did not take for this `reason`."""
        at = next((at for at, (sent, _, _) in enumerate(self._sent) if sent == answer), None)
        if at is None:
            return
        _, place, exported = self._sent.pop(at)
        question = self.questions[place]
        if reason is None:
            taken = exported.evolve(before=before)
            self.questions[place] = question.evolve(answers=(*question.answers, taken))
        else:
            rejected = RejectedAnswer(**exported.model_dump(), reason=reason)
            self.questions[place] = question.evolve(rejected=(*question.rejected, rejected))

    def _is_answered(self, place: int) -> bool:
        """Return whether an answer was taken, or has come and may have been."""
        return bool(self.questions[place].answers) or any(place == asked for _, asked, _ in self._sent)

    def _find_question(self, name: str | None, *, is_signal: bool) -> int | None:
        """Return the place of the question that an answer is for, if it is known.

        The run accepted an update, so its question is open. If it counts as closed, it is one that several people
        approve, and another one with an answer has closed in its place.
        """
        still_open = self._open_questions()
        named = [place for place, question in still_open if name in (None, question.id)]
        if len(named) == 1 or is_signal:
            return named[0] if len(named) == 1 else None
        place = next((at for at, question in enumerate(self.questions) if question.id == name), None)
        if place is not None:
            for other in [at for at, _ in still_open if self._is_answered(at)][:1]:
                self.questions[other] = self.questions[other].evolve(closed_at=self.questions[place].closed_at)
            self.questions[place] = self.questions[place].evolve(closed_at=None)
        return place

    def _open_questions(self) -> list[tuple[int, ExportedQuestion]]:
        return [(at, question) for at, question in enumerate(self.questions) if question.closed_at is None]

    def apply_wait(
        self, wait: run_events.WaitStarted | run_events.WaitEnded, calls: Mapping[str, ExportedCall], at: datetime
    ) -> None:
        """Apply a change of `WaitingFor`, which lists the open questions, or the only one."""
        is_asking = isinstance(wait, run_events.WaitStarted) and wait.is_for_person
        texts = split_waits(wait.waiting_for) if isinstance(wait, run_events.WaitStarted) and is_asking else []
        still_open = self._open_questions()
        # Those with an answer have closed, unless more people must approve; else the first, whose time has passed.
        closing = sorted(still_open, key=lambda entry: not self._is_answered(entry[0]))
        kept = len(texts) if len(texts) > 1 or len(still_open) > 1 else 0
        for place, _ in closing[: max(0, len(still_open) - kept)]:
            self.questions[place] = self.questions[place].evolve(closed_at=at)
        for text in texts[len(self._open_questions()) :]:
            self._asked += 1
            whole = _full_question(text, calls)
            self.questions.append(ExportedQuestion(id=question_id(self._asked), text=whole, asked_at=at))


def _full_question(waiting_for: str, calls: Mapping[str, ExportedCall]) -> str:
    """Return the agent's full question: the search attribute is truncated."""
    for call in reversed([*calls.values()]):
        question = call.arguments.get("question") if isinstance(call.arguments, Mapping) else None
        if call.tool == ASK_HUMAN and isinstance(question, str) and format_wait(f"asks: {question}") == waiting_for:
            return question
    return waiting_for.removeprefix("human: ")


def sender_of_update(event: Event) -> str:
    """Return the identity of the client that sent an update, from the event of its acceptance."""
    return str(((event.get("accepted_request") or {}).get("meta") or {}).get("identity", ""))


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
    policy: str | None = None  # the hash of the policy that it began with
    segments: list[Segment] = field(default_factory=list)
    conversation: str | None = None  # the store that holds the record of a conversation's turn
    length: int = 0
    head: str = ""
    workers: list[str] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # events that this version cannot read

    @property
    def usage(self) -> Usage:
        return sum((turn.usage for turn in self.turns), Usage())

    @property
    def cost_usd(self) -> float | None:
        """The total, if the price of every model that answered is known."""
        costs = [turn.cost_usd for turn in self.turns if turn.model]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def collect_facts(executions: Sequence[ExportedExecution]) -> RunFacts:
    collector = _Collector()
    for execution in executions:
        for event in execution.events:
            collector.add_event(event)
    return collector.facts


def with_shown_results(calls: Mapping[str, ExportedCall], parts: Sequence[Part]) -> list[ExportedCall]:
    """Return the calls with their results as the model received them."""
    blocks = {block.get("tool_use_id"): (part, block) for part in parts for block in part.content}
    completed = []
    for known in calls.values():
        call = known
        part, block = blocks.get(call.tool_use_id, (None, {}))
        if part is not None and part.kind is PartKind.result:
            step = call.step if call.step is not None else part.about.get("step")
            call = call.evolve(shown=block.get("content"), is_error=bool(block.get("is_error")), step=step)
        completed.append(call)
    return completed


class _Collector:
    def __init__(self) -> None:
        self.facts = RunFacts()
        self._reader = EventReader()
        self._questions = QuestionLog()
        self.facts.questions = self._questions.questions

    def add_event(self, event: Event) -> None:
        try:
            self._add_event(event)
        except UNEXPECTED_SHAPE:
            self._note_unreadable(event)

    def _note_unreadable(self, event: Event) -> None:
        _add_unique(self.facts.unreadable, f"event {event['id']} ({event['type']})")

    def _add_event(self, event: Event) -> None:
        at = datetime.fromisoformat(event["at"])
        ended = self._reader.activities.get(event.get("scheduled_event_id", 0))
        if answer := answer_in(event):
            self._questions.note_answer(answer, event, at)
        for run_event in self._reader.read(event):
            self._add_run_event(run_event, ended, event, at)
        match event["type"]:
            case "workflow_execution_started":
                self._on_started(event, at)
            case "workflow_task_completed":
                self._on_task_completed(event)
            case "activity_task_scheduled":
                self._on_scheduled(self._reader.activities[event["id"]])
            case "activity_task_completed" if ended is not None:
                self._on_completed(ended, first_value(event.get("result")))
            case "activity_task_failed" | "activity_task_timed_out" | "activity_task_canceled" if ended is not None:
                self._on_failed(ended, event, at)
            case "marker_recorded":
                self._on_marker(event.get("details") or {})
            case "workflow_execution_signaled":
                body = first_value(event.get("input"))
                self._add_arrival("signal", event["signal_name"], body, event.get("identity", ""), at)
                if event["signal_name"] == "tool_result":
                    self._add_result(body, at)
            case "workflow_execution_update_accepted":
                update = (event.get("accepted_request") or {}).get("input") or {}
                body, name = first_value(update.get("args")), update.get("name", "")
                self._add_arrival("update", name, body, sender_of_update(event), at)
                if name == "deliver_result":
                    self._add_result(body, at)
            case "workflow_execution_cancel_requested":
                self._add_arrival("cancel", "", None, event.get("identity", ""), at)
            case _:
                pass

    def _add_run_event(self, run_event: RunEvent, ended: OpenActivity | None, event: Event, at: datetime) -> None:
        match run_event:
            case run_events.ModelReplied(turn=turn, reply=reply) if ended is not None:
                self._drop_unmade(turn)
                self.facts.turns.append(_export_turn(ended, at, reply))
                for block in map(unwrap_use, reply.content):
                    if block.get("type") == "tool_use":
                        self._add_call(block["id"], block["name"], block.get("input"), turn)
            case run_events.CallsReviewed(reviews) if ended is not None:
                self.facts.turns += [_export_review(ended, at, review) for review in reviews]
            case run_events.ContextCompacted(summary) if ended is not None:
                self.facts.turns.append(_export_turn(ended, at, summary))
            case run_events.OutcomeChecked(acceptance) if ended is not None:
                self.facts.turns.append(_export_turn(ended, at, acceptance))
            case run_events.ContextFilled() if ended is not None:
                failure = "the conversation was too long for the model"
                self.facts.turns.append(_export_turn(ended, at, None, failure))
            case run_events.ActivityFailed(error=failure) if event["type"] == "activity_task_completed" and ended:
                self.facts.turns.append(_export_turn(ended, at, None, failure))  # in a batch
            case run_events.ToolCallFinished(call, outcome) if ended and event["type"] == "activity_task_completed":
                self._add_attempt(call, ended, at, outcome=outcome.model_dump(mode="json"))
            case run_events.UnreadableEvent():
                self._note_unreadable(event)
            case run_events.AnswerReceived(answer, before):
                self._questions.settle_answer(answer, before=before)
            case run_events.AnswerRejected(answer, reason):
                self._questions.settle_answer(answer, reason=reason)
            case run_events.WaitStarted() | run_events.WaitEnded():
                self._questions.apply_wait(run_event, self.facts.calls, at)
            case _:
                pass

    def _on_started(self, event: Event, at: datetime) -> None:
        value = first_value(event.get("input"))
        if not self.facts.received:  # the first execution
            self.facts.start = value
            self._add_arrival("start", "", value, event.get("identity", ""), at)
        if event.get("continued_execution_run_id"):
            self._apply_handover(value)

    def _apply_handover(self, handover: Mapping[str, Any]) -> None:
        """Apply the state from another run or an earlier execution: its number of questions and its segments."""
        self._questions.continue_from(handover["state"].get("questions", 0))
        for segment in handover["segments"]:
            self._add_segment(segment)

    def _add_segment(self, segment: Mapping[str, Any]) -> None:
        parsed = Segment.model_validate(segment)
        if parsed not in self.facts.segments:
            self.facts.segments.append(parsed)

    def _on_task_completed(self, event: Event) -> None:
        _add_unique(self.facts.workers, event.get("identity", ""))
        build = event.get("deployment_version") or {}
        if build.get("build_id"):
            _add_unique(self.facts.builds, f"{build.get('deployment_name', '')}:{build['build_id']}")

    def _on_scheduled(self, activity: OpenActivity) -> None:
        request = activity.request
        self.facts.notices += request.get("trace", ())
        if activity.kind in (*MODEL_TURNS, FUSED_TURN):
            _add_unique(self.facts.definitions, request.get("definition", ""))
            self.facts.policy = self.facts.policy or (request.get("policy") or {}).get("policy") or None
        elif activity.kind == "close_segment":
            self._apply_close(request, (request.get("turn") or {}).get("owner"))
        elif activity.kind == QUEUED_CALL:
            activity.calls = (self._identify_call(activity.calls[0], generation_of(request["dedupe_key"])),)

    def _identify_call(self, call: ToolCall, generation: int) -> ToolCall:
        """Return a call on another task queue with its tool use, which its request does not name."""
        digest = call_digest(call.tool, call.arguments or {})
        fits = (c for c in self.facts.calls.values() if c.digest == digest and c.step in (None, call.step))
        known = next(fits, None)
        if known is not None:
            self.facts.calls[known.tool_use_id] = known.evolve(step=call.step)
        tool_use_id = known.tool_use_id if known else f"step-{call.step}"
        return call.evolve(tool_use_id=tool_use_id, attempt=generation)

    def _on_completed(self, activity: OpenActivity, result: Any) -> None:
        match activity.kind:
            case "keep_result":
                self._replace_outcome(activity.request["step"], result)
            case "inherit":
                self._apply_handover(result)
            case kind:
                self._apply_segment(kind, result)

    def _on_marker(self, details: Mapping[str, Any]) -> None:
        """Apply a local activity, which history records as a marker with a result and no input."""
        activity, result = first_value(details.get("data")), first_value(details.get("result"))
        if isinstance(activity, Mapping) and isinstance(result, Mapping):
            kind = activity.get("activity_type", "")
            self._apply_segment(kind, result)
            if kind == "close_segment":
                self._apply_close(result, None)  # an ordinary activity closes a turn
                self.facts.notices += result.get("trace", ())

    def _apply_segment(self, kind: str, result: Any) -> None:
        if kind in ("close_segment", "join_conversation") and isinstance(result, Mapping) and result.get("segment"):
            self._add_segment(result["segment"])

    def _apply_close(self, record: Mapping[str, Any], owner: str | None) -> None:
        self.facts.length, self.facts.head = record.get("length", 0), record.get("head", "")
        self.facts.conversation = owner

    def _on_failed(self, activity: OpenActivity, event: Event, at: datetime) -> None:
        if activity.kind in MODEL_TURNS:
            self.facts.turns.append(_export_turn(activity, at, None, _failure_text(event)))
        for call in activity.calls:
            self._add_attempt(call, activity, at, failure=_failure_text(event))

    def _drop_unmade(self, turn: int) -> None:
        """Drop the calls of an earlier reply to the same turn: the run went on without it."""
        unmade = [call.tool_use_id for call in self.facts.calls.values() if call.turn == turn and not call.made]
        for tool_use_id in unmade:
            del self.facts.calls[tool_use_id]

    def _add_call(self, tool_use_id: str, tool: str, arguments: Any, turn: int | None) -> ExportedCall:
        digest = call_digest(tool, arguments if isinstance(arguments, Mapping) else {})
        call = ExportedCall(tool_use_id=tool_use_id, tool=tool, turn=turn, arguments=arguments, digest=digest)
        self.facts.calls[tool_use_id] = call
        return call

    def _add_attempt(self, call: ToolCall, activity: OpenActivity, at: datetime, **end: Any) -> None:
        known = self.facts.calls.get(call.tool_use_id)
        if known is None:  # its turn belongs to another run, or is past the retention
            known = self._add_call(call.tool_use_id, call.tool, call.arguments, None)
        changed = call.arguments if call.changed_by else None
        attempt = ExportedAttempt(
            arguments=changed,
            generation=call.attempt,
            approval=call.approval,
            ended_at=at,
            **_activity_fields(activity),
            **end,
        )
        effect = None if activity.kind == QUEUED_CALL else call.effect.value
        self.facts.calls[known.tool_use_id] = known.evolve(step=call.step, effect=effect, made=(*known.made, attempt))

    def _replace_outcome(self, step: int, outcome: Any) -> None:
        """Record that the large result of another worker became an artifact."""
        call = next(call for call in self.facts.calls.values() if call.step == step and call.made)
        full = ToolOutcome.model_validate(outcome).model_dump(mode="json")
        last = call.made[-1].evolve(outcome=full)
        self.facts.calls[call.tool_use_id] = call.evolve(made=(*call.made[:-1], last))

    def _add_result(self, body: Any, at: datetime) -> None:
        """Record a result from outside, by signal or update, without its nonce."""
        payload = body.get("payload") if isinstance(body, Mapping) else None
        step = payload.get("step") if isinstance(payload, Mapping) else None
        if step is None:
            return
        event = {name: value for name, value in body.items() if name != "nonce"}
        for call in [call for call in self.facts.calls.values() if call.step == step]:
            results = (*call.from_outside, {"at": at.isoformat(), "event": event})
            self.facts.calls[call.tool_use_id] = call.evolve(from_outside=results)

    def _add_arrival(self, kind: str, name: str, body: Any, identity: str, at: datetime) -> None:
        sent = sent_by(body, identity)
        self.facts.received.append(
            ExportedArrival.model_validate({"at": at, "kind": kind, "name": name, **sent.model_dump()})
        )


_REPLY_FIELDS = {"model", "stop_reason", "usage", "cost_usd", "duration_ms", "pieces"}


def _export_turn(
    activity: OpenActivity, at: datetime, reply: ModelTurn | Summary | Acceptance | None, failure: str | None = None
) -> ExportedTurn:
    """Return the turn of a reply or a summary, or of none for a `failure`."""
    fields = reply.model_dump(include=_REPLY_FIELDS) if reply else {}
    return ExportedTurn(
        activity=activity.kind,
        turn=activity.request.get("turn"),
        ended_at=at,
        definition=activity.request.get("definition", ""),
        failure=failure,
        verdict=(reply.rejection or "accepted") if isinstance(reply, Acceptance) else "",
        cites=cited_urls(reply.content) if isinstance(reply, ModelTurn) else (),
        **_activity_fields(activity),
        **fields,
    )


def _export_review(activity: OpenActivity, at: datetime, review: PolicyReview) -> ExportedTurn:
    """Return the row of a review, which was made within the activity of another one."""
    verdict = f"{review.verdict or 'no verdict'} on {review.tool}"
    return ExportedTurn(
        activity="review_call",
        turn=None,
        ended_at=at,
        definition=activity.request.get("definition", ""),
        verdict=f"{verdict}: {review.reason}" if review.reason else verdict,
        **_activity_fields(activity),
        **review.model_dump(include=_REPLY_FIELDS),
    )


def _activity_fields(activity: OpenActivity) -> dict[str, Any]:
    return {"requested_at": activity.at, "attempts": activity.attempts, "worker": activity.worker}


def _failure_text(event: Event) -> str:
    failure = event.get("failure") or {}
    messages = [failure_message(failure), failure_message(failure.get("cause") or {})]
    kind = (failure.get("application_failure_info") or {}).get("type", "")
    text = ": ".join(part for part in [kind, *messages] if part)
    return text or event["type"].removeprefix("activity_task_").replace("_", " ")


def _add_unique(values: list[str], value: str) -> None:
    if value and value not in values:
        values.append(value)
