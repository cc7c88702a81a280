"""`perdure mcp` as an MCP client uses it: a real client, the real process, the embedded server."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from perdure.testkit.model_server import ScriptedModel, calls
from tests.e2e.projects import MakeProject, Project, Served, reply_by_goal, use_model
from tests.mcp.conftest import KNOWING, TaskClient, accept
from tests.preloaded import program
from tests.waiting import until

TOOLS = """
[tools.hold]
kind = "python"
effect = "read"
target = "helpers:hold"

[tools.note]
kind = "python"
effect = "once"
approval = "always"
target = "helpers:note"
"""
CODE = '''
import time
from pathlib import Path

print("a module that prints when it is loaded")


def hold() -> str:
    """Waits until it may go on."""
    print("a tool that prints")
    Path("began").touch()
    while not Path("go").exists():
        time.sleep(0.05)
    return "went on"


def note(text: str) -> str:
    """Writes a line down."""
    return f"noted {text}"
'''
AGENT = "---\ndescription: takes notes\ntools: [hold, note]\n---\nYou take notes.\n"
FINISH = calls(("finish", {"outcome": "done", "artifacts": ["notes.md"]}))
SCRIPTS: dict[str, list[Any]] = {
    "count": [calls(("finish", {"outcome": "three", "result": {"total": 3}}))],
    "hold on": [calls(("hold", {}), text="Frame: patience\nPlan: hold, then finish."), FINISH],
    "note it": [calls(("note", {"text": "milk"})), FINISH],
    "ask": [calls(("ask_human", {"question": "Which shop?"})), FINISH],
}


@pytest.fixture(scope="module")
def clerk(served: Served) -> Iterator[Project]:
    """A project whose agent has a scripted model, beside an embedded server that is held up."""
    project = served.project
    counter = "---\ntools: []\noutput_schema: {type: object}\n---\nYou count.\n"
    agents = {"agents/clerk.md": AGENT, "agents/counter.md": counter}
    project.write_all({"perdure.toml": TOOLS, "helpers.py": CODE, **agents})
    with ScriptedModel(reply_by_goal(SCRIPTS)) as model:
        project.env |= use_model(model)
        yield project


def pid_file(project: Project) -> Path:
    return Path(project.folder / "mcp.pid")


@asynccontextmanager
async def connect(
    project: Project, *options: str, client: dict[str, Any] | None = None, **env: str
) -> AsyncIterator[Client]:
    """A client of `perdure mcp`, whose process id is in `pid_file`."""
    # Through a shell, which says its id and then becomes the command.
    script = 'echo $$ > "$0"; exec "$@"'
    command = [str(pid_file(project)), program("cli"), "mcp", *options]
    server = StdioServerParameters(
        command="sh", args=["-c", script, *command], env=project.environment(env), cwd=project.folder
    )
    with (project.folder / "mcp.err").open("w", encoding="utf-8") as errors:
        async with Client(stdio_client(server, errlog=errors), **client or {}) as it:
            yield it


async def call(it: Client, tool: str, **arguments: Any) -> Any:
    answer = await it.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    said = answer.structured_content or {}
    return said["result"] if said.keys() == {"result"} else said


async def call_and_fail(it: Client, tool: str, **arguments: Any) -> str:
    answer = await it.call_tool(tool, arguments)
    assert answer.is_error
    [block] = answer.content
    line: str = getattr(block, "text", "")
    assert line.count("\n") == 0
    return line


async def start_run(it: Client, goal: str, **more: Any) -> str:
    run_id: str = (await call(it, "start_run", goal=goal, agent="clerk", **more))["run_id"]
    return run_id


async def wait_for_run(it: Client, run_id: str) -> Any:
    """The run's state once it is over or asks something."""
    while True:
        state = await call(it, "wait_for_run", run_id=run_id, seconds=20)
        if state["is_over"] or state["question"]:
            return state


