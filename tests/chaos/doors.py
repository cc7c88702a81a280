"""Gateways that may be killed, and the people who answer through them and at the terminal."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import httpx

from perdure.gateway.tokens import Scope, new_token, read_tokens
from tests.chaos.environment import PATIENCE, Environment, Workers, until
from tests.ports import free_port

PEOPLE = ("ann", "bob")
PAUSE = 0.05  # seconds between two looks
Questions = list[dict[str, Any]]

T = TypeVar("T")


@dataclass
class Sent:
    """An answer that a person sent. `accepted`: the entry point said so; None: its reply was lost."""

    run: str
    question: str
    number: int  # of the call that it is about
    person: str
    decision: str
    door: str = "gateway"
    arguments: Mapping[str, Any] | None = None
    began: float = field(default_factory=time.monotonic)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    accepted: bool | None = None
    status: int | None = None
    reason: str = ""


@dataclass
class Door:
    """A gateway at one address, whichever process is behind it now."""

    it: Environment
    port: int
    http: httpx.AsyncClient
    tokens: Mapping[str, str]
    gateways: Workers = field(init=False)

    def __post_init__(self) -> None:
        self.gateways = Workers(self.it, lambda _: self.it.project.gateway(self.port))
        self.gateways.add()

    async def get(self, path: str) -> Any:
        """The JSON of a page, once a gateway gives it."""

        async def ask() -> Any:
            answer = await self._send("GET", path, "ann")
            return answer.json() if answer is not None and answer.status_code == 200 else None

        return await _until_given(ask)

    async def questions_of(self, run: str) -> Questions:
        """The open questions of a run, as its own state has them."""

        async def ask() -> Questions | None:
            found = await self.get(f"/v1/runs/{run}")
            if found["state"] is None:  # no worker answers
                return [] if found["known"]["closed_at"] else None
            questions: Questions = found["state"]["questions"]
            return questions

        return await _until_given(ask)

    async def answer(self, sent: Sent, call: str | None) -> Sent:
        """Sends it once, and notes what came of it."""
        body = {"question_id": sent.question, "call": call, "decision": sent.decision, "arguments": sent.arguments}
        answer = await self._send("POST", f"/v1/runs/{sent.run}/answer", sent.person, body)
        if answer is not None:
            sent.status = answer.status_code
            sent.accepted = None if sent.status >= 500 else sent.status == 200
            sent.reason = "" if sent.accepted else answer.json()["detail"]
        return sent

    async def _send(self, method: str, path: str, person: str, body: Any = None) -> httpx.Response | None:
        """None: the gateway is away, or died."""
        headers = {"Authorization": f"Bearer {self.tokens[person]}"}
        try:
            return await self.http.request(method, f"http://127.0.0.1:{self.port}{path}", json=body, headers=headers)
        except httpx.TransportError:
            return None


async def _until_given(ask: Callable[[], Awaitable[T | None]]) -> T:
    async with asyncio.timeout(PATIENCE):
        while (value := await ask()) is None:  # noqa: ASYNC110 - another process starts
            await asyncio.sleep(PAUSE)
        return value


@asynccontextmanager
async def people(it: Environment) -> AsyncIterator[Callable[[], Door]]:
    """Tokens for each person; what is given opens a door."""
    tokens = make_tokens(it)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=httpx.Limits(max_connections=None)) as http:
        yield lambda: Door(it, free_port(), http, tokens)


def make_tokens(it: Environment) -> dict[str, str]:
    """A token that reads and answers, for each person."""
    stored, written = read_tokens(it.project.settings.home, {}), {}
    for person in PEOPLE:
        written[person], token = new_token(person, (Scope.read, Scope.answer), None)
        stored.add(token)
    return written


@dataclass
class Terminal:
    """A person who approves with `perdure approve RUN --all`."""

    it: Environment
    process: BaseProcess | None = None

    async def approve_all(self, run: str, person: str) -> bool:
        """Return True if the command says that it approved all calls that waited."""
        self.process = process = self.it.project.command("approve", run, "--all", "--by", person)
        self.it.processes.append(process)
        await until(lambda: not process.is_alive())
        return process.exitcode == 0

    async def kill(self) -> None:
        if self.process is not None and self.process.is_alive():
            self.process.kill()
            await asyncio.to_thread(self.process.join)
            self.it.fault()


def question_about(questions: Questions, number: int) -> dict[str, Any] | None:
    """The open question about the call of this number."""
    return next((question for question in questions if (question.get("arguments") or {}).get("n") == number), None)
