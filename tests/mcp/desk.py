"""A project whose requesters log in to an MCP server: its worker and gateway as processes, and people with tokens."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from temporalio.client import Client

from perdure.client.connection import register_search_attributes
from perdure.features.mcp.loopback import log_in
from perdure.features.mcp.offer import open_grants, servers_with_access
from perdure.settings import load_settings
from perdure.terminal.command import find_user
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls, says
from tests.activities.test_mcp_grants import follow
from tests.e2e.projects import MakeProject, Project, serve, turn_of
from tests.gateway.conftest import Gateway, Gateways, make_token
from tests.mcp.oauth import Family, OAuthServer
from tests.waiting import until

Json = dict[str, Any]
PEOPLE = ("ann", "ben")
SCOPES = ("runs:start", "runs:read", "human:answer")
KEYS = f"k1:{base64.b64encode(b'k' * 32).decode()}"
A2A = """
[features]
use = ["a2a"]
"""
CONFIG = """
[gateway]
public_url = "http://gateway.test"

[mcp.tickets]
auth = "oauth"
grant = "requester"
"""
FILES = {
    "agents/default.md": "---\nname: default\ndescription: Counts.\ntools: [tickets__stock, tickets__meet]\n"
    "peers: [helper]\n---\nYou count.\n",
    "agents/helper.md": "---\nname: helper\ndescription: Helps.\ntools: [tickets__stock]\n---\nYou help.\n",
}


def replies(body: Json) -> ScriptedAnswer:
    """By the goal, such as `stock: a1`, which is a call, or `delegate: a1`, whose subtask makes it."""
    said = str(body["messages"][0]["content"])
    if turn_of(body) == 0:
        for word in ("stock", "meet", "delegate"):
            if f"{word}: " in said:
                article = said.partition(f"{word}: ")[2].split()[0].strip("'\\n}],")
                task = {"id": "count", "agent": "helper", "instructions": f"stock: {article} "}
                uses = {"delegate": ("delegate", {"subtasks": [task]})}
                return calls(uses.get(word, (f"tickets__{word}", {"article": article})))
    last = body["messages"][-1]["content"]
    came = next((str(block["content"]) for block in last if block.get("type") == "tool_result"), "nothing")
    return says(f"It said: {came}")


@dataclass
class Desk:
    """`logins` are the families of tokens, by person."""

    oauth: OAuthServer
    gateway: Gateway
    tokens: dict[str, str]
    logins: dict[str, Family] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return self.gateway.client

    def http(self, person: str) -> httpx.AsyncClient:
        """A browser of a person, with their token."""
        headers = {"Authorization": f"Bearer {self.tokens[person]}"}
        return httpx.AsyncClient(base_url=self.gateway.url, headers=headers, timeout=60, trust_env=False)

    async def start(self, person: str, goal: str) -> str:
        async with self.http(person) as http:
            begun = await http.post("/v1/runs", json={"payload": {"goal": f"{goal} "}})
        assert begun.status_code == 202, begun.text
        return str(begun.json()["run_id"])

    async def held_by(self, run_id: str) -> str:
        """The question that a run is held by; empty if it is held by none."""
        async with self.http("ann") as http:
            shown = (await http.get(f"/v1/runs/{run_id}")).json()
        return str((shown.get("held_by") or {}).get("by", ""))

    async def question_of(self, run_id: str) -> Json:
        """The question of the project that a run waits for, with its name as `run_id`."""
        found: list[Json] = []

        async def is_asked() -> bool:
            by = await self.held_by(run_id)
            async with self.http("ann") as http:
                rows = (await http.get("/v1/questions")).json()["questions"]
            found[:] = [row for row in rows if by and row["run_id"] == by]
            return bool(found)

        await until(is_asked)
        return found[0]

    async def log_in(self, person: str, link: str) -> None:
        async with self.http(person) as http:
            begun = await http.post(f"/{link}")
            assert begun.status_code == 200, begun.text
            back = urlsplit(await follow(begun.json()["url"]))
            done = await http.get(f"{back.path}?{back.query}")
        assert done.status_code == 200, done.text
        assert done.text.startswith(f"Logged in to tickets as {person}.")
        self.logins[person] = self.oauth.families[-1]

    async def outcome_of(self, run_id: str) -> str:
        """The result of a run at its end, as JSON."""
        found: list[str] = []

        async def has_ended() -> bool:
            async with self.http("ann") as http:
                answer = await http.get(f"/v1/runs/{run_id}/result")
            found[:] = [answer.text] if answer.status_code == 200 else []
            return bool(found)

        await until(has_ended)
        return found[0]

    def family_of(self, article: str) -> Family:
        """The login with whose token the calls about an article came."""
        families = [call.family for call in self.oauth.seen if call.arguments.get("article") == article]
        assert families, self.oauth.seen
        assert all(each is families[0] for each in families)
        return families[0]


async def accept_tools(project: Project, oauth: OAuthServer) -> None:
    """Accept the server's tools with a login of the user of this machine."""
    settings = load_settings(project.environment(), project.folder)
    [server] = servers_with_access(settings).values()
    opened: list[asyncio.Task[None]] = []

    async def browse(url: str) -> None:
        async with httpx.AsyncClient() as http:
            assert (await http.get(await follow(url))).status_code == 200

    def show(url: str) -> None:
        opened.append(asyncio.create_task(browse(url)))

    await log_in(server, open_grants(settings), 0, "operator", show, find_user())  # type: ignore[arg-type]
    accepted = await asyncio.to_thread(project.perdure, "tools", "--accept", "tickets")
    assert accepted.code == 0, accepted
    assert len(oauth.families) == 1


@asynccontextmanager
async def serve_desk(make_project: MakeProject, oauth: OAuthServer, more: str = "") -> AsyncIterator[Desk]:
    """A project with a server that each requester logs in to; `more` is added to its perdure.toml."""
    with ScriptedModel(replies) as model:
        project = make_project(ANTHROPIC_BASE_URL=model.base_url, ANTHROPIC_API_KEY="sk-none", PERDURE_CODEC_KEYS=KEYS)
        servers = f'{{"mcpServers": {{"tickets": {{"type": "http", "url": "{oauth.url}/mcp"}}}}}}'
        project.write_all({**FILES, "perdure.toml": CONFIG, ".mcp.json": servers})
        await accept_tools(project, oauth)
        project.write("perdure.toml", CONFIG + more)  # not before: this process would have its features
        async with serve(project) as served:
            await register_search_attributes(served.client)
            with project.worker(TEMPORAL_ADDRESS=served.address):
                tokens = {name: await asyncio.to_thread(make_token, project, name, *SCOPES) for name in PEOPLE}
                with Gateways(project, served.client, served.address, tokens["ann"]).open() as gateway:
                    yield Desk(oauth, gateway, tokens)