async def test_a_client_starts_a_run_answers_it_and_reads_its_outcome(clerk: Project) -> None:
    async with connect(clerk) as it:
        hints = {each.name: each.annotations for each in (await it.list_tools()).tools}
        run_id = await start_run(it, "ask", dedupe_key="order 17")
        assert await start_run(it, "ask", dedupe_key="order 17") == run_id
        asked = await wait_for_run(it, run_id)

        async def waiting() -> list[str]:
            return [each["waiting_for"] for each in await call(it, "list_waiting") if each["run_id"] == run_id]

        await until(waiting)  # the server lists a question some time after it is asked
        assert await waiting() == ["human: asks: Which shop?"]
        stale = await call_and_fail(it, "answer_question", run_id=run_id, question_id="q7", text="the dairy")
        assert await call(it, "answer_question", run_id=run_id, question_id="q1", text="the dairy") == "accepted"
        end = await wait_for_run(it, run_id)
        again = await call(it, "run_state", run_id=run_id)
    reads = {name for name, each in hints.items() if each is not None and each.read_only_hint}
    assert reads == {"run_state", "wait_for_run", "list_waiting"}
    assert hints.keys() - reads == {"start_run", "answer_question", "cancel_run"}
    assert (asked["status"], asked["is_over"]) == ("waiting_on_human", False)
    assert asked["question"] == {
        "id": "q1",
        "kind": "question",
        "text": "Which shop?",
        "options": [],
        "answered_by": "you",
    }
    assert "question q7 is not open" in stale
    assert "the open one is q1" in stale
    assert (end["status"], end["outcome"], end["artifacts"]) == ("completed", "done", ["notes.md"])
    assert end["folder"].endswith(f"/.perdure/runs/{run_id}")
    assert again == end


async def test_a_typed_result_is_in_the_state_of_its_run(clerk: Project) -> None:
    async with connect(clerk) as it:
        run_id = (await call(it, "start_run", goal="count", agent="counter"))["run_id"]
        end = await wait_for_run(it, run_id)
    assert (end["status"], end["result"]) == ("completed", {"total": 3})


async def test_an_approval_is_left_to_a_person_unless_the_server_may_approve(clerk: Project) -> None:
    async with connect(clerk) as it:
        run_id = await start_run(it, "note it")
        asked = (await wait_for_run(it, run_id))["question"]
        line = await call_and_fail(it, "answer_question", run_id=run_id, question_id="q1", decision="approve")
        early = await call_and_fail(it, "answer_question", run_id=run_id, question_id="q2", decision="approve")
        still = await call(it, "run_state", run_id=run_id)
    shown = json.loads(clerk.perdure("show", run_id, "--json").out)
    assert shown["started_by"]["sender"] == {"door": "mcp"}
    assert (asked["kind"], asked["answered_by"]) == ("approval", "a person")
    assert "is for a person (approval)" in line
    assert "--may-approve" in line
    assert "question q2 is not open" in early
    assert (still["status"], still["question"]) == ("waiting_on_human", asked)
    async with connect(clerk, "--may-approve") as it:
        assert (await wait_for_run(it, run_id))["question"]["answered_by"] == "you"
        await call(it, "answer_question", run_id=run_id, question_id="q1", decision="approve")
        assert (await wait_for_run(it, run_id))["outcome"] == "done"


async def test_a_run_goes_on_after_its_server_was_killed_and_the_next_one_sees_it(clerk: Project) -> None:
    began, go = clerk.folder / "began", clerk.folder / "go"
    run_id = ""
    with suppress(Exception):  # whatever its client makes of it
        async with connect(clerk) as it:
            run_id = await start_run(it, "hold on")
            await until(began.exists)
            os.kill(int(pid_file(clerk).read_text()), signal.SIGKILL)
    began.unlink()
    async with connect(clerk) as it:
        await until(began.exists)  # the call that was lost with the worker is made again
        middle = await call(it, "wait_for_run", run_id=run_id, seconds=0)
        go.touch()
        end = await wait_for_run(it, run_id)
    assert (middle["status"], middle["step"], middle["is_over"]) == ("running", 1, False)
    assert middle["plan"] == "hold, then finish."
    assert (end["status"], end["outcome"]) == ("completed", "done")


