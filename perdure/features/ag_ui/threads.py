"""A thread of AG-UI as a chat: what a page posts as requests and answers, and each stretch as events.

A stretch that is not the first of a message begins with a snapshot of the thread, so nothing depends on what the page
has heard before.
"""

import json
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client

from perdure.client.course.moves import AnswerTaken, CallChanged, Move, QuestionEnded, TextClosed
from perdure.client.course.stretch import Stretch
from perdure.client.run_list import RunInfo, find_run
from perdure.contracts.conversation import Submitted, TurnEnd
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.decisions.errors import format_validation_error
from perdure.decisions.run.question import QUESTIONS
from perdure.features.ag_ui.contract import PersonMessage, PostedAnswer, ResumeEntry
from perdure.features.ag_ui.events import Event, StretchWriter
from perdure.features.ag_ui.settings import AG_UI
from perdure.gateway.chats import AskedMessage, Chat, SentMessage, read_asked, read_runs, without_call
from perdure.gateway.problems import ApiError

MAX_TURNS = 50  # that a snapshot has
_MEANT = {True: (Decision.approve, Decision.proceed), False: (Decision.deny, Decision.stop)}


@dataclass(frozen=True)
class Thread(Chat):
    """A thread as a client of AG-UI has it."""

    async def send(self, message: PersonMessage) -> Submitted:
        """Submit a person's message."""
        sent = SentMessage(message.id, message.text, tuple((file.url, None) for file in message.files))
        return await self.submit(sent, AG_UI.of(self.gateway.session.settings.file).agent, "ag_ui")

    async def resume(self, entries: Sequence[ResumeEntry]) -> str:
        """Answer the questions of interrupts that are still open, and return their run."""
        run_id = entries[0].run_id
        if any(entry.run_id != run_id for entry in entries):
            raise ApiError(422, "the answers are for interrupts of several runs", field="resume")
        await self.require_turn(run_id)
        open_ones = await self.open_questions(run_id)
        found = [(entry, open_ones.get(without_call(entry.interrupt_id))) for entry in entries]
        answers = [
            (entry.interrupt_id, question, read_answer(question, entry.payload))
            for entry, question in found
            if question is not None and entry.status == "resolved"
        ]
        for answer in answers:
            await self.answer(run_id, *answer)
        return run_id

    async def find_latest(self) -> str | None:
        """Return the run of the turn that runs, or is next, or was the last one; None: there is none."""
        if running := await self.find_running():
            return running
        runs, _ = await self.turns(1)
        return runs[-1].run_id if runs else None

    async def reply(
        self, stretch: str, run_id: str | None, *, is_new: bool = False, before: int = 0, resumed: Collection[str] = ()
    ) -> AsyncGenerator[Event]:
        """Yield the events of a run up to its end, or its next question: from its beginning, or after a snapshot.

        Without a run there is nothing to show, and no message of the page is dropped.
        `before` is the number of messages that come first. `resumed` are questions whose answers are shown again.
        """
        client, workspaces = self.gateway.session.client, self.gateway.session.settings.workspaces
        writer = StretchWriter(run_id or "", self.id, stretch)
        yield writer.begin()
        if run_id is None:
            yield writer.finish({"type": "success"})
            return
        if before:
            yield writer.remark("queued", f"{before} before this message")
        if not await self.has_begun(run_id):
            yield writer.finish({"type": "cancelled"}, status=TurnEnd.dropped)
            return
        past, rest = await Stretch(client, run_id, workspaces).split()
        async with aclosing(rest):
            shown = [event for move in past for event in writer.write(move) if is_new or _about(move) in resumed]
            for event in shown if is_new else [await self._snapshot(writer), *writer.go_on(), *shown]:
                yield event
            async for move in rest:
                for event in writer.write(move):
                    yield event
                if isinstance(move, CallChanged) or (isinstance(move, TextClosed) and move.is_void):
                    yield await self._snapshot(writer)

    async def _snapshot(self, writer: StretchWriter) -> Event:
        """Return the messages of the latest turns, with those of the run that is followed as far as it is written."""
        client = self.gateway.session.client
        runs, waiting = await self.turns(MAX_TURNS)
        if all(run.run_id != writer.run_id for run in runs):
            runs = sorted([await find_run(client, writer.run_id), *runs], key=lambda run: run.execution.start_time)

        async def read(run: RunInfo) -> list[Event]:
            asked = await read_asked(client, run)
            is_followed = run.run_id == writer.run_id
            said = writer.messages if is_followed else await _read_reply(client, run.run_id)
            return [*([_asked_as_message(asked)] if asked else []), *said]

        messages = [message for turn in await read_runs(runs, read) for message in turn]
        messages += [{"id": turn.request_id, "role": "user", "content": turn.asked} for turn in waiting]
        return {"type": "MESSAGES_SNAPSHOT", "messages": messages}


async def _read_reply(client: Client, run_id: str) -> list[Event]:
    writer = StretchWriter(run_id)
    async with aclosing(Stretch(client, run_id).so_far()) as moves:
        async for move in moves:
            for _ in writer.write(move):
                pass
    return writer.messages


def _asked_as_message(asked: AskedMessage) -> Event:
    if not asked.files:
        return {"id": asked.id, "role": "user", "content": asked.text}
    files = [
        {
            "type": "image" if kind.startswith("image/") else "document",
            "source": {"type": "url", "value": url, "mimeType": kind},
        }
        for _, kind, url in asked.files
    ]
    return {"id": asked.id, "role": "user", "content": [{"type": "text", "text": asked.text}, *files]}


def _about(move: Move) -> str:
    """Return the question whose answer or end a move is."""
    match move:
        case AnswerTaken(name) | QuestionEnded(QuestionView(id=name)):
            return name
        case _:
            return ""


def read_answer(question: QuestionView, payload: Any) -> HumanInput:
    """Read the payload of an answer to a question. Raises ApiError 422."""
    try:
        if payload is NO_RESULT:
            raise ApiError(422, f"the answer to {question.id} has no payload", field="resume")
        if isinstance(payload, dict) and question.form is None:
            given = PostedAnswer.model_validate(payload)
            if given.approved is not None and given.decision is not None:
                raise ApiError(422, f"the answer to {question.id}: give either approved or decision", field="resume")
            decision = given.decision if given.approved is None else _decide(question, meant=given.approved)
            return HumanInput(decision=decision, arguments=given.edited, text=given.text)
        decisions = QUESTIONS[question.kind].decisions
        if isinstance(payload, bool) and decisions:
            return HumanInput(decision=_decide(question, meant=payload))
        if isinstance(payload, str) and payload in decisions:
            return HumanInput(decision=Decision(payload))
        return HumanInput(text=payload if isinstance(payload, str) else json.dumps(payload))
    except ValidationError as error:
        raise ApiError(422, f"the answer to {question.id}: {format_validation_error(error)}", field="resume") from None


def _decide(question: QuestionView, *, meant: bool) -> Decision:
    """Return the decision that `true` or `false` is. Raises ApiError 422 if the question knows neither."""
    decisions = QUESTIONS[question.kind].decisions
    found = next((decision for decision in _MEANT[meant] if decision in decisions), None)
    if found is None:
        listed = ", ".join(decisions)
        raise ApiError(422, f"the answer to {question.id} is one of: {listed}", field="resume")
    return found
