"""The course of a run as parts of the AI SDK's UI message stream: one message, whose steps are the model's calls.

`ai` 6 ends a stream at a part that it does not know, so it gets what 6 and 7 both know.
"""

import mimetypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from perdure.client.course.moves import (
    AnswerTaken,
    CallChanged,
    CallClosed,
    CallOpened,
    CourseEnded,
    CoursePaused,
    Move,
    PeopleAsked,
    QuestionEnded,
    RemarkMade,
    SourceCited,
    StepClosed,
    StepOpened,
    SubtaskMoved,
    TextAdded,
    TextClosed,
    TextOpened,
    ThoughtShown,
)
from perdure.contracts.run.signals import Decision, HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.decisions.text.visible_text import render_values
from perdure.gateway.chats import file_address, shown_id
from perdure.gateway.routes.sse import frame_json

Part = dict[str, Any]
OURS = {"dynamic": True, "providerExecuted": True}  # no code of the page is needed, and the browser runs no tool
MAX_NOTICE = 2000  # characters
LAST_PARTS = ("finish", "error")
DONE = b"data: [DONE]\n\n"


@dataclass
class PartWriter:
    """Writes the message of one run."""

    run_id: str
    version: int = 6
    _calls: set[str] = field(default_factory=set)  # open ones
    _asked: dict[str, QuestionView] = field(default_factory=dict)  # as they were shown
    _approvals: set[str] = field(default_factory=set)  # that were requested: the client fails at any other
    _answers: dict[str, HumanInput] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)  # questions

    def begin(self) -> Part:
        return {
            "type": "start",
            "messageId": self.run_id,
            "messageMetadata": {"runId": self.run_id, "status": RunStatus.running},
        }

    def write(self, move: Move) -> Iterator[Part]:
        """Yield the parts of the next move."""
        yield from self._WRITERS[type(move)](self, move)

    def _on_step(self, _: StepOpened) -> Iterator[Part]:
        yield {"type": "start-step"}

    def _on_step_end(self, _: StepClosed) -> Iterator[Part]:
        yield {"type": "finish-step"}

    def _on_text(self, move: TextOpened) -> Iterator[Part]:
        yield {"type": "text-start", "id": move.id}

    def _on_more_text(self, move: TextAdded) -> Iterator[Part]:
        yield {"type": "text-delta", "id": move.id, "delta": move.text}

    def _on_text_end(self, move: TextClosed) -> Iterator[Part]:
        """6 cannot take a text back: the new one follows it."""
        yield {"type": "text-end", "id": move.id}
        if move.is_void and self.version >= 7:
            yield {"type": "reset-step"}

    def _on_thought(self, move: ThoughtShown) -> Iterator[Part]:
        yield {"type": "reasoning-start", "id": move.id}
        yield {"type": "reasoning-delta", "id": move.id, "delta": move.text}
        yield {"type": "reasoning-end", "id": move.id}

    def _on_source(self, move: SourceCited) -> Iterator[Part]:
        yield {"type": "source-url", "sourceId": move.id, "url": move.url, "title": move.title or move.url}

    def _on_call(self, move: CallOpened | CallChanged) -> Iterator[Part]:
        """A person approves what the page shows, so no character of it is invisible."""
        self._calls.add(move.id)
        named = {"toolCallId": move.id, "toolName": move.tool, "input": render_values(move.arguments)}
        yield {"type": "tool-input-available", **named, **OURS}

    def _on_call_end(self, move: CallClosed) -> Iterator[Part]:
        self._calls.discard(move.id)
        if move.is_denied:
            yield {"type": "tool-output-denied", "toolCallId": move.id}
        elif move.error is not None:
            yield {"type": "tool-output-error", "toolCallId": move.id, "errorText": move.error.message, **OURS}
        else:
            yield {"type": "tool-output-available", "toolCallId": move.id, "output": move.result, **OURS}
        for media in move.media:
            yield self._file(f"media/{media.sha256}", media.media_type)

    def _file(self, path: str, media_type: str) -> Part:
        return {"type": "file", "mediaType": media_type, "url": file_address(self.run_id, path)}

    def _on_asked(self, move: PeopleAsked) -> Iterator[Part]:
        open_ones = {question.id for question in move.questions}
        for answered in [*self._answers]:
            if answered in self._asked and answered not in open_ones | self._settled:
                yield from self._settle(self._asked[answered])
        for question in move.questions:
            if self._asked.get(question.id) == question:
                continue
            known = self._asked.get(question.id)
            is_new = known is None or known.call != question.call
            self._asked[question.id] = question
            if question.kind == QuestionKind.approval and question.tool_use_id in self._calls and is_new:
                approval = shown_id(self.run_id, question)
                self._approvals.add(approval)
                yield {"type": "tool-approval-request", "approvalId": approval, "toolCallId": question.tool_use_id}
            yield self._question(question, "open")

    def _question(self, question: QuestionView, status: str) -> Part:
        data = {"runId": self.run_id, "status": status, **render_values(question.model_dump(mode="json"))}
        if answer := self._answers.get(question.id):
            given = {"decision": answer.decision, "text": answer.text, "by": answer.by}
            data["answer"] = {name: value for name, value in given.items() if value is not None}
        return {"type": "data-question", "id": question.id, "data": data}

    def _on_answer(self, move: AnswerTaken) -> Iterator[Part]:
        """One that was given before this reading could ask for the question shows with the question's end."""
        self._answers[move.question_id] = move.answer
        if question := self._asked.get(move.question_id):
            yield from self._settle(question) if move.is_final else [self._question(question, "open")]

    def _settle(self, question: QuestionView) -> Iterator[Part]:
        """`ai` 7 also hears of an approval that was given elsewhere."""
        self._settled.add(question.id)
        yield self._question(question, "answered")
        approval, decision = shown_id(self.run_id, question), self._answers[question.id].decision
        is_approved = decision in (Decision.approve, Decision.approve_tool)
        is_known = approval in self._approvals and question.tool_use_id in self._calls
        if self.version >= 7 and is_approved and is_known:
            yield {"type": "tool-approval-response", "approvalId": approval, "approved": True}

    def _on_question_end(self, move: QuestionEnded) -> Iterator[Part]:
        self._settled.add(move.question.id)
        yield self._question(self._asked.get(move.question.id, move.question), move.end)

    def _on_subtask(self, move: SubtaskMoved) -> Iterator[Part]:
        task = move.subtask
        yield {"type": "data-subtask", "id": task.run_id or task.id, "data": asdict(task)}

    def _on_remark(self, move: RemarkMade) -> Iterator[Part]:
        yield notice(move.about, move.text)

    def _on_pause(self, _: CoursePaused) -> Iterator[Part]:
        yield {
            "type": "finish",
            "finishReason": "tool-calls",
            "messageMetadata": {"status": RunStatus.waiting_on_human},
        }

    def _on_end(self, move: CourseEnded) -> Iterator[Part]:
        end, payload = move.end, (move.end.event or {}).get("payload", {})
        about = {"status": end.status, "reason": payload.get("reason") or end.kind, "detail": payload.get("detail")}
        metadata = {name: str(value) for name, value in about.items() if value}
        if end.status == RunStatus.completed and move.says_more and end.text:
            yield {"type": "text-start", "id": "outcome"}
            yield {"type": "text-delta", "id": "outcome", "delta": end.text}
            yield {"type": "text-end", "id": "outcome"}
        for path in payload.get("artifacts", ()):
            yield self._file(path, mimetypes.guess_type(path)[0] or "application/octet-stream")
        if end.status in (RunStatus.failed, RunStatus.timed_out):  # nothing is read after an error
            yield {"type": "message-metadata", "messageMetadata": metadata | {"detail": end.message}}
            yield {"type": "error", "errorText": end.message or end.status}
            return
        reason = "stop" if end.status == RunStatus.completed else "other"
        yield {"type": "finish", "finishReason": reason, "messageMetadata": metadata}

    _WRITERS: ClassVar[Mapping[type, Callable[["PartWriter", Any], Iterator[Part]]]] = {
        StepOpened: _on_step,
        StepClosed: _on_step_end,
        TextOpened: _on_text,
        TextAdded: _on_more_text,
        TextClosed: _on_text_end,
        ThoughtShown: _on_thought,
        SourceCited: _on_source,
        CallOpened: _on_call,
        CallChanged: _on_call,
        CallClosed: _on_call_end,
        PeopleAsked: _on_asked,
        AnswerTaken: _on_answer,
        QuestionEnded: _on_question_end,
        SubtaskMoved: _on_subtask,
        RemarkMade: _on_remark,
        CoursePaused: _on_pause,
        CourseEnded: _on_end,
    }


def notice(about: str, text: str) -> Part:
    """Return a part that the page shows once and does not keep."""
    return {"type": "data-notice", "data": {"about": about, "text": text[:MAX_NOTICE]}, "transient": True}


def frame(part: Part) -> bytes:
    """Return a part as a server-sent event, the last one with the stream's end. A named event would be its end."""
    return frame_json(part) + (DONE if part["type"] in LAST_PARTS else b"")
