"""Chats of front ends: a chat is a conversation of its caller, each message of a person a request, each reply a run.

The person's message id is the request's, so a repeat begins nothing. A question is known by an id that names the exact
call of one question, so an answer is for no other one, and counts once.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, unquote_to_bytes

from pydantic import ValidationError
from temporalio.client import Client

from perdure.activities.media.check import MediaError
from perdure.activities.media.store import put_upload
from perdure.client.errors import AnswerRejectedError, RejectedError, RunNotFoundError
from perdure.client.lanes import wait_for_turn_start
from perdure.client.run_list import RunFilter, RunInfo, find_run, list_page, read_start
from perdure.client.runs import query_run_state
from perdure.contracts.conversation import SubmitRequest, Submitted, TurnEnd, WaitingView
from perdure.contracts.media import Attachment
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.decisions import ids
from perdure.gateway.auth import Caller, Gateway
from perdure.gateway.problems import RETRY_SOON, ApiError

T = TypeVar("T")

MAX_READ = 4  # runs that one request reads at a time
_UPLOADED = re.compile(r"/v1/files/([0-9a-f]{64})")
_NO_TURN = (TurnEnd.steered, TurnEnd.answered, TurnEnd.dropped)


def shown_id(run_id: str, question: QuestionView) -> str:
    """Return the id of a question as a page shows it: the exact call of one question of one run."""
    return f"{run_id}/{question.id}/{question.call or ''}"


def without_call(shown: str) -> str:
    """Return the start of a question's id, which stays if a person changes its call."""
    return shown.rpartition("/")[0]


@dataclass(frozen=True)
class SentMessage:
    """A message of a person. `files` are pairs of an address, data or `/v1/files/SHA256`, and a name."""

    id: str
    text: str
    files: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class AskedMessage:
    """The message that a run began with. `files` are triples of a name, a media type, and the address of the file."""

    id: str
    text: str
    files: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Chat:
    """A chat of a caller at a gateway. Its methods raise ApiError, and the errors of the client."""

    gateway: Gateway
    caller: Caller
    id: str

    @property
    def conversation(self) -> str:
        return ids.chat_conversation_id(self.caller.name, self.id)

    async def submit(self, message: SentMessage, agent: str | None, client: str) -> Submitted:
        """Submit a person's message. The same message again is the same turn; with other content it is refused."""
        files = [await _attach(self.gateway, url, name or "file") for url, name in message.files]
        try:
            request = SubmitRequest(
                request_id=message.id, goal=message.text, agent=agent, attachments=tuple(files), request_client=client
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise ApiError(
                422, f"the message: {first['msg'].removeprefix('Value error, ')}", field="messages"
            ) from None
        submitted = await self.gateway.perdure.conversation(self.conversation).submit(request)
        self.gateway.lists.clear()
        return submitted

    async def has_begun(self, run_id: str) -> bool:
        """Wait for a turn to begin; return False if it was dropped."""
        gateway = self.gateway
        return await wait_for_turn_start(gateway.session.client, self.conversation, run_id, gateway.queries)

    async def require_turn(self, run_id: str) -> None:
        """Raise ApiError 404 if the run is no turn of this chat: its lane is its parent, which no start can claim."""
        with suppress(RunNotFoundError, RejectedError):
            if is_turn(await find_run(self.gateway.session.client, run_id), self.conversation):
                return
        raise ApiError(404, "this chat has no such message")

    async def open_questions(self, run_id: str) -> dict[str, QuestionView]:
        """Return the open questions of a turn, by their ids without the call."""
        view = await query_run_state(self.gateway.session.client, run_id)
        if view is None:
            if (await find_run(self.gateway.session.client, run_id)).is_open:
                raise ApiError(503, "no worker answers for this run now", headers=RETRY_SOON)
            return {}
        return {without_call(shown_id(run_id, question)): question for question in view.questions}

    async def answer(self, run_id: str, shown: str, question: QuestionView, given: HumanInput) -> None:
        """Answer with the digest of our state, which must be that of the call that the page showed as `shown`."""
        if shown != shown_id(run_id, question):
            raise ApiError(409, "the call was changed since it was shown: load the chat again")
        answer = given.evolve(question_id=question.id, call=question.call, by=self.caller.name)
        try:
            await self.gateway.perdure.get_run(run_id).send_answer(answer)
        except AnswerRejectedError:  # also if another one was quicker, which is no fault
            if without_call(shown) in await self.open_questions(run_id):
                raise
        self.gateway.lists.clear()

    async def find_running(self) -> str | None:
        """Return the run of the turn that runs, or is next; None: nothing runs."""
        try:
            view = await self.gateway.perdure.conversation(self.conversation).state(self.gateway.queries)
        except RunNotFoundError:
            return None
        if view is None:
            raise ApiError(503, "no worker answers for this chat now", headers=RETRY_SOON)
        return next((turn.run_id for turn in (view.active, *view.waiting) if turn), None)

    async def turns(self, limit: int) -> tuple[list[RunInfo], tuple[WaitingView, ...]]:
        """Return the latest turns, oldest first, and the requests that wait.

        The server lists a run some time after its start, and the lane knows it at once.
        """
        try:
            lane = await self.gateway.perdure.conversation(self.conversation).state(self.gateway.queries)
        except RunNotFoundError:
            return [], ()
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
        return [*runs.values()][-limit:], lane.waiting if lane else ()


def is_turn(run: RunInfo, conversation: str) -> bool:
    return run.execution.parent_id == ids.conversation_workflow_id(conversation)


async def read_runs(runs: Iterable[RunInfo], read: Callable[[RunInfo], Awaitable[list[T]]]) -> list[list[T]]:
    """Return what `read` returns for each run, a few of them at a time."""
    slots = asyncio.Semaphore(MAX_READ)

    async def read_one(run: RunInfo) -> list[T]:
        async with slots:
            return await read(run)

    return await asyncio.gather(*map(read_one, runs))


async def read_asked(client: Client, run: RunInfo) -> AskedMessage | None:
    """Return the message of a run's start; one that goes on from another run has none."""
    start, _ = await read_start(client, run)
    payload = start.get("payload", {}) if isinstance(start, dict) else {}
    if "goal" not in payload:
        return None
    files = []
    for file in payload.get("attachments", ()):
        if digest := file.get("sha256"):
            kind = file.get("media_type") or "application/octet-stream"
            files.append((file["name"], kind, file_address(run.run_id, f"media/{digest}")))
    named = (start.get("headers") or {}).get("request_id") or f"{run.run_id}/goal"
    return AskedMessage(named, payload["goal"], tuple(files))


def file_address(run_id: str, path: str) -> str:
    """Return the address of a run's file at the gateway, which needs the token, too."""
    return f"/v1/runs/{quote(run_id, safe='')}/{quote(path)}"


async def _attach(gateway: Gateway, url: str, name: str) -> Attachment:
    """Return a file of a message: one that was uploaded, or one that a data URL holds."""
    if uploaded := _UPLOADED.fullmatch(url):
        return Attachment(name=name, sha256=uploaded[1])
    head, _, body = url.partition(",")
    if not head.startswith("data:"):
        raise ApiError(422, "a file is a data URL, or /v1/files/SHA256 of an uploaded one", field="messages")
    try:
        is_base64 = head.endswith(";base64")
        data = base64.b64decode(body, validate=True) if is_base64 else unquote_to_bytes(body)
        media = await put_upload(gateway.session.settings.stores, data, name)
    except (binascii.Error, MediaError) as error:
        raise ApiError(422, f"the file: {error}", field="messages") from None
    return Attachment(name=name, media_type=media.media_type, sha256=media.sha256)