async def test_a_task_outlives_its_server(clerk: Project) -> None:
    """Over standard input and output all runs are tasks of the caller, and an approval without a page is no request."""
    with suppress(Exception):  # whatever its client makes of it
        async with connect(clerk, client=KNOWING) as it:
            task = (await TaskClient(it).start("ask", agent="clerk", key="once"))["taskId"]
            asked = await TaskClient(it).until(task, "input_required")
            os.kill(int(pid_file(clerk).read_text()), signal.SIGKILL)
    async with connect(clerk, client=KNOWING) as it:
        tasks = TaskClient(it)
        assert (await tasks.start("ask", agent="clerk", key="once"))["taskId"] == task
        await until(lambda: _asks(tasks, task))
        assert (await tasks.get(task))["inputRequests"] == asked["inputRequests"]
        await tasks.update(task, q1=accept(answer="the dairy"))
        done = await tasks.until(task)
        noting = (await tasks.start("note it", agent="clerk"))["taskId"]
        await until(lambda: _asks(tasks, noting))
        held = await tasks.get(noting)
        await tasks.update(noting, q1=accept(answer="approve"))
        still = await tasks.get(noting)
        await tasks.cancel(noting)
        assert (await tasks.until(noting))["status"] == "cancelled"
        assert (await tasks.refused("get", "nobody")).error.message == "unknown task"
    assert done["result"]["structuredContent"]["outcome"] == "done"
    assert done["result"]["structuredContent"]["folder"].endswith(f"/.perdure/runs/{task}")
    for state in (held, still):
        assert (state["status"], "inputRequests" in state) == ("working", False)
        assert state["statusMessage"].endswith(f"(perdure show {noting} tells how to answer it)")


async def _asks(tasks: TaskClient, task: str) -> bool:
    """The next server has a worker of its own, which takes a moment."""
    shown = await tasks.get(task)
    return shown["status"] == "input_required" or "approve a call" in shown["statusMessage"]


async def test_a_run_is_cancelled_and_the_wait_tells_its_end(clerk: Project) -> None:
    async with connect(clerk) as it:
        run_id = await start_run(it, "ask")
        await wait_for_run(it, run_id)
        assert await call(it, "cancel_run", run_id=run_id, reason="not needed") == "asked to stop"
        end = await wait_for_run(it, run_id)
        late = await call_and_fail(it, "cancel_run", run_id=run_id)
    assert (end["status"], end["question"]) == ("cancelled", None)
    assert "has ended" in late


async def test_a_held_run_says_by_whom_and_why(clerk: Project) -> None:
    notes: list[str] = []
    async with connect(clerk) as it:
        paused = await asyncio.to_thread(clerk.perdure, "pause", "--agent", "clerk", "--why", "an audit", "--by", "ann")
        assert paused.code == 0, paused
        try:
            run_id = await start_run(it, "ask", dedupe_key="held")

            async def is_held() -> bool:
                notes.append((await call(it, "run_state", run_id=run_id))["note"])
                return notes[-1].startswith("held")

            await until(is_held)
        finally:
            released = await asyncio.to_thread(clerk.perdure, "unpause", "--agent", "clerk")
        assert released.code == 0, released
        asked = await wait_for_run(it, run_id)
        await call(it, "cancel_run", run_id=run_id)
    assert notes[-1].startswith("held before its next call: agent clerk paused by ann at ")
    assert notes[-1].endswith("an audit")
    assert (asked["question"]["text"], asked["note"]) == ("Which shop?", "")


