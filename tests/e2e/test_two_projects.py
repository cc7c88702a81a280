"""Two projects on one machine never mix, in whatever order their servers and workers start and die."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.client.guard import OtherServerError, guard_of
from perdure.plugin import PerdurePlugin
from perdure.python_client import Perdure
from perdure.settings import Settings, load_settings
from perdure.testkit.model_server import ScriptedModel, says
from tests.conftest import TEMPORAL
from tests.e2e.projects import MakeProject, Process, Project, use_model
from tests.waiting import PATIENCE, until

RUNS = [f"r{number}" for number in range(4)]
OTHER = "another Temporal server answers at"


def port_of(project: Project) -> str:
    at = json.loads((project.home / "server.json").read_text())["address"]
    return str(at.rpartition(":")[2])


def kill_server(project: Project) -> None:
    """Kill the embedded server as a machine that runs out of memory does: with its supervisor."""
    server = json.loads((project.home / "server.json").read_text())["pid"]
    supervisor = Path(f"/proc/{server}/status").read_text().partition("PPid:")[2].split()[0]
    os.kill(int(supervisor), signal.SIGKILL)
    (project.home / "server.json").unlink(missing_ok=True)


async def play_runs(project: Project, outcome: str) -> None:
    """Start runs, which are answered by this project's model alone."""
    for run in RUNS:
        assert (await asyncio.to_thread(project.perdure, "run", "--detach", "--id", run, "hi")).code == 0
    for run in RUNS:
        done = await asyncio.to_thread(project.perdure, "watch", run, "--json")
        assert (done.code, outcome in done.out) == (0, True), done


@asynccontextmanager
async def a_dev(project: Project, *options: str) -> AsyncIterator[Process]:
    with project.running("dev", *options) as dev:
        await asyncio.to_thread(dev.until, "Ctrl-C stops everything")
        yield dev


@pytest.mark.parametrize("frozen", [False, True], ids=["awake", "frozen"])
async def test_a_worker_that_lost_its_server_takes_nothing_from_the_next_one(
    make_project: MakeProject, *, frozen: bool
) -> None:
    """Frozen, as a laptop that sleeps, it finds the other server with work for it when it wakes."""
    first = make_project(PERDURE_MODEL="rehearsal")
    with ScriptedModel(lambda _: says("the second")) as model:
        second = make_project(**use_model(model))
        async with a_dev(first) as left:
            port = port_of(first)
            if frozen:
                left.popen.send_signal(signal.SIGSTOP)
            kill_server(first)
            async with a_dev(second, "--port", port):
                if frozen:
                    left.popen.send_signal(signal.SIGCONT)
                await play_runs(second, "the second")
                ended = await asyncio.to_thread(left.wait)
        assert (ended.code, ended.err.count("\n"), OTHER in ended.err) == (1, 1, True), ended


async def test_a_worker_at_an_address_ends_where_another_projects_server_has_taken_it(
    make_project: MakeProject,
) -> None:
    first = make_project(PERDURE_MODEL="rehearsal")
    plain = await WorkflowEnvironment.start_local(dev_server_existing_path=TEMPORAL)
    address = plain.client.service_client.config.target_host
    with (
        first.running(script="worker.py", TEMPORAL_ADDRESS=address) as left,
        ScriptedModel(lambda _: says("the second")) as model,
    ):
        try:
            await asyncio.to_thread(left.until, "worker ready")
        finally:
            await plain.shutdown()
        second = make_project(**use_model(model))
        async with a_dev(second, "--port", address.rpartition(":")[2]):
            await play_runs(second, "the second")
            ended = await asyncio.to_thread(left.wait)
    assert (ended.code, OTHER in ended.err.splitlines()[-1]) == (1, True), ended


@asynccontextmanager
async def open_plugin(client: Client, settings: Settings) -> AsyncIterator[None]:
    config = client.config()
    config["plugins"] = [PerdurePlugin(settings)]
    house = Client(**config)
    guard = guard_of(house)
    async with Worker(house, task_queue=settings.task_queue):
        await until(lambda: guard and guard.namespace)
        yield


