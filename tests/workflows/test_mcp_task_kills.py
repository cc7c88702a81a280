"""Worker and MCP server are killed with SIGKILL at each point of a task: there is one `tools/call`, and one end."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure.client.runs import query_run_state, start_or_get_run
from perdure.contracts.run.events import StartEvent
from perdure.testkit.model_server import ScriptedModel
from tests.chaos.crash_points import Point, Trap
from tests.chaos.killable import Project
from tests.mcp.tasks import TaskServer, task_server
from tests.waiting import until
from tests.workflows.conftest import Run
from tests.workflows.runs import expect_cancelled
from tests.workflows.test_mcp_tasks import CHECK, calling

ANSWERED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
SETTINGS = '[worker]\nheartbeat = "2s"\nsticky_timeout = "1s"\n'


@dataclass
class Place:
    """A project of one tool, its worker as a process, and the server of the tool."""

    client: Client
    bank: TaskServer
    project: Project
    queue: str = field(default_factory=lambda: f"kills-{uuid4().hex[:8]}")
    worker: BaseProcess | None = None

    def work(self, trap: Trap | None = None) -> None:
        self.worker = self.project.worker(self.queue, trap)

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.join()
            self.worker = None

    async def start(self) -> Run:
        event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": "pay"}})
        return await start_or_get_run(self.client, self.queue, event, uuid4().hex[:12])

    async def until_checked(self, run: Run, times: int = 1) -> None:
        async def is_checked() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            return any(found.activity_type.name == CHECK and found.attempt > times for found in pending)

        await until(is_checked)

    async def question(self, run: Run) -> str:
        kinds: list[str] = []

        async def is_asked() -> bool:
            view = await query_run_state(self.client, run.id.removeprefix("run:"))
            kinds[:] = [question.kind for question in view.questions] if view else []
            return bool(kinds)

        await until(is_asked)
        return kinds[0]

    async def shown(self, run: Run) -> str:
        """What the model was shown of the call, at the end."""
        await asyncio.wait_for(run.result(), 120)
        page = await run.query("transcript")
        results = [part["content"][0]["content"] for part in page["parts"] if part["kind"] == "result"]
        return str(results[0])


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[TaskServer]:
    with task_server(tmp_path / "bank") as server:
        yield server


@asynccontextmanager
async def place(client: Client, bank: TaskServer, folder: Path, tool: str) -> AsyncIterator[Place]:
    await bank.until_up()
    project = folder / "project"
    (project / "agents").mkdir(parents=True)
    (project / "perdure.toml").write_text(SETTINGS)
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"bank": {"type": "http", "url": bank.url}}}))
    (project / "agents" / "default.md").write_text(f"---\ntools: [bank__{tool}]\n---\nYou pay.\n")
    with ScriptedModel(calling(tool)) as model:
        address = client.service_client.config.target_host
        it = Place(client, bank, Project(project, address, model.base_url))
        try:
            yield it
        finally:
            it.kill_worker()


async def test_a_worker_that_dies_before_the_reply_leaves_a_once_call_in_doubt(
    client: Client, bank: TaskServer, tmp_path: Path
) -> None:
    bank.set("hold-tools-call")
    async with place(client, bank, tmp_path, "pay") as it:
        it.work()
        run = await it.start()
        await until(lambda: len(bank.tasks) == 1)
        it.kill_worker()
        bank.clear("hold-tools-call")
        it.work()
        assert await it.question(run) == "resume_unsafe"
        await run.execute_update("answer", {"decision": "use_result", "text": "paid by hand"})
        assert await it.shown(run) == "paid by hand"
    assert (bank.count("tools/call"), len(bank.tasks)) == (1, 1)


async def test_a_worker_that_dies_before_the_reply_finds_the_task_of_a_keyed_call_by_its_key(
    client: Client, bank: TaskServer, tmp_path: Path
) -> None:
    bank.set("hold-tools-call")
    async with place(client, bank, tmp_path, "pay_keyed") as it:
        it.work()
        run = await it.start()
        await until(lambda: len(bank.tasks) == 1)
        it.kill_worker()
        bank.clear("hold-tools-call")
        bank.set("end")
        it.work()
        assert await it.shown(run) == "paid"
    keys = [entry["key"] for entry in bank.log if entry["method"] == "tools/call"]
    assert (len(keys), len(set(keys)), len(bank.tasks)) == (2, 1, 1)


KILLS = [
    ("recorded", "worker"),  # the id is in the ledger, and not in history
    *((point, victim) for point in ("followed", "asked", "updating") for victim in ("worker", "server")),
]


@pytest.mark.parametrize(("point", "victim"), KILLS)
async def test_a_task_goes_on_after_a_kill_with_one_call(
    client: Client, bank: TaskServer, tmp_path: Path, point: str, victim: str
) -> None:
    tool = "ask_once" if point in ("asked", "updating") else "pay"
    async with place(client, bank, tmp_path, tool) as it:
        it.work(Trap(Point.after_record) if point == "recorded" else None)
        run = await it.start()
        answering = await _come_to(it, run, point)
        if victim == "server":
            bank.kill()
        elif point != "recorded":
            it.kill_worker()
        (bank.folder / "hold-tasks-update").unlink(missing_ok=True)
        bank.set("end")
        if victim == "server":
            bank.start()
        else:
            it.work()
        if point == "asked":
            assert await it.question(run) == "input"
            await run.execute_update("answer", {"text": "yes"})
        if answering is not None:
            await answering
        shown = await it.shown(run)
    assert shown == "paid" if tool == "pay" else '"ok": true' in shown
    assert (bank.count("tools/call"), len(bank.tasks)) == (1, 1)
    answers = [e async for e in run.fetch_history_events() if e.event_type == ANSWERED]
    assert len(answers) == (1 if tool == "ask_once" else 0)  # none is asked twice


@pytest.mark.parametrize("victim", ["worker", "server"])
async def test_a_cancel_is_carried_out_in_spite_of_a_kill(
    client: Client, bank: TaskServer, tmp_path: Path, victim: str
) -> None:
    bank.set("hold-tasks-cancel")
    async with place(client, bank, tmp_path, "pay") as it:
        it.work()
        run = await it.start()
        await it.until_checked(run)
        await run.signal("cancel")
        await until(lambda: bank.count("tasks/cancel") == 1)
        (bank.kill if victim == "server" else it.kill_worker)()
        bank.clear("hold-tasks-cancel")
        (bank.start if victim == "server" else it.work)()
        await expect_cancelled(run)
        page = await run.query("transcript")
    [shown] = [part["content"][0]["content"] for part in page["parts"] if part["kind"] == "result"]
    assert ": cancelled, paying; " in shown
    assert [task["status"] for task in bank.tasks] == ["cancelled"]
    assert bank.count("tools/call") == 1


async def test_a_call_whose_server_asks_first_has_its_effect_once_in_spite_of_a_kill(
    client: Client, bank: TaskServer, tmp_path: Path
) -> None:
    async with place(client, bank, tmp_path, "confirm_once") as it:
        it.work()
        run = await it.start()
        assert await it.question(run) == "input"
        it.kill_worker()
        it.work(Trap(Point.after_record))  # of the call that is made again
        answering = asyncio.create_task(run.execute_update("answer", {"text": "yes"}))
        worker = it.worker
        await until(lambda: worker is not None and worker.exitcode is not None)
        it.work()
        await answering
        assert await it.shown(run) == "done rent"
    assert (bank.folder / "acts").read_text() == "act\n"
    assert bank.count("tools/call") == 2


async def _come_to(it: Place, run: Run, point: str) -> "asyncio.Task[Any] | None":
    """Returns at the point, with the answer that is on its way."""
    match point:
        case "recorded":
            worker = it.worker
            assert worker is not None
            await until(lambda: worker.exitcode is not None)  # it has killed itself
            it.worker = None
        case "followed":
            await it.until_checked(run)
        case "asked":
            assert await it.question(run) == "input"
        case "updating":
            it.bank.set("hold-tasks-update")
            assert await it.question(run) == "input"
            answering = asyncio.create_task(run.execute_update("answer", {"text": "yes"}))
            await until(lambda: it.bank.count("tasks/update") == 1)
            return answering
        case _:
            raise AssertionError(point)
    return None
