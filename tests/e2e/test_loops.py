"""Each way of starting Perdure, in programs of others, on asyncio's event loop and on uvloop."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from perdure.testkit.model_server import ScriptedModel, calls
from tests.e2e.projects import MakeProject, Process, Project, serve, turn_of, use_model
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "mcp" / "hostile.py"
TOOL = '''
def place() -> str:
    """Names the place."""
    return "here"
'''
TURNS = [
    calls(("h__look", {}), ("place", {}), text="Plan: look."),
    calls(("finish", {"outcome": "looked around"})),
]
# Python 3.11 takes a policy, as `uvicorn` and `uvloop.install` set it; each program says which loop it runs on.
LOOP = """
import asyncio, sys

if sys.argv.pop(1) == "uvloop":
    import uvloop
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
"""
CLIENT = """
from perdure import Perdure

async def main():
    async with Perdure() as perdure:
        end = await perdure.run("look", agent="looker")
        print(type(asyncio.get_running_loop()).__module__.partition(".")[0], end.outcome)

asyncio.run(main())
"""
NOTEBOOK = """
from perdure import Perdure

loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
cell = loop.run_until_complete
perdure = Perdure()
cell(perdure.__aenter__())
run = cell(perdure.start("look", agent="looker"))

async def read():
    return [type(event).__name__ async for event in run.stream()]

assert "RunEnded" in cell(read())
print(type(loop).__module__.partition(".")[0], cell(run.result()).outcome)
cell(perdure.__aexit__(None, None, None))
loop.close()
"""
PLUGIN = """
import os
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker
from perdure import PerdurePlugin
from perdure.stubs import AgentRun, StartEvent, StartPayload

@workflow.defn(sandboxed=False)
class Outer:
    @workflow.run
    async def run(self) -> str:
        start = StartEvent(type="agentic.start", payload=StartPayload(goal="look", agent="looker"))
        end = await workflow.execute_child_workflow(AgentRun.run, start, id="run:inner-" + workflow.info().workflow_id)
        return end.payload.outcome

async def main():
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], plugins=[PerdurePlugin()])
    async with Worker(client, task_queue="perdure", workflows=[Outer]):
        outcome = await client.execute_workflow(Outer.run, id=os.environ["OWN_ID"], task_queue="perdure")
        print(type(asyncio.get_running_loop()).__module__.partition(".")[0], outcome)

asyncio.run(main())
"""
WEB = """
from contextlib import asynccontextmanager
import uvicorn
from fastapi import FastAPI
from perdure import Perdure

@asynccontextmanager
async def lifespan(app):
    async with Perdure() as app.state.perdure:
        yield

app = FastAPI(lifespan=lifespan)

@app.get("/look")
async def look():
    end = await app.state.perdure.run("look", agent="looker")
    return [type(asyncio.get_running_loop()).__module__.partition(".")[0], end.outcome]

server = uvicorn.Server(uvicorn.Config(app, port=0, loop=sys.argv[1], log_level="warning"))

async def serve():
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.05)
    if server.started:
        print("port", server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving

if sys.argv[1] == "uvloop":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
asyncio.run(serve())
"""
COMMAND = """
from perdure.cli import main

main()
"""

both = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def project(make_project: MakeProject) -> Iterator[Project]:
    """A project whose run starts an MCP server and a Python tool."""
    with ScriptedModel(lambda body: TURNS[turn_of(body)]) as model:
        project = make_project(**use_model(model))
        state = project.folder / "state"
        state.mkdir()
        entry = {"command": sys.executable, "args": [str(SERVER), str(state), "plain"]}
        project.write(".mcp.json", json.dumps({"mcpServers": {"h": entry}}))
        project.write("perdure.toml", '[tools.place]\nkind = "python"\neffect = "read"\ntarget = "kit:place"\n')
        project.write("kit.py", TOOL)
        project.write("agents/looker.md", "---\ndescription: looks\ntools: [h__look, place]\n---\nLook.\n")
        accepted = project.perdure("tools", "--accept", "h")
        assert accepted.code == 0, accepted
        yield project


def command_of(loop: str, code: str, *args: str) -> list[str]:
    return [sys.executable, "-c", LOOP + code, loop, *args]


def play(project: Project, loop: str, code: str, *args: str, **env: str) -> str:
    """The output of a program that ends well."""
    done = subprocess.run(
        command_of(loop, code, *args),
        cwd=project.folder,
        env=project.environment({"PYTHONPATH": str(ROOT), **env}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@contextmanager
def playing(project: Project, loop: str, code: str, *args: str, **env: str) -> Iterator[Process]:
    """A program while the block runs."""
    popen = subprocess.Popen(
        command_of(loop, code, *args),
        cwd=project.folder,
        env=project.environment({"PYTHONPATH": str(ROOT), **env}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


def read(address: str) -> bytes:
    with urlopen(address, timeout=PATIENCE) as answer:
        body: bytes = answer.read()
    return body


@both
@pytest.mark.parametrize("code", [CLIENT, NOTEBOOK], ids=["client", "notebook"])
def test_a_client_brings_its_server_and_its_worker(project: Project, loop: str, code: str) -> None:
    assert play(project, loop, code) == f"{loop} looked around\n"


@both
async def test_a_worker_of_another_program_has_the_plugin(project: Project, loop: str) -> None:
    async with serve(project) as served:
        ids = {"TEMPORAL_ADDRESS": served.address, "OWN_ID": loop}
        assert play(project, loop, PLUGIN, **ids) == f"{loop} looked around\n"


@both
def test_a_web_app_opens_its_client_as_it_starts(project: Project, loop: str) -> None:
    with playing(project, loop, WEB, loop) as app:
        port = app.until("port").split()[1]
        assert json.loads(read(f"http://127.0.0.1:{port}/look")) == [loop, "looked around"]


@both
async def test_the_commands_serve_each_other(project: Project, loop: str) -> None:
    """The gateway brings the server and the worker; `run` and an MCP client use them."""
    with playing(project, loop, COMMAND, "gateway", "--port", "0") as gateway:
        page = re.search(r"http://127\.0\.0\.1:\d+", gateway.until("http://"))
        assert page is not None
        assert b"<html" in await asyncio.to_thread(read, f"{page[0]}/")
        command = (project, loop, COMMAND, "run", "--agent", "looker", "look")
        assert "looked around" in await asyncio.to_thread(play, *command)
        python, *args = command_of(loop, COMMAND, "mcp")
        env = project.environment({"PYTHONPATH": str(ROOT)})
        server = StdioServerParameters(command=python, args=args, env=env, cwd=project.folder)
        async with Client(stdio_client(server)) as client:
            assert (await client.list_tools()).tools
