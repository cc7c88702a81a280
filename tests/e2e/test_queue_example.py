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

from perdure.activities.telemetry.attributes import PENDING_TOOLS
from perdure.client.runs import wait_for_run_end
from perdure.testkit.model_server import ScriptedModel, calls
from tests.e2e.projects import MakeProject, Served, reply_by_goal, results_of, serve_with_worker, until_asked, use_model
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "queue"
PYTHON = [sys.executable, str(EXAMPLE / "warehouse.py")]
NODE = ["node", str(EXAMPLE / "node" / "warehouse.cjs")]
FINISH = calls(("finish", {"outcome": "done"}))
LOOK = calls(("look_up_stock", {"item": "milk"}))
LOOK_AMISS = calls(("look_up_stock", {"item": "gold"}))
ORDER = calls(("place_order", {"item": "salt", "count": 9}))
SCRIPTS = {"all of it": [LOOK, LOOK_AMISS, ORDER, FINISH], "look": [LOOK, FINISH], "order": [ORDER, FINISH]}


@dataclass(frozen=True)
class Shop(Served):
    """The example's project with a worker of ours; the tests open and close the warehouse."""

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

    async def start(self, goal: str, run_id: str) -> None:
        command = ("run", "--detach", "--agent", "storekeeper", "--id", run_id, goal)
        done = await asyncio.to_thread(self.perdure, *command)
        assert done.code == 0, done.err

    async def is_at_work(self, run_id: str) -> bool:
        found = await self.client.get_workflow_handle(f"run:{run_id}").describe()
        at_work = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        pending = found.raw_description.pending_activities
        return any(each.activity_type.name == "look_up_stock" and each.state == at_work for each in pending)

    def orders(self) -> list[dict[str, Any]]:
        path = self.project.folder / "orders.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
async def shop(make_project: MakeProject) -> AsyncIterator[Shop]:
    project = make_project()
    shutil.copy(EXAMPLE / "perdure.toml", project.folder)
    shutil.copytree(EXAMPLE / "agents", project.folder / "agents")
    with ScriptedModel(reply_by_goal(SCRIPTS)) as model:
        project.env |= use_model(model)
        async with serve_with_worker(project) as it:
            yield Shop(it.project, it.client, it.address)


async def all_of_it(shop: Shop, command: list[str]) -> None:
    with shop.warehouse(command):
        await shop.start("all of it", "all")
        end = await asyncio.wait_for(wait_for_run_end(shop.client, "all"), 120)
    assert end.status == "completed"
    look, amiss, order, _ = await results_of(shop.client, "all")
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
        await shop.start("look", "killed")
        await until(lambda: shop.is_at_work("killed"))
        found = await shop.client.get_workflow_handle("run:killed").describe()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with shop.warehouse(PYTHON):
        end = await asyncio.wait_for(wait_for_run_end(shop.client, "killed"), 120)
    assert found.typed_search_attributes.get(PENDING_TOOLS) == ["look_up_stock:1"]
    assert end.status == "completed"
    assert json.loads((await results_of(shop.client, "killed"))[0]) == {"item": "milk", "left": 12}


async def test_an_effect_whose_worker_is_killed_is_asked_about_and_never_repeated(shop: Shop) -> None:
    with shop.warehouse(PYTHON, seconds=300) as process:
        await shop.start("order", "killed")
        await until(shop.orders)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with shop.warehouse(PYTHON):
        await until_asked(shop.client, "killed", kind="resume_unsafe")
        answer = ("answer", "killed", "--decision", "use_result", "order 7")
        said = await asyncio.to_thread(shop.perdure, *answer)
        end = await asyncio.wait_for(wait_for_run_end(shop.client, "killed"), 120)
    assert said.code == 0, said.err
    assert end.status == "completed"
    assert (await results_of(shop.client, "killed"))[0] == "order 7"
    assert len(shop.orders()) == 1
