"""A chat of the AI SDK: what a page posts as requests and answers, and each reply as parts."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from perdure.client.course.moves import AnswerTaken, PeopleAsked, QuestionEnded
from perdure.client.course.stretch import Stretch
from perdure.client.run_list import RunInfo
from perdure.contracts.conversation import Submitted, TurnEnd
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.features.web_ui.contract import LastMessage
from perdure.features.web_ui.messages import to_message
from perdure.features.web_ui.parts import Part, PartWriter, notice
from perdure.features.web_ui.settings import WEB_UI
from perdure.gateway.auth import Gateway
from perdure.gateway.chats import AskedMessage, Chat, SentMessage, read_asked, read_runs, shown_id, without_call
from perdure.gateway.problems import ApiError


@dataclass(frozen=True)
class UiChat(Chat):
    """A chat as the AI SDK's client has it."""

    async def send(self, message: LastMessage) -> Submitted:
        """Submit a person's message."""
        files = tuple((part.url, part.filename) for part in message.files)
        agent = WEB_UI.of(self.gateway.session.settings.file).agent
        return await self.submit(SentMessage(message.id, message.text, files), agent, "web_ui")

    async def decide(self, message: LastMessage) -> None:
        """Answer the approvals of a message. Those of questions that are not open any more have no effect."""
        await self.require_turn(message.id)
        for approval in message.decisions:
            if not approval.id.startswith(f"{message.id}/"):
                raise ApiError(422, "the message has an approval of another run", field="messages")
        open_ones = await self.open_questions(message.id)
        for approval in message.decisions:
            question = open_ones.get(without_call(approval.id))
            if question and question.call:
                decision = Decision.approve if approval.approved else Decision.deny
                reason = None if approval.approved else approval.reason
                await self.answer(message.id, approval.id, question, HumanInput(decision=decision, text=reason))

    async def reply(self, run_id: str, before: int = 0, seen: str = "") -> AsyncGenerator[Part]:
        """Yield the parts of a reply: from its beginning, or after the wait that showed the approval `seen`.

        `before` is the number of messages that come first.
        """
        client, settings = self.gateway.session.client, self.gateway.session.settings
        writer = PartWriter(run_id, WEB_UI.of(settings.file).version)
        yield writer.begin()
        if before:
            yield notice("queued", f"{before} before this message")
        if not await self.has_begun(run_id):
            yield {"type": "finish", "finishReason": "other", "messageMetadata": {"status": TurnEnd.dropped}}
            return
        is_new = not seen
        async with aclosing(Stretch(client, run_id, settings.workspaces).follow()) as moves:
            async for move in moves:
                parts = [*writer.write(move)]
                for part in parts if is_new or (parts[-1:] and parts[-1]["type"] in ("finish", "error")) else ():
                    yield part
                match move:
                    case PeopleAsked(questions) if not is_new:
                        is_new = seen in (shown_id(run_id, question) for question in questions)
                    case AnswerTaken(question) | QuestionEnded(QuestionView(id=question)) if not is_new:
                        is_new = seen.startswith(f"{run_id}/{question}/")

    async def read(self, limit: int) -> list[Part]:
        """Return the messages of the latest turns, oldest first."""
        runs, waiting = await self.turns(limit)
        messages = await read_messages(self.gateway, runs)
        for turn in waiting:
            messages.append({"id": turn.request_id, "role": "user", "parts": [{"type": "text", "text": turn.asked}]})
        return messages


async def read_messages(gateway: Gateway, runs: list[RunInfo]) -> list[Part]:
    """Return what a person said and what each run replied, so far."""
    client, version = gateway.session.client, WEB_UI.of(gateway.session.settings.file).version

    async def read(run: RunInfo) -> list[Part]:
        asked = await read_asked(client, run)
        writer = PartWriter(run.run_id, version)
        parts = [writer.begin()]
        async with aclosing(Stretch(client, run.run_id).so_far()) as moves:
            async for move in moves:
                parts += writer.write(move)
        return [*([_asked_as_message(asked)] if asked else []), to_message(parts)]

    return [message for turn in await read_runs(runs, read) for message in turn]


def _asked_as_message(asked: AskedMessage) -> Part:
    files = [{"type": "file", "mediaType": kind, "filename": name, "url": url} for name, kind, url in asked.files]
    return {"id": asked.id, "role": "user", "parts": [{"type": "text", "text": asked.text}, *files]}
