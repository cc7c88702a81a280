"""The doors through which people and programs read a run: each gives what it says, as text."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from perdure import Perdure
from perdure.client.run_events import event_to_json
from perdure.settings import load_settings
from tests.crossing.shapes import Crossing, until_some
from tests.e2e.projects import Json
from tests.gateway.conftest import parse_events
from tests.preloaded import program

Read = Callable[[Crossing, str], Awaitable[str]]
OURS = ("Traceback", "validation error", "pydantic", "model_validate", "Field required")  # never shown to a person


def must_be_readable(text: str) -> str:
    found = [words for words in OURS if words in text]
    assert not found, text[:3000]
    return text


def command(*args: str) -> Read:
    """A command that succeeds; `RUN` stands for the run's id."""

    async def read(it: Crossing, run_id: str) -> str:
        named = [run_id if arg == "RUN" else arg for arg in args]
        done = await asyncio.to_thread(it.project.perdure, *named)
        must_be_readable(done.err)
        # `watch` ends as its run did; nothing else may fail.
        assert done.code == 0 or args[0] == "watch", (named, done)
        return done.out

    return read


async def read_record(it: Crossing, run_id: str) -> str:
    """The signed record, which `verify` finds whole."""
    key, public = it.project.folder / "record.key", it.project.folder / "record.pub"
    target = it.project.folder / "records" / f"{run_id}.record"
    target.parent.mkdir(exist_ok=True)
    await command("trace", "RUN", "--export", str(target), "--sign", str(key))(it, run_id)
    verified = await asyncio.to_thread(it.project.perdure, "verify", str(target), "--key", str(public))
    assert verified.code == 0, verified
    return target.read_text(encoding="utf-8")


async def read_stream(it: Crossing, run_id: str) -> str:
    """The events that a Python program gets."""
    async with open_client(it) as perdure:
        events = [event async for event in perdure.get_run(run_id).stream()]
    return "\n".join(event_to_json(event) for event in events)


async def read_state(it: Crossing, run_id: str) -> str:
    async with open_client(it) as perdure:
        run = perdure.get_run(run_id)
        state = await until_some(run.state)
    return state.model_dump_json()


def open_client(it: Crossing) -> Perdure:
    return Perdure.connect(it.address, settings=load_settings(it.project.environment(), it.project.folder))


async def read_gateway(it: Crossing, run_id: str) -> str:
    async def get() -> str | None:
        answer = await it.http.get(f"/v1/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        return answer.text if answer.json()["answered"] else None

    return await until_some(get)


async def read_events(it: Crossing, run_id: str) -> str:
    async with it.http.stream("GET", f"/v1/runs/{run_id}/events") as stream:
        assert stream.status_code == 200
        events = [event async for _, event in parse_events(stream)]
    assert events[-1]["status"], events[-1]
    return "\n".join(json.dumps(event, ensure_ascii=False) for event in events)


async def read_result(it: Crossing, run_id: str) -> str:
    answer = await it.http.get(f"/v1/runs/{run_id}/result")
    assert answer.status_code == 200, answer.text
    return answer.text


async def read_artifacts(it: Crossing, run_id: str) -> str:
    """The list of the run's files, each of which can be had."""
    answer = await it.http.get(f"/v1/runs/{run_id}/artifacts")
    assert answer.status_code == 200, answer.text
    for artifact in answer.json()["artifacts"]:
        file = await it.http.get(f"/v1/runs/{run_id}/{artifact['path']}")
        assert (file.status_code, len(file.content)) == (200, artifact["bytes"])
    return answer.text


@dataclass(frozen=True)
class Door:
    """`tells` is true of a door that tells the whole story, as the events of a run."""

    read: Read
    tells: bool = False


DOORS: dict[str, Door] = {
    "show": Door(command("show", "RUN")),
    "show --json": Door(command("show", "RUN", "--json")),
    "trace": Door(command("trace", "RUN"), tells=True),
    "trace --json": Door(command("trace", "RUN", "--json"), tells=True),
    "trace --export": Door(command("trace", "RUN", "--export", "-", "--with-subtasks"), tells=True),
    "signed record": Door(read_record, tells=True),
    "watch": Door(command("watch", "RUN"), tells=True),
    "watch --json": Door(command("watch", "RUN", "--json"), tells=True),
    "policy explain": Door(command("policy", "explain", "RUN")),
    "client stream()": Door(read_stream, tells=True),
    "client state()": Door(read_state),
    "gateway run": Door(read_gateway),
    "gateway result": Door(read_result),
    "gateway artifacts": Door(read_artifacts),
    "gateway events": Door(read_events, tells=True),
}


@asynccontextmanager
async def open_mcp(it: Crossing) -> AsyncIterator[Callable[..., Awaitable[Json]]]:
    """An MCP client of the project, which calls tools by name: `call("run_state", run_id=…)`."""
    server = StdioServerParameters(
        command=program("cli"), args=["mcp", "--may-approve"], env=it.project.environment(), cwd=it.project.folder
    )
    with TemporaryFile("w+", encoding="utf-8") as errors:
        async with McpClient(stdio_client(server, errlog=errors)) as client:

            async def call(tool: str, **arguments: Any) -> Json:
                answer = await client.call_tool(tool, arguments)
                assert not answer.is_error, (tool, arguments, answer.content)
                return answer.structured_content or {}

            yield call
        errors.seek(0)
        must_be_readable(errors.read())


async def read_by_mcp(it: Crossing, run_ids: dict[str, str]) -> dict[str, Json]:
    """The states that an MCP client gets of several runs, by one server."""
    async with open_mcp(it) as call:
        return {name: await call("run_state", run_id=run_id) for name, run_id in run_ids.items()}
