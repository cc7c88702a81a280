"""A chat is a conversation of its caller: each message of a person is a request, each reply the run of its turn.

The person's message id is the request's, so a repeat begins nothing. An approval names the exact call of one question,
so it decides no other one, and decides it once.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from pydantic import ValidationError

from perdure.activities.media.check import MediaError
from perdure.activities.media.store import put_upload
from perdure.client.course.moves import AnswerTaken, PeopleAsked, QuestionEnded
from perdure.client.course.stretch import Stretch
from perdure.client.errors import AnswerRejectedError, RejectedError, RunNotFoundError
from perdure.client.lanes import wait_for_turn_start
from perdure.client.run_list import RunFilter, RunInfo, find_run, list_page, read_start
from perdure.client.runs import query_run_state
from perdure.contracts.conversation import LaneView, SubmitRequest, Submitted, TurnEnd
from perdure.contracts.media import Attachment
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.decisions import ids
from perdure.features.web_ui.contract import LastMessage, PostedApproval, PostedPart
from perdure.features.web_ui.messages import to_message
from perdure.features.web_ui.parts import Part, PartWriter, approval_id, notice
from perdure.features.web_ui.settings import WEB_UI
from perdure.gateway.auth import Caller, Gateway
from perdure.gateway.problems import RETRY_SOON, ApiError

MAX_READ = 4  # runs that one request reads at a time
_UPLOADED = re.compile(r"/v1/files/([0-9a-f]{64})")
_NO_TURN = (TurnEnd.steered, TurnEnd.answered, TurnEnd.dropped)


@dataclass(frozen=True)
class Chat:
    """A chat of a caller at a gateway. Its methods raise ApiError, and the errors of the client."""

    gateway: Gateway
    caller: Caller
    id: str

    @property
    def conversation(self) -> str:
        return ids.chat_conversation_id(self.caller.name, self.id)

    async def send(self, message: LastMessage) -> Submitted:
        """Submit a person's message. The same message again is the same turn; with other content it is refused."""
        files = [await _attach(self.gateway, part) for part in message.files]
        agent = WEB_UI.of(self.gateway.session.settings.file).agent
        try:
            request = SubmitRequest(
                request_id=message.id, goal=message.text, agent=agent, attachments=tuple(files), request_client="web_ui"
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise ApiError(
                422, f"the message: {first['msg'].removeprefix('Value error, ')}", field="messages"
            ) from None
        submitted = await self.gateway.perdure.conversation(self.conversation).submit(request)
        self.gateway.lists.clear()
        return submitted

    async def decide(self, message: LastMessage) -> None:
        """Answer the approvals of a message. Those of questions that are not open any more have no effect."""
        await self._require_turn(message.id)
        for approval in message.decisions:
            if not approval.id.startswith(f"{message.id}/"):
                raise ApiError(422, "the message has an approval of another run", field="messages")
        open_ones = await self._open_approvals(message.id)
        for approval in message.decisions:
            if question := open_ones.get(approval.id.rpartition("/")[0]):
                await self._answer(message.id, question, approval)
        self.gateway.lists.clear()

    async def _require_turn(self, run_id: str) -> None:
        """Raise ApiError 404 if the run is no turn of this chat: its lane is its parent, which no start can claim."""
        with suppress(RunNotFoundError, RejectedError):
            if is_turn(await find_run(self.gateway.session.client, run_id), self.conversation):
                return
        raise ApiError(404, "this chat has no such message")

    async def _open_approvals(self, run_id: str) -> dict[str, QuestionView]:
        """Return the open questions about calls, by the id of the approval without the call."""
        view = await query_run_state(self.gateway.session.client, run_id)
        if view is None:
            if (await find_run(self.gateway.session.client, run_id)).is_open:
                raise ApiError(503, "no worker answers for this run now", headers=RETRY_SOON)
            return {}
        asked = (question for question in view.questions if question.call)
        return {approval_id(run_id, question).rpartition("/")[0]: question for question in asked}

    async def _answer(self, run_id: str, question: QuestionView, approval: PostedApproval) -> None:
        """Answer with the digest of our state, which must be that of the call that the page showed."""
        if approval.id != approval_id(run_id, question):
            raise ApiError(409, "the call was changed since it was shown: load the chat again")
        answer = HumanInput(
            question_id=question.id,
            call=question.call,
            decision=Decision.approve if approval.approved else Decision.deny,
            text=approval.reason if not approval.approved else None,
            by=self.caller.name,
        )
        try:
            await self.gateway.perdure.get_run(run_id).send_answer(answer)
        except AnswerRejectedError:  # also if another one was quicker, which is no fault
            if approval.id.rpartition("/")[0] in await self._open_approvals(run_id):
                raise

    async def find_running(self) -> str | None:
        """Return the run of the turn that runs, or is next; None: nothing runs."""
        try:
            view = await self.gateway.perdure.conversation(self.conversation).state(self.gateway.queries)
        except RunNotFoundError:
            return None
        if view is None:
            raise ApiError(503, "no worker answers for this chat now", headers=RETRY_SOON)
        return next((turn.run_id for turn in (view.active, *view.waiting) if turn), None)

    async def reply(self, run_id: str, before: int = 0, seen: str = "") -> AsyncGenerator[Part]:
        """Yield the parts of a reply: from its beginning, or after the wait that showed the approval `seen`.

        `before` is the number of messages that come first.
        """
        gateway = self.gateway
        client, settings = gateway.session.client, gateway.session.settings
        writer = PartWriter(run_id, WEB_UI.of(settings.file).version)
        yield writer.begin()
        if before:
            yield notice("queued", f"{before} before this message")
        if not await wait_for_turn_start(client, self.conversation, run_id, gateway.queries):
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
                        is_new = seen in (approval_id(run_id, question) for question in questions)
                    case AnswerTaken(question) | QuestionEnded(QuestionView(id=question)) if not is_new:
                        is_new = seen.startswith(f"{run_id}/{question}/")

    async def read(self, limit: int) -> list[Part]:
        """Return the messages of the latest turns, oldest first."""
        try:
            lane = await self.gateway.perdure.conversation(self.conversation).state(self.gateway.queries)
        except RunNotFoundError:
            return []
        runs = await self._turns(lane, limit)
        messages = await read_messages(self.gateway, runs)
        for turn in lane.waiting if lane else ():
            messages.append({"id": turn.request_id, "role": "user", "parts": [{"type": "text", "text": turn.asked}]})
        return messages

    async def _turns(self, lane: LaneView | None, limit: int) -> list[RunInfo]:
        """Return the latest turns. The server lists a run some time after its start, and the lane knows it at once."""
        client, only = self.gateway.session.client, RunFilter(conversation=self.conversation)
        listed = await self.gateway.lists.read(
            ("chat", self.conversation, limit), lambda: list_page(client, only, limit=limit)
        )
        runs = {run.run_id: run for run in reversed(listed.runs) if is_turn(run, self.conversation)}
        latest = [turn.run_id for turn in lane.recent if turn.end not in _NO_TURN] if lane else []
        latest += [lane.active.run_id] if lane and lane.active else []
        for run_id in latest[-limit:]:
            if run_id not in runs:
                with suppress(RunNotFoundError):
                    runs[run_id] = await find_run(client, run_id)
        return [*runs.values()][-limit:]


def is_turn(run: RunInfo, conversation: str) -> bool:
    return run.execution.parent_id == ids.conversation_workflow_id(conversation)


async def read_messages(gateway: Gateway, runs: list[RunInfo]) -> list[Part]:
    """Return what a person said and what each run replied, so far."""
    slots = asyncio.Semaphore(MAX_READ)

    async def read(run: RunInfo) -> list[Part]:
        async with slots:
            return await _read_turn(gateway, run)

    return [message for turn in await asyncio.gather(*map(read, runs)) for message in turn]


async def _read_turn(gateway: Gateway, run: RunInfo) -> list[Part]:
    client, settings = gateway.session.client, gateway.session.settings
    start, _ = await read_start(client, run)
    writer = PartWriter(run.run_id, WEB_UI.of(settings.file).version)
    parts = [writer.begin()]
    async with aclosing(Stretch(client, run.run_id).so_far()) as moves:
        async for move in moves:
            parts += writer.write(move)
    return [*_asked_in(run.run_id, start), to_message(parts)]


def _asked_in(run_id: str, start: Any) -> list[Part]:
    """Return the message of a run's start; one that goes on from another run has none."""
    payload = start.get("payload", {}) if isinstance(start, dict) else {}
    if "goal" not in payload:
        return []
    parts: list[Part] = [{"type": "text", "text": payload["goal"]}]
    for file in payload.get("attachments", ()):
        if digest := file.get("sha256"):
            url = f"/v1/runs/{quote(run_id, safe='')}/media/{digest}"
            kind = file.get("media_type") or "application/octet-stream"
            parts.append({"type": "file", "mediaType": kind, "filename": file["name"], "url": url})
    named = (start.get("headers") or {}).get("request_id") or f"{run_id}/goal"
    return [{"id": named, "role": "user", "parts": parts}]


async def _attach(gateway: Gateway, part: PostedPart) -> Attachment:
    """Return a file of a message: one that was uploaded, or one that a data URL holds."""
    name = part.filename or "file"
    if uploaded := _UPLOADED.fullmatch(part.url):
        return Attachment(name=name, sha256=uploaded[1])
    head, _, body = part.url.partition(",")
    if not head.startswith("data:"):
        raise ApiError(422, "a file is a data URL, or /v1/files/SHA256 of an uploaded one", field="messages")
    try:
        is_base64 = head.endswith(";base64")
        data = base64.b64decode(body, validate=True) if is_base64 else unquote_to_bytes(body)
        media = await put_upload(gateway.session.settings.stores, data, name)
    except (binascii.Error, MediaError) as error:
        raise ApiError(422, f"the file: {error}", field="messages") from None
    return Attachment(name=name, media_type=media.media_type, sha256=media.sha256)