async def test_beside_a_configured_temporal_without_a_worker_it_says_so(served: Served, clerk: Project) -> None:
    async with connect(clerk, TEMPORAL_ADDRESS=served.address, PERDURE_TASK_QUEUE="deserted") as it:
        started_run = await call(it, "start_run", goal="ask", agent="clerk")
        run_id = started_run["run_id"]
        state = await call(it, "run_state", run_id=run_id)
        line = await call_and_fail(it, "answer_question", run_id=run_id, question_id="q1", text="the dairy")
        await call(it, "cancel_run", run_id=run_id)
    assert "no worker is running" in started_run["note"]
    assert (state["status"], state["is_over"]) == ("queued", False)
    assert state["note"].startswith("no worker answers now: this is what the server knows, ")
    assert state["note"].endswith(" s old")
    assert "no worker answers for run" in line


WRONG_CALLS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("run_state", {"run_id": "nobody"}, "there is no run nobody"),
    ("start_run", {"goal": " "}, "goal: the goal is empty"),
    ("start_run", {}, "goal: Field required"),
    ("start_run", {"goal": "x", "agent": "nobody"}, "there is no agent 'nobody'; the agents are: default, clerk"),
    ("start_run", {"goal": "x", "context": {"max_steps": "many"}}, "max_steps"),
    ("wait_for_run", {"run_id": "nobody", "seconds": 3600}, "seconds: Input should be less than or equal to 50"),
    ("run_state", {"run_id": "wf:tasks"}, "is a follow-up"),
    ("start_run", {"goal": "x", "dedupe_key": ""}, "dedupe_key: String should have at least 1 character"),
    ("start_run", {"goal": "x", "context": {"notes": "x" * 5_000_000}}, "the limit is 480,000"),
    ("cancel_run", {"run_id": "nobody"}, "there is no run nobody"),
    ("answer_question", {"run_id": "nobody", "question_id": "q1", "text": "x"}, "there is no run nobody"),
    ("run_state", {"run_id": "x" * 1001}, "there is no run x"),
)


async def test_a_wrong_call_fails_with_one_line(clerk: Project) -> None:
    async with connect(clerk) as it:
        for tool, arguments, words in WRONG_CALLS:
            assert words in await call_and_fail(it, tool, **arguments)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a client", "version": "1"},
    },
}


def greet_and_stop(project: Project, stop: signal.Signals | None) -> tuple[int, str, str]:
    """Code, output and errors of a server that was greeted, and then left: by the end of its input, or a signal."""
    command = [program("cli"), "mcp"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=project.folder, env=project.environment(), text=True, **pipes) as server:
        try:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps(INITIALIZE) + "\n")
            server.stdin.flush()
            first = server.stdout.readline()
            if stop is None:
                out, err = server.communicate(timeout=60)
            else:
                server.send_signal(stop)
                server.wait(60)  # although its input stays open
                out, err = server.stdout.read(), server.stderr.read() if server.stderr else ""
        finally:
            server.kill()
    return server.returncode, first + out, err


@pytest.mark.parametrize("stop", [None, signal.SIGTERM, signal.SIGINT])
async def test_it_leaves_with_its_client_and_its_output_is_mcp_only(
    clerk: Project, stop: signal.Signals | None
) -> None:
    code, out, err = await asyncio.to_thread(greet_and_stop, clerk, stop)
    assert code == 0
    [line] = out.splitlines()
    said = json.loads(line)
    assert said["result"]["serverInfo"]["name"] == "perdure"
    assert "- clerk: takes notes" in said["result"]["instructions"]
    assert err == ""  # what a module prints when it is loaded goes to the log


async def test_a_project_that_does_not_load_is_one_line(make_project: MakeProject) -> None:
    broken = make_project()
    broken.write("perdure.toml", "[tools.x]\nkind = 'smoke'\n")
    done = await asyncio.to_thread(broken.perdure, "mcp")
    assert "perdure.toml" in done.error()
