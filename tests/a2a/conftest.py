"""A project with the door for agents elsewhere: a gateway as a process, a worker, a scripted model, its client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
)

from perdure.testkit.model_server import ScriptedAnswer, calls, fails, says, slow
from tests.e2e.conftest import make_project, site
from tests.e2e.projects import MakeProject
from tests.gateway.conftest import Gateway, Gateways, serve_gateways

__all__ = ["make_project", "site"]  # fixtures

Json = dict[str, Any]
PROJECT = """
[features]
use = ["a2a"]

[tools.pay]
kind = "python"
target = "desk:pay"
effect = "once"
approval = "always"
"""
PUSH = '\n[push]\nsecret_env = "PUSH_SECRET"\nallow_hosts = ["127.0.0.1"]\n'
SECRET = "whsec_" + "c2lnbmVkIGJ5IHRoZSB0ZXN0cw=="
OLD = "\n[a2a]\ncompat_0_3 = true\n"
AGENT = """---
name: default
description: Answers and pays.
tools: [pay]
---
You are tested.
"""
CLERK = """---
name: clerk
tools: [pay]
input_schema: {type: object, properties: {sheet: {type: integer}}, required: [sheet]}
output_schema: {type: object, properties: {total: {type: integer}}}
---
You count.
"""
DESK = """
from pathlib import Path

def pay(amount: int) -> dict:
    '''Pay.'''
    with open(Path(__file__).parent / "paid.txt", "a") as file:
        file.write(f"{amount}\\n")
    return {"paid": amount}
"""
CALLS: dict[str, tuple[tuple[str, Json], ...]] = {
    "pay": (("pay", {"amount": 42}),),
    "ask": (("ask_human", {"question": "Red or blue?", "options": ["red", "blue"]}),),
    "twice": (("ask_human", {"question": "Red or blue?"}),),
    "both": (("ask_human", {"question": "Who?"}), ("ask_human", {"question": "When?"})),
    "count": (("finish", {"outcome": "three", "result": {"total": 3}}),),
    "write": (("write_file", {"path": "artifacts/note.txt", "content": "hi"}),),
}


def replies(body: Json) -> ScriptedAnswer:
    """By the word after GOAL, such as `pay` or `ask`; after a call it says what came."""
    texts = [(at, str(m["content"])) for at, m in enumerate(body["messages"]) if m["role"] == "user"]
    at, said = next((at, said) for at, said in reversed(texts) if "GOAL " in said)
    turn = sum(m["role"] == "assistant" for m in body["messages"][at:])
    for word, uses in CALLS.items():
        if f"GOAL {word}" in said and turn < (2 if word == "twice" else 1):
            return calls(*uses, text=f"I will {word}.")
    if "GOAL long" in said:
        return slow(says("After a long while."), 60)
    if "GOAL slow" in said:
        return slow(says("After a while."), 8)
    if "GOAL fail" in said:
        return fails(400, message="this goal is too strange")
    if "GOAL recall" in said:
        return says(f"You have said {sum('GOAL ' in text for _, text in texts)} things.")
    last = body["messages"][-1]["content"]
    content = next((b["content"] for b in last if b.get("type") == "tool_result"), "") if isinstance(last, list) else ""
    return says(f"Done: {content}." if content else "Hello, it is done.")


def message(text: str, id: str = "", task: str = "", context: str = "", **metadata: str) -> Message:  # noqa: A002
    return Message(
        message_id=id or uuid4().hex,
        task_id=task,
        context_id=context,
        role=Role.ROLE_USER,
        parts=[Part(text=text)],
        metadata=metadata or None,
    )


def state_of(status: TaskStatus) -> str:
    return TaskState.Name(status.state).removeprefix("TASK_STATE_")


def text_of(status: TaskStatus) -> str:
    return "\n".join(part.text for part in status.message.parts)


def shown(event: StreamResponse) -> str:
    """An event in a word: `task WORKING`, `COMPLETED` or `artifact`."""
    match event.WhichOneof("payload"):
        case "task":
            return f"task {state_of(event.task.status)}"
        case "status_update":
            return state_of(event.status_update.status)
        case _:
            return "artifact"


@dataclass(frozen=True)
class Other:
    """The SDK's client of an agent elsewhere."""

    client: Client

    async def stream(self, sent: Message) -> list[StreamResponse]:
        return [event async for event in self.client.send_message(SendMessageRequest(message=sent))]

    async def send(self, sent: Message, *, waits: bool = True) -> Task:
        """Send without a stream; by default until the task waits or ends."""
        settings = SendMessageConfiguration(return_immediately=not waits)
        events = [e async for e in self.client.send_message(SendMessageRequest(message=sent, configuration=settings))]
        [event] = events
        return event.task

    async def get(self, task_id: str) -> Task:
        return await self.client.get_task(GetTaskRequest(id=task_id))

    async def cancel(self, task_id: str) -> Task:
        return await self.client.cancel_task(CancelTaskRequest(id=task_id))

    async def list(self, **only: Any) -> ListTasksResponse:
        return await self.client.list_tasks(ListTasksRequest(**only))

    def subscribe(self, task_id: str) -> AsyncIterator[StreamResponse]:
        return self.client.subscribe(SubscribeToTaskRequest(id=task_id))


@asynccontextmanager
async def talking(
    gateway: Gateway, token: str = "", agent: str = "default", *, streaming: bool = True
) -> AsyncIterator[Other]:
    headers = {"Authorization": f"Bearer {token or gateway.token}"}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        settings = ClientConfig(streaming=streaming, httpx_client=http)
        client = await create_client(f"{gateway.url}/a2a/{agent}", client_config=settings)
        yield Other(client)


@pytest.fixture(scope="session")
async def a2a_gateways(make_project: MakeProject) -> AsyncIterator[Gateways]:
    files = {"perdure.toml": PROJECT + PUSH, "still.toml": PROJECT, "old.toml": PROJECT + OLD, "desk.py": DESK}
    files |= {"agents/default.md": AGENT, "agents/clerk.md": CLERK}
    async with serve_gateways(make_project, replies, files, PUSH_SECRET=SECRET) as opened:
        yield opened


@pytest.fixture(scope="session")
async def a2a_gateway(a2a_gateways: Gateways) -> AsyncIterator[Gateway]:
    """Without push notifications."""
    with a2a_gateways.open(PERDURE_CONFIG="still.toml") as opened:
        yield opened


@pytest.fixture(scope="session")
async def push_gateway(a2a_gateways: Gateways) -> AsyncIterator[Gateway]:
    with a2a_gateways.open() as opened:
        yield opened


@pytest.fixture
async def other(a2a_gateway: Gateway) -> AsyncIterator[Other]:
    async with talking(a2a_gateway) as opened:
        yield opened


@pytest.fixture
async def blocking(a2a_gateway: Gateway) -> AsyncIterator[Other]:
    async with talking(a2a_gateway, streaming=False) as opened:
        yield opened


def paid(gateway: Gateway) -> int:
    path = Path(gateway.project.folder) / "paid.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0
