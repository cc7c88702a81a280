"""The walk over the events of a run: the text so far becomes what is new, and each event what it opens and closes.

It knows no protocol. A translator of its moves needs no memory of the run.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from perdure.activities.run.outcome import RunEnd
from perdure.client import run_events
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
from perdure.client.records.event_reader import FUSED_TURN, TURN_ACTIVITIES
from perdure.client.run_events import RunEvent
from perdure.contracts.run.signals import Decision
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.contracts.tool import ToolCall, ToolError, ToolOutcome
from perdure.decisions.run.transcript import join_text_blocks
from perdure.decisions.tools import ASK_HUMAN, CONTROL_TOOLS, unwrap_use

OWN_CALLS = frozenset({*CONTROL_TOOLS, ASK_HUMAN})  # they end the run, or ask: the course shows that instead
MAX_PARTIAL = 2000  # characters of a partial text: of a longer answer it is the end (`SHOWN_TAIL` of model turns)
OVERLAP = 80  # characters by which the end of a text is found in the next one
IN_DOUBT = ToolError(kind="in_doubt", message="it may have taken effect")
CUT_SHORT = ToolError(kind="ended", message="the run ended before the call did")


@dataclass
class Walk:
    """Walks over the events of one run, from its first."""

    turn: int = 0  # of the open step; 0: none is open
    asked: tuple[QuestionView, ...] = ()  # if the run waits for people, as far as it is known
    is_asking: bool = False
    has_ended: bool = False
    _said: str = ""  # the last whole text
    _text: str = ""  # the id of the open text
    _shown: str = ""  # of it
    _texts: int = 0
    _is_replying: bool = False
    _calls: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)  # open ones, by tool use
    _failed: dict[str, ToolError] = field(default_factory=dict)  # of open calls: the run decides what it means
    _steps: dict[int, str] = field(default_factory=dict)  # tool uses by step
    _open: dict[str, QuestionView] = field(default_factory=dict)  # questions without a reported end

    def read(self, event: RunEvent) -> list[Move]:
        """Return the moves of the next event."""
        if isinstance(event, run_events.FeatureEvent):
            moved: list[Move] = [SubtaskMoved(subtask) for subtask in event.subtasks]
            return moved or [RemarkMade(event.type, event.doing or event.activity.replace("_", " "))]
        reader = self._READERS.get(event.type)
        return list(reader(self, event)) if reader else []

    def pause(self) -> list[Move]:
        """Return the moves with which the course stands still: the step closes, its calls stay open."""
        return [*self._close_text(), *self._close_step(), CoursePaused(self.asked)]

    def ask(self, questions: tuple[QuestionView, ...]) -> list[Move]:
        """Note the questions that are open by now."""
        self.asked, known = questions, self.asked
        self._open |= {question.id: question for question in questions}
        return [PeopleAsked(questions)] if questions != known else []

    def end(self, end: RunEnd) -> list[Move]:
        """Return the moves of the run's end, which closes all that is open."""
        moves: list[Move] = [*self._close_text()]
        moves += [CallClosed(call, error=self._failed.get(call, CUT_SHORT)) for call in self._calls]
        self._calls.clear()
        return [*moves, *self._close_step(), CourseEnded(end, end.text != self._said)]

    # ---- the model

    def _on_call(self, event: run_events.ModelCallStarted) -> Iterator[Move]:
        yield from self._open_step(event.turn)

    def _open_step(self, turn: int) -> Iterator[Move]:
        """A live reading may announce a step twice."""
        if turn != self.turn:
            yield from self._close_text()
            yield from self._close_step()
            yield StepOpened(turn)
        self.turn, self._is_replying = turn, True

    def _close_step(self) -> Iterator[Move]:
        if self.turn:
            yield StepClosed(self.turn)
        self.turn, self._is_replying = 0, False

    def _on_partial(self, event: run_events.PartialText) -> Iterator[Move]:
        """A text whose beginning is missing waits for the reply, which has it."""
        if not self._is_replying or event.turn not in (0, self.turn):
            return  # read before the reply, and heard after it
        new = _new_text(self._shown, event.text)
        if new:
            yield from self._add_text(new)

    def _add_text(self, text: str) -> Iterator[Move]:
        if not self._text:
            self._texts += 1
            self._text = f"{self.turn}.{self._texts}"
            yield TextOpened(self._text)
        self._shown += text
        yield TextAdded(self._text, text)

    def _close_text(self, *, is_void: bool = False) -> Iterator[Move]:
        if self._text:
            yield TextClosed(self._text, is_void)
        self._text = self._shown = ""

    def _on_retry(self, event: run_events.ActivityRetrying) -> Iterator[Move]:
        if event.activity in (*TURN_ACTIVITIES, FUSED_TURN):
            yield from self._close_text(is_void=True)  # the reply begins at its beginning again
        yield RemarkMade(event.type, f"{event.activity}, attempt {event.attempt}: {event.error}")

    def _on_reply(self, event: run_events.ModelReplied) -> Iterator[Move]:
        """All calls before it have ended: the model has their results."""
        yield from self._open_step(event.turn)
        for call in [*self._calls]:
            yield from self._close_call(call, error=self._failed.get(call))
        content = event.reply.content
        text, is_said = join_text_blocks(content), False
        if self._text and not text.startswith(self._shown.rstrip()):
            yield from self._close_text(is_void=True)
        for number, block in enumerate(map(unwrap_use, content)):
            is_said = is_said or bool(self._text)
            match block:
                case {"type": "text"} if not is_said and text:
                    yield from self._whole_text(text)
                    is_said = True
                case {"type": "thinking", "thinking": str(thought)} if thought:
                    yield ThoughtShown(f"{event.turn}.{number}", thought)
                case {"type": "tool_use", "name": name, "id": use} if name not in OWN_CALLS:
                    self._calls[use] = name, block["input"]
                    yield CallOpened(use, name, block["input"])
                case {"type": "server_tool_use", "name": name, "id": use}:
                    yield CallOpened(use, name, block.get("input") or {})
                    yield CallClosed(use, _server_result(use, content))
                case _:
                    pass  # opaque, or the run's own affair
        if self._text:
            yield from self._whole_text(text)
        yield from _sources(event.turn, content)
        self._said, self._is_replying = text, False

    def _whole_text(self, text: str) -> Iterator[Move]:
        if rest := text[len(self._shown) :]:
            yield from self._add_text(rest)
        yield from self._close_text()

    # ---- calls

    def _on_call_started(self, event: run_events.ToolCallStarted) -> Iterator[Move]:
        self._steps[event.call.step] = self._use_of(event.call)
        yield from ()

    def _on_call_finished(self, event: run_events.ToolCallFinished) -> Iterator[Move]:
        """A call of kind `signal` is handed out: its result comes from outside."""
        if event.call.nonce is None or event.outcome.status != "ok":
            yield from self._close_with(self._use_of(event.call), event.outcome)

    def _on_result(self, event: run_events.ToolResultReceived) -> Iterator[Move]:
        yield from self._close_with(self._steps.get(event.step, ""), event.outcome)

    def _on_waiting(self, event: run_events.ToolCallWaiting) -> Iterator[Move]:
        yield RemarkMade(event.type, event.text)

    def _on_refused(self, event: run_events.ToolCallRefused) -> Iterator[Move]:
        yield from self._close_call(event.tool_use_id, error=event.error, is_denied=event.error.kind == "denied")

    def _on_failed(self, event: run_events.ActivityFailed) -> Iterator[Move]:
        if event.tool_use_id:
            self._failed[event.tool_use_id] = ToolError(kind="failed", message=event.error)
        yield RemarkMade(event.type, f"{event.activity}: {event.error}")

    def _use_of(self, call: ToolCall) -> str:
        """A call on the task queue of another worker does not have the id."""
        alike = (use for use, (name, given) in self._calls.items() if (name, given) == (call.tool, call.arguments))
        return call.tool_use_id or next(alike, "")

    def _close_with(self, use: str, outcome: ToolOutcome) -> Iterator[Move]:
        yield from self._close_call(use, outcome.result, outcome.error, media=outcome.media)

    def _close_call(self, use: str, *given: Any, **more: Any) -> Iterator[Move]:
        if self._calls.pop(use, None):
            self._failed.pop(use, None)
            yield CallClosed(use, *given, **more)

    # ---- people

    def _on_wait(self, event: run_events.WaitStarted) -> Iterator[Move]:
        self.is_asking = event.is_for_person
        if event.is_for_person and event.questions:
            yield from self.ask(event.questions)
        elif event.status == RunStatus.waiting_on_tool:
            yield RemarkMade(event.type, f"waits for {event.waiting_for}")

    def _on_wait_ended(self, _: run_events.WaitEnded) -> Iterator[Move]:
        self.is_asking, self.asked = False, ()
        yield from ()

    def _on_answer(self, event: run_events.AnswerReceived) -> Iterator[Move]:
        """An answer that names no question is for the one that was open."""
        answer = event.answer
        named = answer.question_id or next(iter(self._open), "")
        yield AnswerTaken(named, answer, is_final=all(named != asked.id for asked in self.asked))
        question = self._open.get(named)
        use = (question and question.tool_use_id) or ""
        if use not in self._calls:
            return
        tool, _ = self._calls[use]
        match answer.decision:
            case Decision.use_result:
                yield from self._close_call(use, answer.text)
            case Decision.give_up:
                yield from self._close_call(use, error=self._failed.get(use, IN_DOUBT))
            case Decision.run_again:
                self._failed.pop(use, None)
            case Decision.approve if answer.arguments is not None:
                self._calls[use] = tool, answer.arguments
                yield CallChanged(use, tool, answer.arguments)
            case _:
                pass

    def _on_closed(self, event: run_events.QuestionClosed) -> Iterator[Move]:
        self._open.pop(event.question.id, None)
        self.asked = tuple(question for question in self.asked if question.id != event.question.id)
        yield QuestionEnded(event.question, event.end)

    # ---- the rest

    def _on_delay(self, event: run_events.PartialText) -> Iterator[Move]:
        yield RemarkMade(event.type, event.text)

    def _on_held(self, event: run_events.RunHeld) -> Iterator[Move]:
        yield RemarkMade(event.type, f"held: {event.why}")

    def _on_notice(self, event: run_events.NoticeAdded) -> Iterator[Move]:
        yield RemarkMade(event.type, str(event.event.get("event", "")))

    def _on_compacted(self, event: run_events.ContextCompacted) -> Iterator[Move]:
        yield RemarkMade(event.type, "a summary replaces the older messages")

    def _on_end(self, _: run_events.RunEnded) -> Iterator[Move]:
        self.has_ended = True
        yield from ()

    _READERS: ClassVar[Mapping[str, Callable[["Walk", Any], Iterator[Move]]]] = {
        "model_call_started": _on_call,
        "partial_text": _on_partial,
        "activity_retrying": _on_retry,
        "model_replied": _on_reply,
        "tool_call_started": _on_call_started,
        "tool_call_finished": _on_call_finished,
        "tool_result_received": _on_result,
        "tool_call_refused": _on_refused,
        "tool_call_waiting": _on_waiting,
        "activity_failed": _on_failed,
        "wait_started": _on_wait,
        "wait_ended": _on_wait_ended,
        "answer_received": _on_answer,
        "question_closed": _on_closed,
        "rate_limited": _on_delay,
        "batch_wait": _on_delay,
        "run_held": _on_held,
        "notice_added": _on_notice,
        "context_compacted": _on_compacted,
        "run_ended": _on_end,
    }


def _new_text(shown: str, text: str) -> str:
    """Return what is new in the text so far; empty if that is not known."""
    if text.startswith(shown):
        return text[len(shown) :] if shown or len(text) < MAX_PARTIAL else ""
    tail = shown[-OVERLAP:]
    at = text.rfind(tail) if len(text) >= MAX_PARTIAL else -1
    return text[at + len(tail) :] if at >= 0 else ""


def _server_result(use: str, content: list[dict[str, Any]]) -> Any:
    """Return the pages that the provider's own search found."""
    result = next((block.get("content") for block in content if block.get("tool_use_id") == use), None)
    if not isinstance(result, list):
        return result
    return [{name: page[name] for name in ("url", "title") if name in page} for page in result]


def _sources(turn: int, content: list[dict[str, Any]]) -> Iterator[SourceCited]:
    """Yield each address that the texts cite, once."""
    cited = [each for block in content if block["type"] == "text" for each in block.get("citations") or ()]
    titles = {str(each["url"]): str(each.get("title") or "") for each in reversed(cited) if each.get("url")}
    for number, (url, title) in enumerate(reversed(titles.items())):
        yield SourceCited(f"{turn}.{number}", url, title)
