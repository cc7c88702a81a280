"""A gateway as a process, a worker, and a scripted model, on a real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio.client import Client

from perdure.client.connection import register_search_attributes
from perdure.testkit.model_server import Script, ScriptedAnswer, ScriptedModel, calls, slow
from tests.e2e.conftest import make_project, site
from tests.e2e.projects import MakeProject, Process, Project, Served, serve, turn_of
from tests.ports import free_port
from tests.waiting import until

__all__ = ["make_project", "site"]  # fixtures

SCOPES = ("runs:start", "runs:read", "tools:result", "human:answer", "events:publish", "budget:raise")
SECRET = "whsec_" + "c2lnbmVkIGJ5IHRoZSB0ZXN0cw=="
PLAIN_SECRET = "a secret that is only for tests"
PROJECT = """
[features]
use = ["web_ui", "ag_ui", "mcp_http", "a2a"]

[gateway]
public_url = "http://127.0.0.1:8080"

[tools.charge]
kind = "signal"
effect = "once"
approval = "always"
description = "Charge a card."
input_schema = { type = "object", properties = { amount = { type = "number" } }, required = ["amount"] }

[tools.lookup]
kind = "signal"
effect = "read"
description = "Look something up outside."
input_schema = { type = "object", properties = { what = { type = "string" } }, required = ["what"] }

[tools.stamp]
kind = "python"
target = "desk:stamp"
effect = "keyed"
approval = "always"
approval_timeout = "5m"

[gateway.webhooks.mine]
scheme = "standard"
platforms = ["Discord"]
secret_env = "HOOK_STANDARD"

[gateway.webhooks.slack]
scheme = "slack"
secret_env = "HOOK_SLACK"
people = { U1 = "eva" }

[gateway.webhooks.github]
scheme = "github"
secret_env = "HOOK_GITHUB"

[[start]]
name = "issues"
webhook = "github"
on = ["issues.opened", "issues.labeled"]
when = "event.issue.labels.exists(l, l.name == 'agent')"
goal = "say: answer the issue {title} of {repo}. {body}"
fields = { title = "event.issue.title", body = "event.issue.body", repo = "event.repository.full_name" }
answer = true

[[start]]
name = "mentions"
webhook = "slack"
on = ["app_mention"]
goal = "say: {text}"
fields = { text = "event.event.text", channel = "event.event.channel" }
conversation = "slack-{channel}"
answer = true

[[start]]
name = "unknown-agent"
webhook = "mine"
on = ["order.created"]
dedupe = "string(event.data.order)"
goal = "say: {order}"
fields = { order = "event.data.order" }
"""
AGENT = """---
name: default
description: Tests.
tools: [charge, lookup]
---
You are tested.
"""
CLERK = """---
name: clerk
description: Stamps.
tools: [stamp, lookup]
peers: [default]
limits: {max_steps: 7}
input_schema: {type: object, properties: {sheet: {type: integer}}}
output_schema: {type: object, properties: {stamps: {type: integer}}}
---
You stamp.
"""
DESK = """
def stamp(sheet: int, colour: str = "red") -> str:
    '''Stamp a sheet.'''
    return f"{sheet} is {colour}"
