"""The answers of models, tools and people in a recorded run. Each is taken once, in the order of the record."""

from collections import defaultdict, deque
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.project import Project
from contracts.agent import DEFAULT_AGENT
from contracts.media import Attached
from contracts.run.events import StartEvent, StartPayload
from contracts.run.export import Export, ExportedCall
from contracts.run.signals import HumanInput
from contracts.run.turn import ModelTurn
from contracts.tool import ToolError, ToolOutcome
from decisions.ids import call_digest
from decisions.run.transcript import result_part
from decisions.text.visible_text import render_visible
from perdure.client.errors import RejectedError
from perdure.client.event_reader import EventReader, first_value
from perdure.client.run_events import ContextCompacted, ContextFilled, ModelReplied, OutcomeChecked, RunEvent

STARTED = ("agentic.start", "agentic.begin")
SUMMARIZE, ACCEPT, ATTACH = "summarize", "accept_outcome", "take_attachments"  # activity types
PAYLOAD = ("goal", "agent", "context", "limits", "output_schema", "attachments")


class Recording:
    """The answers of one run, for one play of it."""

    def __init__(self, record: Export) -> None:
        self.record = record
        self._outcomes: dict[str, deque[ToolOutcome]] = defaultdict(deque)  # by the digest of the call
        self._answers: dict[str, deque[HumanInput]] = defaultdict(deque)  # by the text of the question
        self._results: dict[str, deque[Any]] = defaultdict(deque)  # of activities
        self._failures = {turn.turn: turn.failure for turn in record.turns if turn.failure}
        for call in record.calls:
            if call.shown is not None:
                self._outcomes[call.digest].append(_to_outcome(call))
        for question in record.questions:
            for answer in question.answers[:1]:
                body = HumanInput(text=answer.text, decision=answer.decision)
                self._answers[render_visible(question.text)].append(body)
        self._read_results()

    @property
    def start(self) -> StartEvent:
        """The start of a play."""
        payload = self.record.start["payload"]
        fields = {name: payload[name] for name in PAYLOAD if name in payload}
        return StartEvent(type="agentic.start", payload=StartPayload.model_validate(fields))

    def take_outcome(self, tool: str, arguments: dict[str, Any]) -> ToolOutcome | None:
        """Return the next outcome of this call, if the record has one more."""
        outcomes = self._outcomes[call_digest(tool, arguments)]
        return outcomes.popleft() if outcomes else None

    def take_answer(self, question: str) -> HumanInput | None:
        """Return a person's next answer to this question, if the record has one more."""
        answers = self._answers[question]
        return answers.popleft() if answers else None

    def take_turn(self, turn: int) -> Any:
        """Return the model's next result in this turn. Raises ApplicationError as the turn failed, or at the end."""
        if self._results[_turn_key(turn)]:
            return self._results[_turn_key(turn)].popleft()
        kind, _, message = self._failures.get(turn, "").partition(": ")
        text = message or f"the record has no reply for turn {turn}"
        raise ApplicationError(text, type=kind or None, non_retryable=True)

    def take_result(self, activity: str) -> Any:
        """Return the next result of an activity, if the record has one more."""
        results = self._results[activity]
        return results.popleft() if results else None

    def _read_results(self) -> None:
        reader = EventReader()
        for execution in self.record.executions:
            for event in execution.events:
                ended = reader.activities.get(event.get("scheduled_event_id", 0))
                turn = ended.request.get("turn", 0) if ended else 0
                for run_event in reader.read(event):
                    self._add_result(run_event, turn)
                if ended and ended.kind == ATTACH and event["type"] == "activity_task_completed":
                    self._results[ATTACH].append(Attached.model_validate(first_value(event["result"])))

    def _add_result(self, event: RunEvent, turn: int) -> None:
        match event:
            case ModelReplied(turn=number, reply=reply):
                earlier = self._results[_turn_key(number)]
                if earlier and isinstance(earlier[-1], ModelTurn):  # the run went on without it
                    earlier.pop()
                earlier.append(reply.model_copy(update={"verdicts": {}}))
            case ContextFilled(full):
                self._results[_turn_key(turn)].append(full)
            case ContextCompacted(summary):
                self._results[SUMMARIZE].append(summary)
            case OutcomeChecked(acceptance):
                self._results[ACCEPT].append(acceptance)
            case _:
                pass


def must_be_replayable(record: Export, project: Project) -> None:
    """Raise RejectedError if the run is open, not whole, has no goal of its own, or no agent in the project."""
    reason = None
    start = record.start if isinstance(record.start, dict) else {}
    if record.end is None:
        reason = "it is open: wait for its end"
    elif not record.transcript.complete:
        reason = f"its conversation is not complete ({'; '.join(record.missing) or 'no part of it is known'})"
    elif start.get("type") not in STARTED or start.get("is_turn") or start.get("choices"):
        reason = "it continues a conversation or another run, and has no beginning of its own"
    elif (agent := replayed_agent(record)) not in project.agents:
        reason = f"the project has no agent {agent!r} any more"
    if reason:
        raise RejectedError(f"run {record.run_id} cannot be replayed: {reason}")


def replayed_agent(record: Export) -> str:
    return record.start["payload"].get("agent") or DEFAULT_AGENT


def _turn_key(turn: int) -> str:
    return f"turn {turn}"


def _to_outcome(call: ExportedCall) -> ToolOutcome:
    """Return the outcome that shows the model what the run showed it, such as a denial or a result from outside."""
    made = call.made[-1].outcome if call.made else None
    outcome = ToolOutcome.model_validate(made or {}).model_copy(update={"interrupted": False, "at": None})
    if result_part(call.tool_use_id, call.tool, call.step, outcome).content[0]["content"] == call.shown:
        return outcome
    text = call.shown if isinstance(call.shown, str) else call.shown[0].get("text", "")
    if call.is_error:
        kind, _, message = text.partition(": ")
        return ToolOutcome(status="error", error=ToolError(kind=kind, message=message))
    return outcome.model_copy(update={"status": "ok", "error": None, "result": text})
