"""Workers, `dev` and models as processes: they start, serve, stop in order, and leave nothing behind."""

import asyncio
import fcntl
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.client.connection import register_search_attributes
from perdure.testkit.model_server import ScriptedModel, fails
from tests.conftest import TEMPORAL
from tests.e2e.projects import MakeProject, Served
from tests.proxy import proxied
from tests.waiting import until

KEY = "sk-canary-9b1d"  # must turn up nowhere
SLOW = """
import time

time.sleep(4)

def look() -> str:
    "Looks."
    return "seen"
"""


def test_a_worker_serves_a_configured_server_until_sigterm(served: Served, critique: str) -> None:
    there = {"TEMPORAL_ADDRESS": served.address, "PERDURE_TASK_QUEUE": "another"}
    with served.project.worker(**there) as worker:
        done = served.project.perdure("run", "--json", critique, **there)
        assert (done.code, json.loads(done.out)["status"]) == (0, "completed")
        stopped = worker.send_signal(signal.SIGTERM)
    assert stopped.code == 0
    assert "Traceback" not in stopped.err


async def test_a_worker_starts_where_it_may_not_list_search_attributes(served: Served, critique: str) -> None:
    await register_search_attributes(served.client)
    async with proxied(served.address) as proxy:
        proxy.denied["ListSearchAttributes"] = grpc.StatusCode.PERMISSION_DENIED
        there = {"TEMPORAL_ADDRESS": proxy.address, "PERDURE_TASK_QUEUE": "cloud"}
        with served.project.running(script="worker.py", **there) as worker:
            await asyncio.to_thread(worker.until, "worker ready")
            done = await asyncio.to_thread(lambda: served.project.perdure("run", "--json", critique, **there))
            stopped = await asyncio.to_thread(worker.send_signal, signal.SIGTERM)
    assert (done.code, json.loads(done.out)["status"]) == (0, "completed")
    assert (stopped.code, stopped.err.count("search attributes of namespace default are not listed")) == (0, 1)


async def test_lists_without_search_attributes_say_so_in_one_line(make_project: MakeProject) -> None:
    project = make_project()
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=TEMPORAL) as bare:
        there = {"TEMPORAL_ADDRESS": bare.client.service_client.config.target_host}
        await bare.client.start_workflow("AgentRun", id="run:r1", task_queue="perdure")
        listed = await asyncio.to_thread(lambda: project.perdure("list", **there))
        waiting = await asyncio.to_thread(lambda: project.perdure("list", "--waiting", **there))
    gap = "namespace default has no search attribute AgentStatus: open runs count as queued"
    assert (listed.code, "r1" in listed.out, listed.out.count(gap)) == (0, True, 1)
    assert (waiting.code, waiting.err.count("\n"), waiting.err.count(gap)) == (1, 1, 1)


def is_locked(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_dev_stops_at_a_signal_and_leaves_nothing_running(
    make_project: MakeProject, number: signal.Signals
) -> None:
    project = make_project()
    with project.running("dev") as dev:
        await asyncio.to_thread(dev.until, "Web UI")
        await asyncio.to_thread(dev.until, "Ctrl-C")
        server = json.loads((project.home / "server.json").read_text())["pid"]
        stopped = await asyncio.to_thread(dev.send_signal, number)
    assert (stopped.code, stopped.err) == (0, "")
    await until(lambda: not is_locked(project.home / "server.lock"))
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


async def test_an_answer_right_after_dev_was_started_waits_for_its_worker(make_project: MakeProject) -> None:
    """The worker takes its time here, and an answer in the meantime is not refused for lack of one."""
    project = make_project()
    with project.running("run", "--id", "asking", "say hello") as run:
        await asyncio.to_thread(run.until, "perdure answer asking")
        await asyncio.to_thread(run.send_signal, signal.SIGINT)
    project.write("slow_tools.py", SLOW)
    project.write("perdure.toml", '[tools.look]\nkind = "python"\ntarget = "slow_tools:look"\neffect = "read"\n')
    with project.running("dev") as dev:
        assert await asyncio.to_thread(dev.until, "") == "starting …\n"
        answered = await asyncio.to_thread(project.perdure, "answer", "asking", "https://example.org")
        await asyncio.to_thread(dev.until, "Ctrl-C")
    assert (answered.code, answered.out, answered.err) == (0, "accepted\n", "")


def test_commands_about_a_run_without_a_worker_say_so(served: Served) -> None:
    perdure, there = served.project.perdure, {"TEMPORAL_ADDRESS": served.address, "PERDURE_TASK_QUEUE": "deserted"}
    lack = "no worker is running; start one with: perdure worker"
    started = perdure("run", "--detach", "--id", "alone", "say hello", **there)
    assert (started.code, started.out) == (0, "alone\n")
    assert started.err.splitlines()[-1] == f"perdure: {lack}"
    assert perdure("list", **there).out.splitlines()[-1] == lack
    with served.project.running("cancel", "alone", **there) as cancel:
        assert cancel.until("no worker") == f"{lack}\n"
    beside = perdure("run", "--detach", "--id", "alone too", "say hello")
    assert beside.err.splitlines()[-1] == "perdure: no worker is running; start one with: perdure watch 'alone too'"
    assert perdure("list").out.splitlines()[-1] == "no worker is running; start one with: perdure dev"


def test_starting_a_run_without_a_model_says_that_the_rehearsal_model_answers(served: Served) -> None:
    perdure, there = served.project.perdure, {"TEMPORAL_ADDRESS": served.address, "PERDURE_TASK_QUEUE": "rehearsed"}
    started = perdure("run", "--detach", "say hello").err.splitlines()[0]
    assert started.startswith(
        "perdure: No model is configured, so the rehearsal model answers, by rule. For a real one"
    )
    elsewhere = perdure("run", "--detach", "say hello", **there).err.splitlines()[0]
    assert "is configured here; if the worker has none either, the rehearsal model answers" in elsewhere
    assert "rehearsal" not in perdure("run", "--detach", "say hello", ANTHROPIC_API_KEY=KEY, **there).err
    assert perdure("run", "--detach", "--json", "say hello").err == ""
    assert "No model is configured" in perdure("chat", typed="").out


def test_a_worker_without_the_key_that_its_project_needs_does_not_start(served: Served) -> None:
    done = served.project.perdure("worker", TEMPORAL_ADDRESS=served.address, PERDURE_MODEL="claude-sonnet-5-5")
    assert "ANTHROPIC_API_KEY" in done.error()
    assert served.project.perdure("list", "--json", PERDURE_MODEL="claude-sonnet-5-5").code == 0


def test_no_short_command_ever_ends_by_a_signal(served: Served) -> None:
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: served.project.perdure("list", "--json").code, range(20)))
    assert codes == [0] * 20


def test_a_variable_that_is_not_utf_8_hinders_no_command(served: Served) -> None:
    done = served.project.perdure("list", "--json", CITY="caf\udce9", TEMPORAL_ADDRESS=served.address)
    assert (done.code, done.err) == (0, "")


def test_a_refused_key_is_one_line_without_the_key(served: Served) -> None:
    with ScriptedModel([fails(401, message=f"invalid x-api-key {KEY}")]) as model:
        there = {"ANTHROPIC_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": KEY, "PERDURE_TASK_QUEUE": "refused"}
        done = served.project.perdure("run", "--id", "refused", "write a.md", **there)
    assert (done.code, done.err) == (1, "")
    [line] = [line for line in done.out.splitlines() if "ModelRefused" in line]
    assert "the provider refused the request (401)" in line
    log = (served.project.home / "worker.log").read_text(encoding="utf-8")
    assert KEY not in done.out + log