"""
Json = dict[str, Any]


def replies(body: Json) -> ScriptedAnswer:
    """By the first word of the goal: `say`, `ask`, `charge`, `count`, `lookup`; then it finishes with what came.

    After `slow` it takes six seconds to say so.
    """
    turn = turn_of(body)
    said = str(body["messages"][0]["content"])
    if turn == 0 and "ask:" in said:
        return calls(("ask_human", {"question": "Shall it be red, or blue?", "options": ["red", "blue"]}))
    if turn == 0 and ("charge:" in said or "pair:" in said):
        more = [("charge", {"amount": 7})] if "pair:" in said else []
        return calls(("charge", {"amount": 42}), *more, text="1. Charge\n2. Tell")
    if turn == 0 and "lookup" in said:
        return calls(("lookup", {"what": "parcel 7"}))
    if "count:" in said:
        result = None if "count: none" in said else {"total": 3}
        return calls(("finish", {"outcome": "three" if result else "none", "result": result}))
    if turn == 1 and "lookup to confirm:" in said:
        return calls(("ask_human", {"question": "Is that right?"}))
    last = body["messages"][-1]["content"]
    content = next((b["content"] for b in last if b.get("type") == "tool_result"), "") if isinstance(last, list) else ""
    images = str(body["messages"]).count("'type': 'base64'")
    done = ("finish", {"outcome": f"done {content}".strip() + (f", {images} seen" if images else "")})
    return slow(calls(done, text="Once upon a time. " * 20), 6) if "slow:" in said else calls(done)


@dataclass
class Gateway:
    """A gateway, and an HTTP client with a token of all scopes."""

    project: Project
    client: Client
    address: str  # of the Temporal server
    url: str
    token: str
    process: Process
    log: Path

    def logged(self) -> list[Json]:
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    @property
    def http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        async with self.http as http:
            return await http.post(path, json=body, headers=headers)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with self.http as http:
            return await http.get(path, headers=headers)

    async def delete(self, path: str, **headers: str) -> httpx.Response:
        async with self.http as http:
            return await http.delete(path, headers=headers)

    async def start(self, goal: str = "say: something", **headers: str) -> str:
        answer = await self.post("/v1/runs", {"payload": {"goal": goal}}, **headers)
        assert answer.status_code in (200, 202), answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    async def waiting(self, goal: str = "ask: which colour", status: str = "waiting_on_human") -> str:
        """A run that waits, once the server lists that: some time after it does."""
        run_id = await self.start(f"{goal} {uuid4().hex[:6]}")

        async def waits() -> bool:
            details = (await self.get(f"/v1/runs/{run_id}")).json()
            if not details["state"] or details["state"]["status"] != status:
                return False
            listed = await self.client.count_workflows(f"WorkflowId = 'run:{run_id}' AND AgentStatus = '{status}'")
            return listed.count == 1

        await until(waits)
        return run_id

    async def nonce(self, run_id: str) -> str:
        """Of the one request that is read from the run, as its tool has no URL."""
        [pending] = (await self.get(f"/v1/runs/{run_id}")).json()["state"]["pending"]
        nonce: str = pending["nonce"]
        return nonce

    async def events(self, run_id: str, after: str = "", most: int = 10_000) -> list[tuple[str, Json]]:
        """What the stream tells to its end, or so many of it: (id, JSON); the end event has `status`."""
        seen: list[tuple[str, Json]] = []
        headers = {"Last-Event-ID": after} if after else {}
        async with self.http as http, http.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as stream:
            assert stream.status_code == 200, await stream.aread()
            async for event in parse_events(stream):
                seen.append(event)
                if len(seen) == most:
                    break
        return seen


async def parse_events(stream: httpx.Response) -> AsyncIterator[tuple[str, Json]]:
    at, data = "", ""
    async for line in stream.aiter_lines():
        if line.startswith("id: "):
            at = line[4:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and data:
            yield at, json.loads(data)
            at = data = ""


@dataclass(frozen=True)
class Gateways(Served):
    """A project with a server and a worker, and the gateways that tests open in it."""

    token: str

    @contextmanager
    def open(self, *more: str, **env: str) -> Iterator[Gateway]:
        log = self.project.folder / f"gateway-{uuid4().hex[:8]}.log"  # nobody reads its stderr, which would fill
        command = ("gateway", "--port", str(free_port()), "--log-file", str(log), *more)
        with self.project.running(*command, TEMPORAL_ADDRESS=self.address, **env) as process:
            url = process.until("gateway").split()[1]
            process.until("Ctrl-C")
            yield Gateway(self.project, self.client, self.address, url, self.token, process, log)


def make_token(project: Project, name: str, *scopes: str, **env: str) -> str:
    options = [part for scope in scopes for part in ("--scope", scope)]
    options += ["--platform", "discord"] if "events:publish" in scopes else []
    made = project.perdure("token", "create", name, *options, **env)
    assert made.code == 0, made.err
    return made.out.strip()


@asynccontextmanager
async def serve_gateways(
    make_project: MakeProject, script: Script, files: dict[str, str], **env: str
) -> AsyncIterator[Gateways]:
    """A project of these files, with a model that follows the script."""
    with ScriptedModel(script) as model:
        project = make_project(ANTHROPIC_BASE_URL=model.base_url, **env)
        project.write_all(files)
        async with serve(project) as served:
            await register_search_attributes(served.client)
            with project.worker(TEMPORAL_ADDRESS=served.address):
                token = await asyncio.to_thread(make_token, project, "tester", *SCOPES)
                yield Gateways(project, served.client, served.address, token)


@pytest.fixture(scope="session")
async def gateways(make_project: MakeProject) -> AsyncIterator[Gateways]:
    files = {"perdure.toml": PROJECT, "agents/default.md": AGENT, "agents/clerk.md": CLERK, "desk.py": DESK}
    secrets = {"HOOK_STANDARD": SECRET, "HOOK_SLACK": PLAIN_SECRET, "HOOK_GITHUB": PLAIN_SECRET}
    async with serve_gateways(make_project, replies, files, **secrets) as opened:
        yield opened


@pytest.fixture(scope="session")
async def gateway(gateways: Gateways) -> AsyncIterator[Gateway]:
    with gateways.open() as opened:
        yield opened
