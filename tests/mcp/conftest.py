"""A project with the MCP server at its gateway: gateways as processes, a worker, a scripted model, and MCP clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal
from uuid import uuid4

import httpx2
import pytest
from mcp import Client
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, Request, RequestParams, Result
from pydantic import ConfigDict

from perdure.testkit.model_server import ScriptedAnswer, calls, fails, says, slow
from tests.e2e.conftest import make_project, site
from tests.e2e.projects import MakeProject, turn_of
from tests.gateway.conftest import Gateway, Gateways, make_token, serve_gateways
from tests.waiting import until

__all__ = ["make_project", "site"]  # fixtures

Json = dict[str, Any]
TASKS = "io.modelcontextprotocol/tasks"
KEY = "perdure/idempotency-key"
HERE = Path(__file__).parent
PUBLIC = "https://agents.example"
PROJECT = f"""
[features]
use = ["mcp_http"]

[gateway]
public_url = "{PUBLIC}"

[tools.pay]
kind = "python"
target = "desk:pay"
effect = "once"
approval = "always"

[[budget]]
name = "starts"
agent = "thrifty"
runs = 1
every = "month"
when_used_up = "ask"
"""
AGENT = "---\nname: default\ndescription: Tests.\ntools: [pay]\n---\nYou are tested.\n"
THRIFTY = "---\nname: thrifty\ndescription: Has a budget.\ntools: []\n---\nYou are tested.\n"
DESK = """
from pathlib import Path

def pay(amount: int) -> dict:
    '''Pay.'''
    with open(Path(__file__).parent / "paid.txt", "a") as file:
        file.write(f"{amount}\\n")
    return {"paid": amount}
"""


def replies(body: Json) -> ScriptedAnswer:
    """By the word after GOAL; after a call it says what came."""
    goal = next(str(m["content"]) for m in body["messages"] if "GOAL " in str(m["content"]))
    words: dict[str, ScriptedAnswer] = {
        "ask": calls(("ask_human", {"question": "Red or blue?", "options": ["red", "blue"]})),
        "pay": calls(("pay", {"amount": 42})),
        "give up": calls(("escalate", {"reason": "I cannot"})),
    }
    if "GOAL fail" in goal:
        return fails(400, message="this goal is too strange")
    if turn_of(body) == 0:
        for word, answer in words.items():
            if f"GOAL {word}" in goal:
                return answer
    last = body["messages"][-1]["content"]
    content = next((b["content"] for b in last if b.get("type") == "tool_result"), "") if isinstance(last, list) else ""
    done = says(f"Done: {content}." if content else "It is done.")
    return slow(done, 60) if "GOAL slow" in goal else done


class Made(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"]
    task_id: str


class Shown(Result):
    model_config = ConfigDict(extra="allow")


class TaskId(RequestParams):
    task_id: str


class Answers(TaskId):
    input_responses: dict[str, Any]


class Get(Request[TaskId, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskId


class Update(Request[Answers, Literal["tasks/update"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: Answers


class Cancel(Request[TaskId, Literal["tasks/cancel"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskId


class KnowsTasks(ClientExtension):
    identifier = TASKS

    def claims(self) -> list[ResultClaim[Any]]:
        async def never(*_: Any) -> Any:
            raise AssertionError("the tests poll themselves")

        return [ResultClaim(result_type="task", model=Made, resolve=never)]


async def never_asked(_: Any, __: ElicitRequestParams) -> ElicitResult:
    raise AssertionError("no request of a task comes by itself")


class TaskClient:
    """A client of the Python SDK that knows tasks, and shows forms and links to people."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def start(self, goal: str, key: str | None = None, **more: Any) -> Json:
        """The task of a start."""
        made = await self.call("start_run", {"goal": goal, **more}, key)
        assert isinstance(made, Made), made
        return plain(made)

    async def call(self, tool: str, arguments: Json, key: object = None) -> Any:
        meta: Any = None if key is None else {KEY: key}
        return await self.client.session.call_tool(
            tool, arguments, meta=meta, allow_claimed=True, allow_input_required=True
        )

    async def get(self, task: str) -> Json:
        return plain(await self.client.session.send_request(Get(params=TaskId(task_id=task)), Shown))

    async def update(self, task: str, **responses: Any) -> Json:
        params = Answers(task_id=task, input_responses=responses)
        return plain(await self.client.session.send_request(Update(params=params), Shown))

    async def cancel(self, task: str) -> Json:
        return plain(await self.client.session.send_request(Cancel(params=TaskId(task_id=task)), Shown))

    async def until(self, task: str, *statuses: str) -> Json:
        """The task once it has one of these states; by default it is over."""
        seen: list[Json] = []

        async def is_there() -> bool:
            seen.append(await self.get(task))
            return seen[-1]["status"] in (statuses or ("completed", "cancelled", "failed"))

        try:
            await until(is_there)
        except AssertionError:
            raise AssertionError(seen[-1]) from None
        return seen[-1]

    async def refused(self, method: str, task: str, **responses: Any) -> MCPError:
        """The error of a method, as one line."""
        act = {"get": self.get, "cancel": self.cancel}.get(method)
        with pytest.raises(MCPError) as refused:
            await (act(task) if act else self.update(task, **responses))
        assert "\n" not in refused.value.error.message
        return refused.value


def plain(model: Result) -> Json:
    shown: Json = model.model_dump(by_alias=True, mode="json")
    return shown


def accept(**content: Any) -> Json:
    return {"action": "accept", "content": content}


def said(result: CallToolResult) -> str:
    return " ".join(getattr(block, "text", "") for block in result.content)


@asynccontextmanager
async def mcp_client(gateway: Gateway, token: str = "", **options: Any) -> AsyncIterator[Client]:
    """Any client of the SDK, over HTTP with a token."""
    headers = {"Authorization": f"Bearer {token or gateway.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(f"{gateway.url}/v1/mcp", http_client=http)
        async with Client(transport, **options) as client:
            yield client


KNOWING: Json = {"mode": "2026-07-28", "extensions": [KnowsTasks()], "elicitation_callback": never_asked}


@asynccontextmanager
async def task_client(gateway: Gateway, token: str = "", **options: Any) -> AsyncIterator[TaskClient]:
    async with mcp_client(gateway, token, **{**KNOWING, **options}) as client:
        yield TaskClient(client)


def paid(gateway: Gateway) -> list[str]:
    path = gateway.project.folder / "paid.txt"
    return path.read_text().split() if path.exists() else []


async def new_token(gateway: Gateway, *scopes: str) -> str:
    return await asyncio.to_thread(make_token, gateway.project, f"t-{uuid4().hex[:8]}", *scopes)


@pytest.fixture(scope="session")
async def mcp_gateways(make_project: MakeProject) -> AsyncIterator[Gateways]:
    files = {"perdure.toml": PROJECT, "desk.py": DESK, "agents/default.md": AGENT, "agents/thrifty.md": THRIFTY}
    async with serve_gateways(make_project, replies, files) as opened:
        yield opened


@pytest.fixture(scope="session")
async def mcp_gateway(mcp_gateways: Gateways) -> AsyncIterator[Gateway]:
    with mcp_gateways.open() as opened:
        yield opened
