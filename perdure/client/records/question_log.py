"""The questions of a run with their answers, collected from its history for an export."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from contracts.run.export import ExportedAnswer, ExportedCall, ExportedQuestion
from contracts.run.signals import HumanInput
from contracts.run.state import RunStatus
from decisions.builtin_tools import ASK_HUMAN
from decisions.ids import question_id
from decisions.text.formatting import format_wait, split_waits
from perdure.client import run_events
from perdure.client.event_reader import Event


class QuestionLog:
    """The questions so far. History has no event of a question: its text is in `WaitingFor`, and its id is counted."""

    def __init__(self) -> None:
        self.questions: list[ExportedQuestion] = []
        self._asked = 0
        self._answered: dict[int, tuple[int, ExportedAnswer]] = {}  # and places of questions, by the answer's event

    def continue_from(self, asked: int) -> None:
        """Count on from the questions of another run or an earlier execution."""
        self._asked = max(self._asked, asked)

    def add_answer(self, reply: HumanInput, event: Event, at: datetime) -> None:
        is_signal = event["type"] == "workflow_execution_signaled"
        place = self._find_question(reply.question_id, is_signal=is_signal)
        if place is None:
            return
        source = {"via": "signal", "identity": event.get("identity", "")}
        if not is_signal:
            source = {"via": "update", "identity": sender_of_update(event)}
        fields = reply.model_dump(mode="json", include=set(ExportedAnswer.model_fields))
        answer = ExportedAnswer.model_validate({"at": at, **source, **fields})
        self._answered[event.get("id", 0)] = place, answer
        self._update_question(place, answers=(*self.questions[place].answers, answer))

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
            for other in [at for at, question in still_open if question.answers][:1]:
                self._update_question(other, closed_at=self.questions[place].closed_at)
            self._update_question(place, closed_at=None)
        return place

    def _update_question(self, place: int, **changes: Any) -> None:
        self.questions[place] = self.questions[place].model_copy(update=changes)

    def drop_answer(self, event_id: int) -> None:
        """Drop the answer of this event: the run rejected it after a check of the changed arguments."""
        if event_id in self._answered:
            place, rejected = self._answered[event_id]
            answers = self.questions[place].answers
            self._update_question(place, answers=tuple(answer for answer in answers if answer is not rejected))

    def _open_questions(self) -> list[tuple[int, ExportedQuestion]]:
        return [(at, question) for at, question in enumerate(self.questions) if question.closed_at is None]

    def apply_wait(
        self, wait: run_events.WaitStarted | run_events.WaitEnded, calls: Mapping[str, ExportedCall], at: datetime
    ) -> None:
        """Apply a change of `WaitingFor`, which lists the open questions, or the only one."""
        is_asking = isinstance(wait, run_events.WaitStarted) and wait.status == RunStatus.waiting_on_human
        texts = split_waits(wait.waiting_for) if isinstance(wait, run_events.WaitStarted) and is_asking else []
        still_open = self._open_questions()
        # Those with an answer have closed, unless more people must approve; else the first, whose time has passed.
        closing = sorted(still_open, key=lambda entry: not entry[1].answers)
        kept = len(texts) if len(texts) > 1 or len(still_open) > 1 else 0
        for place, _ in closing[: max(0, len(still_open) - kept)]:
            self._update_question(place, closed_at=at)
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