@asynccontextmanager
async def open_client(client: Client, settings: Settings) -> AsyncIterator[None]:
    async with Perdure(settings, client=client):
        yield


@pytest.mark.parametrize("open_program", [open_plugin, open_client])
async def test_a_program_with_perdure_in_it_ends_there_too(
    tmp_path: Path, open_program: Callable[[Client, Settings], AbstractAsyncContextManager[None]]
) -> None:
    settings = load_settings({"PERDURE_MODEL": "rehearsal"}, tmp_path)
    first = await WorkflowEnvironment.start_local(dev_server_existing_path=TEMPORAL)
    port = int(first.client.service_client.config.target_host.rpartition(":")[2])

    async def stay() -> None:
        async with asyncio.timeout(PATIENCE), open_program(first.client, settings):
            await first.shutdown()
            async with await WorkflowEnvironment.start_local(port=port, dev_server_existing_path=TEMPORAL):
                await asyncio.Event().wait()

    with pytest.raises(OtherServerError, match=OTHER):
        await stay()


async def test_a_worker_goes_on_where_its_own_server_comes_back(make_project: MakeProject) -> None:
    with ScriptedModel(lambda _: says("the same")) as model:
        project = make_project(**use_model(model))
        async with a_dev(project) as dev:
            port = port_of(project)
            kill_server(project)
            # Any command of the project starts the server again, at the same port.
            await play_runs(project, "the same")
            assert (port_of(project), dev.popen.poll()) == (port, None)


async def test_an_embedded_server_is_its_own_projects_whatever_address_another_is_given(
    make_project: MakeProject,
) -> None:
    first, second = make_project(), make_project()
    async with a_dev(first):
        there = {"TEMPORAL_ADDRESS": f"127.0.0.1:{port_of(first)}"}
        for command in (("run", "--detach", "hi"), ("list",), ("cancel", "r1"), ("watch", "r1")):
            said = (await asyncio.to_thread(partial(second.perdure, *command, **there))).error()
            assert f"is the embedded one of another project, with its state in {first.home}" in said
        refused = await asyncio.to_thread(lambda: second.perdure("worker", **there))
        assert (refused.code, "is the embedded one of another project" in refused.err) == (1, True)
        assert (await asyncio.to_thread(lambda: first.perdure("list", **there))).code == 0
        named = '[project]\nname = "shop"\n'
        for project in (first, second):
            project.write("perdure.toml", named)
        assert (await asyncio.to_thread(first.perdure, "list")).code == 0
        assert (await asyncio.to_thread(lambda: second.perdure("list", **there))).code == 0


async def test_on_a_shared_server_a_queue_is_that_of_the_project_of_its_first_worker(
    make_project: MakeProject,
) -> None:
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=TEMPORAL) as shared:
        there = {"TEMPORAL_ADDRESS": shared.client.service_client.config.target_host}
        shop, replica, bank, nameless = (make_project(**there) for _ in range(4))
        for project, name in ((shop, "shop"), (replica, "shop"), (bank, "bank")):
            project.write("perdure.toml", f'[project]\nname = "{name}"\n')
        with shop.worker(), replica.worker():
            for command in (("run", "hi"), ("list",), ("cancel", "r1"), ("watch", "r1")):
                said = (await asyncio.to_thread(bank.perdure, *command)).error()
                assert "task queue perdure is that of project shop, and this is project bank" in said
            for project, this in ((bank, "this is project bank"), (nameless, "this one has no [project] name")):
                refused = await asyncio.to_thread(project.perdure, "worker")
                assert (refused.code, this in refused.err) == (1, True), refused
            for project in (replica, nameless):  # a client that names no project is served
                done = await asyncio.to_thread(project.perdure, "run", "--detach", "hi")
                assert done.code == 0, done
            assert (await asyncio.to_thread(lambda: bank.perdure("list", PERDURE_TASK_QUEUE="bank"))).code == 0
