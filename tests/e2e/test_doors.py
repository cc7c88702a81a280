"""A start that cannot work, at each door that starts runs: the same line from each, and no run."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest

from perdure import Perdure, ReportedError
from perdure.client.run_list import iterate_runs
from perdure.features.mcp_server.tools import RunTools
from perdure.settings import Settings, load_settings
from tests.e2e.projects import MakeProject, Served, serve

PROJECT = """
[model]
default = "local:m"

[model.providers.local]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"

[limits.ceiling]
max_steps = 50
"""
CLERK = "---\ndescription: counts\ntools: []\ninput_schema: {type: object, required: [number]}\n---\nCount.\n"
MAILED = "---\ndescription: elsewhere\nmailbox: true\n---\n"
SCHEMA = {"type": "nonsense"}
PICTURE = {"name": "a.png", "artifact": "other/artifacts/a.png"}
LARGE = {"text": "x" * 900_000}

Fields = Mapping[str, Any]
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "agent": ({"agent": "nobody"}, "there is no agent 'nobody'; the agents are: "),
    "mailbox": ({"agent": "mailed"}, "agent 'mailed' lives outside: "),
    "pace": ({"pace": "batch"}, "model local:m (openai) has no batches: "),
    "context": ({"agent": "clerk"}, "payload.context does not match input_schema of clerk: "),
    "schema": ({"output_schema": SCHEMA}, "payload.output_schema: "),
    "media": ({"attachments": [PICTURE]}, "payload.attachments: a.png: agent default (local:m) cannot see it; "),
    "size": ({"context": LARGE}, "goal and context take 9"),
}
# What a door has no way to say, or another meaning for: a turn's context is not that of a start.
SAYS = {
    "run": ("agent", "mailbox", "pace", "context", "schema"),
    "schedule": ("agent", "mailbox", "pace", "context"),
    "chat": ("agent", "mailbox"),
    "gateway": tuple(BAD),
    "conversation": ("agent", "mailbox", "media"),
    "mcp": ("agent", "mailbox", "pace", "context", "media", "size"),
    "python": tuple(BAD),
    "submit": ("agent", "mailbox", "media"),
}


class Doors:
    """The doors of one project. Each takes the fields of a start, and returns the one line of its refusal."""

    def __init__(self, served: Served, settings: Settings, perdure: Perdure, web: httpx.AsyncClient) -> None:
        self._served, self._settings, self._perdure, self._web = served, settings, perdure, web

    async def run(self, fields: Fields) -> str:
        return self._command("run", "--detach", *self._options(fields), "go")

    async def schedule(self, fields: Fields) -> str:
        return self._command("schedule", "add", "s", "--every", "1h", "--goal", "go", *self._options(fields))

    async def chat(self, fields: Fields) -> str:
        return self._command("chat", "c", "--message", "go", *self._options(fields))

    def _options(self, fields: Fields) -> list[str]:
        schema = self._served.project.write("schema.json", json.dumps(fields.get("output_schema")))
        options = {"agent": fields.get("agent"), "pace": fields.get("pace")}
        if "output_schema" in fields:
            options["output-schema"] = str(schema)
        return [word for name, value in options.items() if value for word in (f"--{name}", value)]

    def _command(self, *words: str) -> str:
        return self._served.perdure(*words).error().removeprefix("perdure: ").rstrip("\n")

    async def gateway(self, fields: Fields) -> str:
        body = {"type": "agentic.start", "payload": {"goal": "go", **fields}}
        return await self._post("/v1/runs", body)

    async def conversation(self, fields: Fields) -> str:
        return await self._post("/v1/conversations/c/requests", {"request_id": "r", "goal": "go", **fields})

    async def _post(self, path: str, body: Any) -> str:
        answer = await self._web.post(path, json=body)
        assert answer.status_code in (413, 422), answer.text
        return str(answer.json()["detail"])

    async def mcp(self, fields: Fields) -> str:
        given = {name: value for name, value in fields.items() if name != "attachments"}
        given["attach"] = [one["artifact"] for one in fields.get("attachments", ())]
        tools = RunTools(self._perdure.session, may_approve=False)
        return await _refusal(lambda: tools.start_run("go", **given))

    async def python(self, fields: Fields) -> str:
        return await _refusal(lambda: self._perdure.start("go", **fields))

    async def submit(self, fields: Fields) -> str:
        return await _refusal(lambda: self._perdure.submit("go", conversation="c", **fields))


async def _refusal(start: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(ReportedError) as refused:
        await start()
    return str(refused.value)


@pytest.fixture(scope="module")
async def doors(make_project: MakeProject) -> AsyncIterator[Doors]:
    project = make_project()
    project.write_all({"perdure.toml": PROJECT, "agents/clerk.md": CLERK, "agents/mailed.md": MAILED})
    made = project.perdure("token", "create", "t", "--scope", "runs:start", "--scope", "runs:read")
    token = next(word for word in made.out.split() if len(word) > 30)
    async with serve(project) as served:
        with (
            pytest.MonkeyPatch.context() as patch,
            project.running("gateway", "--port", "0", TEMPORAL_ADDRESS=served.address) as gateway,
        ):
            patch.setenv("TEMPORAL_ADDRESS", served.address)
            page = re.search(r"http://127\.0\.0\.1:\d+", gateway.until("http://"))
            assert page is not None
            headers = {"Authorization": f"Bearer {token}"}
            settings = load_settings({}, project.folder)
            async with (
                httpx.AsyncClient(base_url=page[0], headers=headers, timeout=60) as web,
                Perdure(settings) as perdure,
            ):
                yield Doors(served, settings, perdure, web)
                assert [run async for run in iterate_runs(served.client)] == [], "nothing was started"


@pytest.mark.parametrize("bad", BAD)
async def test_a_start_that_cannot_work_has_the_same_line_from_each_door(doors: Doors, bad: str) -> None:
    fields, line = BAD[bad]
    said = {door: await getattr(doors, door)(fields) for door, ways in SAYS.items() if bad in ways}
    assert len({*said.values()}) == 1, said
    assert said["python"].startswith(line)
    assert "\n" not in said["python"]
