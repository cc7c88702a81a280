"""R21: twenty secrets that tools, pages and the model say back. None of them is left anywhere."""

import base64
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.security import collect_secrets
from perdure.activities.storage.watchers import keep_watched
from perdure.activities.tools.files import WriteFile
from perdure.activities.tools.interface import TransientToolError
from perdure.activities.tools.outside import HttpTool
from perdure.activities.tools.python import PythonTool
from perdure.contracts.agent import ToolSchema
from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.telemetry import JsonLines
from perdure.testkit.model_server import calls, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld

NAMES = ("API_KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
ENVIRONMENT = {f"CANARY_{n}_{NAMES[n % 5]}": f"canary-{n:02}-Xq7vK2mZ9{n:02}" for n in range(16)} | {
    "CANARY_16_PASSWD": 'canary"16\\with/odd chars&ü',
    "CANARY_17_KEYS": "a:canary-17-Xq7vK2mZ9,b:canary-1b-Xq7vK2mZ9",
}
IN_URLS = ("canary-18-Xq7vK2mZ9", "canary-19-Xq7vK2mZ9")  # a password, and a query parameter
CANARIES = (
    *(value for name, value in ENVIRONMENT.items() if not name.endswith("KEYS")),
    "canary-17-Xq7vK2mZ9",
    "canary-1b-Xq7vK2mZ9",
    *IN_URLS,
)
ALL = " ".join(CANARIES)
HALF = 16  # what is left of a canary that was cut


class Echo(BaseHTTPRequestHandler):
    """Says all it was sent, and all the canaries, back: with 200, or as an error."""

    def do_POST(self) -> None:
        said = json.dumps({"headers": dict(self.headers), "path": self.path, "env": ALL}).encode()
        self.send_response(400 if self.path.startswith("/refuse") else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
        pass


@contextmanager
def echoing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def raises() -> str:
    """Raises with all it knows."""
    raise KeyError(ALL)


@pytest.fixture
def python_tool(monkeypatch: pytest.MonkeyPatch) -> PythonTool:
    module = ModuleType("leaky_tools")
    module.raises = raises  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "leaky_tools", module)
    return PythonTool(route("raises", ToolKind.python, Effect.once), "leaky_tools:raises")


def route(name: str, kind: ToolKind, effect: Effect = Effect.read) -> ToolRoute:
    return ToolRoute(name=name, kind=kind, effect=effect, timeout=timedelta(seconds=30))


def http_tool(name: str, url: str, client: httpx.AsyncClient) -> HttpTool:
    schema = ToolSchema(name=name, description=name, input_schema={"type": "object"})
    return HttpTool(route(name, ToolKind.http), schema, url, client)


def leaks(data: bytes) -> list[str]:
    """The canaries that can be found in it, whatever they look like."""
    found = []
    for canary in CANARIES:
        looks = {canary, canary[:HALF], quote(canary, safe=""), json.dumps(canary)[1:-1], repr(canary)[1:-1]}
        looks |= {base64.b64encode(b"ann:" + canary.encode()).decode()[6:-4]}
        found += [look for look in looks if look.encode() in data]
    return found


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_leak_would_be_seen() -> None:
    assert len({look[:9] for look in leaks(ALL.encode())}) >= 20
    assert leaks(base64.b64encode(f"ann:{IN_URLS[0]}".encode()))


async def test_no_secret_is_left_anywhere(
    world: MakeWorld, tmp_path: Path, python_tool: PythonTool, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []

    def flaky(_: Any, __: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            raise TransientToolError("http_error", f"503: {ALL}")
        return {"deep": [{ALL: ALL}], "in base64": base64.b64encode(ALL.encode()).decode(), "percent": quote(ALL)}

    def fails(_: Any, __: Any) -> Any:
        raise ApplicationError(f"never: {ALL}", {"details": ALL}, non_retryable=True) from ValueError(ALL)

    log = io.StringIO()
    handler = logging.StreamHandler(log)
    with echoing() as host:
        urls = {name: f"http://ann:{IN_URLS[0]}@{host}/{name}?token={IN_URLS[1]}" for name in ("echo", "refuse")}
        secrets = collect_secrets(ENVIRONMENT, {f"tools.{name}.url": url for name, url in urls.items()})
        handler.setFormatter(JsonLines(secrets))
        logging.getLogger().addHandler(handler)
        caplog.set_level(logging.INFO)
        script = [
            slow(
                calls(("echo", {"with": ALL}), ("refuse", {}), ("raises", {}), ("fails", {}), text=f"plan {ALL}"), 2.5
            ),
            calls(("flaky", {}), ("large", {}), ("write_file", {"path": "artifacts/a.md", "content": ALL})),
            calls(("ask_human", {"question": f"is it {ALL}?"})),
            calls(("finish", {"outcome": f"it is {ALL}"}), text=ALL),
            says(ALL),
        ]
        async with httpx.AsyncClient(trust_env=False) as http:
            tools = (
                http_tool("echo", urls["echo"], http),
                http_tool("refuse", urls["refuse"], http),
                python_tool,
                ScriptedTool("fails", fails),
                ScriptedTool("flaky", flaky),
                ScriptedTool("large", lambda _, __: [ALL] * 1000, effect=Effect.once),
                WriteFile(),
            )
            async with world(script, *tools, secrets=secrets) as it, keep_watched(it.project.workspaces, "leaky"):
                run = await it.start("look around", run_id="leaky")
                beats = b""

                async def beaten() -> bool:
                    nonlocal beats
                    pending = (await run.describe()).raw_description.pending_activities
                    beats += b"".join(each.SerializeToString() for each in pending)
                    return b"redacted" in beats

                await it.until(beaten)
                await it.until_state(run, question=True)
                described = (await run.describe()).raw_description.SerializeToString()
                answers = [await run.query(name) for name in ("state", "journal", "transcript")]
                await run.execute_update("answer", {"text": "yes"})
                event = await run.result()
                left = {
                    "history": await it.raw_history(run),
                    "heartbeats": beats,
                    "description": described,
                    "queries": json.dumps([answers, await run.query("state"), event]).encode(),
                    "what the model got": json.dumps(it.model.requests).encode(),
                }
        logging.getLogger().removeHandler(handler)
    left["log"] = log.getvalue().encode()
    files = files_below(tmp_path)
    left |= files
    assert event["type"] == "agent.completed"
    assert {name.rpartition("/")[2] for name in files} >= {"a.md", "large-06.json", "trace.jsonl"}
    assert any(name.endswith("step-00003.result") for name in files)
    assert b"[redacted CANARY_0_API_KEY]" in left["history"]
    assert b"[redacted tools.echo.url]" in left["history"]
    assert "Completing activity as failed" in log.getvalue()
    assert '"event": "agent.tool.retry"' in log.getvalue()
    assert {where: leaks(data) for where, data in left.items() if leaks(data)} == {}


@pytest.mark.parametrize("effect", list(Effect))
async def test_a_secret_that_the_model_writes_into_a_call_or_a_link_goes_nowhere(
    world: MakeWorld, effect: Effect
) -> None:
    """Whatever made it do so, a page that it read perhaps."""
    secret = quote(CANARIES[0])
    visit = ScriptedTool("visit", effect=effect)
    script = [
        calls(("visit", {"url": f"https://example.com/?q={secret}", "headers": {"x-key": CANARIES[1]}})),
        calls(("finish", {"outcome": f"![a drawing](https://example.com/i.png?q={secret})"})),
    ]
    async with world(script, visit, secrets=collect_secrets(ENVIRONMENT)) as it:
        event = await (await it.start()).result()
    [(arguments, _)] = visit.calls
    assert arguments["url"].startswith("https://example.com/?q=")
    assert leaks(json.dumps([arguments, event]).encode()) == []


async def test_run_and_cache_hold_the_same_redacted_conversation(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their hashes would differ, and a worker without the run would ask for all of it again at each turn."""
    followed: list[int] = []
    asked: list[int] = []
    follow, load = TranscriptCache._follow_live, TranscriptCache._load_pages

    def at_first(self: TranscriptCache, conversation: Any, wanted: Any) -> bool:
        if conversation.transcript.parts:
            return False  # as in a worker that the run is not in
        followed.append(wanted.length)
        return follow(self, conversation, wanted)

    async def counted(self: TranscriptCache, conversation: Any, wanted: Any) -> None:
        asked.append(wanted.length)
        await load(self, conversation, wanted)

    monkeypatch.setattr(TranscriptCache, TranscriptCache._follow_live.__name__, at_first)
    monkeypatch.setattr(TranscriptCache, TranscriptCache._load_pages.__name__, counted)
    script = [calls(("look", {}), text=ALL), calls(("look", {"n": 1})), says("done")]
    look = ScriptedTool("look", lambda _, __: {ALL: [ALL]})
    async with world(script, look, secrets=collect_secrets(ENVIRONMENT)) as it:
        assert (await (await it.start()).result())["type"] == "agent.completed"
    assert (followed, asked) == ([1], [])  # the goal, at the start
