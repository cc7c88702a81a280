"""The course of a run as events of AG-UI 1.0, and as the messages that a client makes of them.

The client checks each rule: a stream begins with `RUN_STARTED`, what opens closes before its end, nothing follows that.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from perdure.client.course import moves
from perdure.client.course.moves import Move
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.visible_text import render_values, render_visible
from perdure.gateway.chats import file_address, shown_id

Event = dict[str, Any]
MAX_NOTICE = 2000  # characters
CLOSED_KINDS = (QuestionKind.choice, QuestionKind.project)  # only their options answer them


@dataclass
class StretchWriter:
    """Writes the events of one run for a stretch of a thread, and keeps the run's messages."""

    run_id: str
    thread: str = ""
    stretch: str = ""
    _messages: dict[str, list[Event]] = field(default_factory=dict)  # oldest first, each call with its result
    _step: int = 0
    _calls: set[str] = field(default_factory=set)  # open ones

    @property
    def messages(self) -> list[Event]:
        """The messages of the run so far, in the order in which a client has them."""
        return [message for group in self._messages.values() for message in group]

    def begin(self) -> Event:
        return {"type": "RUN_STARTED", "threadId": self.thread, "runId": self.stretch}

    def go_on(self) -> Iterator[Event]:
        """Yield what opens a stream that has a snapshot in place of its beginning. No text is open then."""
        if self._step:
            yield self._step_event("STARTED")

    def finish(self, outcome: Event, **result: Any) -> Event:
        end = {"type": "RUN_FINISHED", "threadId": self.thread, "runId": self.stretch, "outcome": outcome}
        return end | ({"result": {"runId": self.run_id, **result}} if result else {})

    def remark(self, about: str, text: str) -> Event:
        """Return an event that counts for now."""
        return custom("notice", {"about": about, "text": text[:MAX_NOTICE]})

    def write(self, move: Move) -> Iterator[Event]:
        """Yield the events of the next move."""
        yield from self._WRITERS[type(move)](self, move)

    def _id(self, name: str) -> str:
        """Ids of moves are unique in the run, those of messages in the thread."""
        return f"{self.run_id}/{name}"

    def _step_event(self, move: str) -> Event:
        return {"type": f"STEP_{move}", "stepName": f"{self.run_id}/{self._step}"}

    def _on_step(self, move: moves.StepOpened) -> Iterator[Event]:
        self._step = move.turn
        yield self._step_event("STARTED")

    def _on_step_end(self, _: moves.StepClosed) -> Iterator[Event]:
        yield self._step_event("FINISHED")
        self._step = 0

    def _on_text(self, move: moves.TextOpened) -> Iterator[Event]:
        name = self._id(move.id)
        self._messages[name] = [{"id": name, "role": "assistant", "content": ""}]
        yield {"type": "TEXT_MESSAGE_START", "messageId": name, "role": "assistant"}

    def _on_more_text(self, move: moves.TextAdded) -> Iterator[Event]:
        self._messages[self._id(move.id)][0]["content"] += move.text
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._id(move.id), "delta": move.text}

    def _on_text_end(self, move: moves.TextClosed) -> Iterator[Event]:
        """A void text stays with the client until the snapshot that follows."""
        if move.is_void:
            del self._messages[self._id(move.id)]
        yield {"type": "TEXT_MESSAGE_END", "messageId": self._id(move.id)}

    def _on_thought(self, move: moves.ThoughtShown) -> Iterator[Event]:
        name = self._id(f"reasoning/{move.id}")
        self._messages[name] = [{"id": name, "role": "reasoning", "content": move.text}]
        named = {"messageId": name}
        yield {"type": "REASONING_START", **named}
        yield {"type": "REASONING_MESSAGE_START", **named, "role": "reasoning"}
        yield {"type": "REASONING_MESSAGE_CONTENT", **named, "delta": move.text}
        yield {"type": "REASONING_MESSAGE_END", **named}
        yield {"type": "REASONING_END", **named}

    def _on_source(self, move: moves.SourceCited) -> Iterator[Event]:
        yield custom("source", {"url": move.url, "title": move.title or move.url})

    def _on_call(self, move: moves.CallOpened) -> Iterator[Event]:
        """A person approves what the page shows, so no character of it is invisible."""
        name, arguments = self._id(move.id), json.dumps(render_values(move.arguments))
        self._calls.add(name)
        function = {"name": move.tool, "arguments": arguments}
        call = {"id": name, "type": "function", "function": function}
        self._messages[name] = [{"id": name, "role": "assistant", "toolCalls": [call]}]
        yield {"type": "TOOL_CALL_START", "toolCallId": name, "toolCallName": move.tool}
        yield {"type": "TOOL_CALL_ARGS", "toolCallId": name, "delta": arguments}
        yield {"type": "TOOL_CALL_END", "toolCallId": name}

    def _on_call_change(self, move: moves.CallChanged) -> Iterator[Event]:
        """The client only adds to arguments: the snapshot that follows has the new ones."""
        arguments = render_values(move.arguments)
        [call] = self._messages[self._id(move.id)][0]["toolCalls"]
        call["function"]["arguments"] = json.dumps(arguments)
        yield custom("call_changed", {"toolCallId": self._id(move.id), "arguments": arguments})

    def _on_call_end(self, move: moves.CallClosed) -> Iterator[Event]:
        name = self._id(move.id)
        self._calls.discard(name)
        error = "denied" if move.is_denied else move.error and move.error.message
        content = error or (move.result if isinstance(move.result, str) else json.dumps(move.result))
        result = {"toolCallId": name, "role": "tool", "content": content}
        self._messages[name].append({"id": f"{name}/result", **result})
        yield {"type": "TOOL_CALL_RESULT", "messageId": f"{name}/result", **result}
        for media in move.media:
            address = file_address(self.run_id, f"media/{media.sha256}")
            yield custom("file", {"url": address, "mediaType": media.media_type, "toolCallId": name})

    def _on_asked(self, _: moves.PeopleAsked) -> Iterator[Event]:
        """The interrupt comes at the pause, with all that is open then."""
        yield from ()

    def _on_answer(self, move: moves.AnswerTaken) -> Iterator[Event]:
        answer = move.answer
        given = {"decision": answer.decision, "text": answer.text, "by": answer.by}
        about = {"questionId": move.question_id, "isFinal": move.is_final}
        yield custom("answer", about | {name: value for name, value in given.items() if value is not None})

    def _on_question_end(self, move: moves.QuestionEnded) -> Iterator[Event]:
        yield custom("question_closed", {"questionId": move.question.id, "end": move.end})

    def _on_subtask(self, move: moves.SubtaskMoved) -> Iterator[Event]:
        """A `SUBAGENT` ends before its stretch, and a subtask may outlive a question."""
        yield custom("subtask", asdict(move.subtask))

    def _on_remark(self, move: moves.RemarkMade) -> Iterator[Event]:
        yield self.remark(move.about, move.text)

    def _on_pause(self, move: moves.CoursePaused) -> Iterator[Event]:
        yield self.finish({"type": "interrupt", "interrupts": [*map(self._interrupt, move.questions)]})

    def _interrupt(self, question: QuestionView) -> Event:
        call = self._id(question.tool_use_id or "")
        interrupt = {
            "id": shown_id(self.run_id, question),
            "reason": "tool_call" if call in self._calls else "input_required",
            "message": render_visible(question.text),
            "responseSchema": response_schema(question),
            "metadata": {"perdure": {"runId": self.run_id, **render_values(question.model_dump(mode="json"))}},
        }
        if call in self._calls:
            interrupt["toolCallId"] = call
        if question.expires_at is not None:
            interrupt["expiresAt"] = question.expires_at.isoformat()
        return interrupt

    def _on_end(self, move: moves.CourseEnded) -> Iterator[Event]:
        end, payload = move.end, (move.end.event or {}).get("payload", {})
        if end.status in (RunStatus.failed, RunStatus.timed_out):
            yield {"type": "RUN_ERROR", "message": end.message or end.status, "code": end.status}
            return
        if end.status == RunStatus.completed and move.says_more and end.text:
            name = "outcome"
            for said in (moves.TextOpened(name), moves.TextAdded(name, end.text), moves.TextClosed(name)):
                yield from self.write(said)
        about = {"status": end.status, "reason": payload.get("reason") or end.kind, "detail": payload.get("detail")}
        result: Event = {key: str(value) for key, value in about.items() if value}
        if end.result is not NO_RESULT:
            result["output"] = end.result
        if artifacts := payload.get("artifacts"):
            result["artifacts"] = [file_address(self.run_id, path) for path in artifacts]
        yield self.finish({"type": "cancelled" if end.status == RunStatus.cancelled else "success"}, **result)

    _WRITERS: ClassVar[Mapping[type, Callable[["StretchWriter", Any], Iterator[Event]]]] = {
        moves.StepOpened: _on_step,
        moves.StepClosed: _on_step_end,
        moves.TextOpened: _on_text,
        moves.TextAdded: _on_more_text,
        moves.TextClosed: _on_text_end,
        moves.ThoughtShown: _on_thought,
        moves.SourceCited: _on_source,
        moves.CallOpened: _on_call,
        moves.CallChanged: _on_call_change,
        moves.CallClosed: _on_call_end,
        moves.PeopleAsked: _on_asked,
        moves.AnswerTaken: _on_answer,
        moves.QuestionEnded: _on_question_end,
        moves.SubtaskMoved: _on_subtask,
        moves.RemarkMade: _on_remark,
        moves.CoursePaused: _on_pause,
        moves.CourseEnded: _on_end,
    }


def response_schema(question: QuestionView) -> Event:
    """Return the JSON Schema of the payload that answers a question."""
    if question.form is not None:
        form: Event = render_values(question.form)
        return form
    row, options = QUESTIONS[question.kind], [*question.options]
    if row.is_textual:
        suggested = {"enum" if question.kind in CLOSED_KINDS else "examples": options} if options else {}
        return {"type": "string", **suggested}
    fields: Event = {"decision": {"enum": options}, "text": {"type": "string"}}
    if question.kind == QuestionKind.approval:
        fields = {"approved": {"type": "boolean"}, "editedArgs": {"type": "object"}, **fields}
    one_of = [{"required": [name]} for name in fields if name not in ("editedArgs", "text") or row.takes_own_words]
    return {"type": "object", "properties": fields, "anyOf": one_of, "additionalProperties": False}


def custom(name: str, value: Event) -> Event:
    return {"type": "CUSTOM", "name": f"perdure/{name}", "value": value}
