"""The example of a worker elsewhere, which knows nothing of us: each call of the kind `queue`, and kill -9 in one."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from activities.telemetry.attributes import PENDING_TOOLS
from devserver import embedded_server
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.converter import data_converter
from perdure.testkit.model_server import ScriptedModel, calls

EXAMPLE = Path(__file__).parents[2] / "examples" / "queue"
PYTHON = [sys.executable, str(EXAMPLE / "warehouse.py")]
NODE = ["node", str(EXAMPLE / "node" / "warehouse.cjs")]
FINISH = calls(("finish", {"outcome": "done"}))
LOOK = calls(("look_up_stock", {"item": "milk"}))
LOOK_AMISS = calls(("look_up_stock", {"item": "gold"}))
ORDER = calls(("place_order", {"item": "salt", "count": 9}))
SCRIPTS = {"all of it": [LOOK, LOOK_AMISS, ORDER, FINISH], "look": [LOOK, FINISH], "order": [ORDER, FINISH]}


def reply(body: dict[str, Any]) -> Any:
    goal = body["messages"][0]["content"][0]["text"]
    return SCRIPTS[goal][sum(message["role"] == "assistant" for message in body["messages"])]


@dataclass(frozen=True)
class Shop:
    """The example's project with a worker of ours; the warehouse is opened and closed by the tests."""

    project: Any
    client: Client
    address: str
    until: Any

    @contextmanager
    def warehouse(self, command: list[str], seconds: int = 0) -> Iterator["subprocess.Popen[str]"]:
        env = {**os.environ, "TEMPORAL_ADDRESS": self.address, "WORK_SECONDS": str(seconds)}
        with subprocess.Popen(command, cwd=self.project.folder, env=env, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "the warehouse is open\n"
                yield process
            finally:
                process.kill()

    async def starts(self, goal: str, run_id: str) -> None:
        start = ("run", "--detach", "--agent", "storekeeper", "--id", run_id, goal)
        done = await asyncio.to_thread(self.project.perdure, *start, TEMPORAL_ADDRESS=self.address)
        assert done.code == 0, done.err

    async def is_at_work(self, run_id: str) -> bool:
        found = await self.client.get_workflow_handle(f"run:{run_id}").describe()
        at_work = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        pending = found.raw_description.pending_activities
        return any(each.activity_type.name == "look_up_stock" and each.state == at_work for each in pending)

    async def results(self, run_id: str) -> list[str]:
        page = await self.client.get_workflow_handle(f"run:{run_id}").query("transcript")
        return [part["content"][0]["content"] for part in page["parts"] if part["kind"] == "result"]

    def orders(self) -> list[dict[str, Any]]:
        path = self.project.folder / "orders.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
async def shop(make_project: Any, until: Any) -> AsyncIterator[Shop]:
    project = make_project()
    shutil.copy(EXAMPLE / "perdure.toml", project.folder)
    shutil.copytree(EXAMPLE / "agents", project.folder / "agents")
    with ScriptedModel(reply) as model:
        async with embedded_server(project.home) as server:
            client = await Client.connect(server.address, data_converter=data_converter)
            env = {"ANTHROPIC_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "sk-test"}
            with project.running(script="worker.py", TEMPORAL_ADDRESS=server.address, **env) as worker:
                await asyncio.to_thread(worker.until, "worker ready")
                yield Shop(project, client, server.address, until)


async def all_of_it(shop: Shop, command: list[str]) -> None:
    with shop.warehouse(command):
        await shop.starts("all of it", "all")
        end = await asyncio.wait_for(wait_for_run_end(shop.client, "all"), 120)
    assert end.status == "completed"
    look, amiss, order, _ = await shop.results("all")
    assert json.loads(look) == {"item": "milk", "left": 12}
    assert amiss == "tool_error: there is no 'gold' here; there is: milk, salt"
    made = {"key": "agentic:run:all:step:3:request", "item": "salt", "count": 9}
    assert json.loads(order) == {"ordered": made}
    assert shop.orders() == [made]


async def test_a_worker_that_imports_only_temporalio_does_the_calls(shop: Shop) -> None:
    imports = {
        line.split()[1].partition(".")[0] for line in _lines("warehouse.py") if line.startswith(("import", "from"))
    }
    assert imports - sys.stdlib_module_names == {"temporalio"}
    await all_of_it(shop, PYTHON)


def _lines(name: str) -> list[str]:
    return (EXAMPLE / name).read_text(encoding="utf-8").splitlines()


def _node_lacks() -> str:
    if shutil.which("node") is None:
        return "there is no node"
    asked = [*NODE[:1], "-e", "require('@temporalio/worker')"]
    found = subprocess.run(asked, cwd=EXAMPLE / "node", capture_output=True, check=False, timeout=60)
    return "" if found.returncode == 0 else "@temporalio/worker is not there: npm install in examples/queue/node"


async def test_a_worker_in_another_language_does_the_same_calls(shop: Shop) -> None:
    if lacks := await asyncio.to_thread(_node_lacks):
        pytest.skip(lacks)
    await all_of_it(shop, NODE)


async def test_a_read_whose_worker_is_killed_runs_again_on_the_next_one(shop: Shop) -> None:
    with shop.warehouse(PYTHON, seconds=300) as process:
        await shop.starts("look", "killed")
        await shop.until(lambda: shop.is_at_work("killed"))
        found = await shop.client.get_workflow_handle("run:killed").describe()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with shop.warehouse(PYTHON):
        end = await asyncio.wait_for(wait_for_run_end(shop.client, "killed"), 120)
    assert found.typed_search_attributes.get(PENDING_TOOLS) == ["look_up_stock:1"]
    assert end.status == "completed"
    assert json.loads((await shop.results("killed"))[0]) == {"item": "milk", "left": 12}


async def test_an_effect_whose_worker_is_killed_is_asked_about_and_never_repeated(shop: Shop) -> None:
    async def asks() -> bool:
        view = await query_run_state(shop.client, "killed")
        return view is not None and view.question is not None and view.question.kind == "resume_unsafe"

    with shop.warehouse(PYTHON, seconds=300) as process:
        await shop.starts("order", "killed")
        await shop.until(shop.orders)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with shop.warehouse(PYTHON):
        await shop.until(asks)
        answer = ("answer", "killed", "--decision", "use_result", "order 7")
        said = await asyncio.to_thread(shop.project.perdure, *answer, TEMPORAL_ADDRESS=shop.address)
        end = await asyncio.wait_for(wait_for_run_end(shop.client, "killed"), 120)
    assert said.code == 0, said.err
    assert end.status == "completed"
    assert (await shop.results("killed"))[0] == "order 7"
    assert len(shop.orders()) == 1
