"""Worker and agent elsewhere are killed with SIGKILL at each point of a task: one message, one task, one end."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.testkit.model_server import ScriptedModel, calls
from tests.a2a.elsewhere import Elsewhere, elsewhere
from tests.chaos.crash_points import Point, Trap
from tests.chaos.killable import Project
from tests.mcp.tasks import TaskServer
from tests.waiting import until
from tests.workflows.script import FINISH, count_replies
from tests.workflows.test_mcp_task_kills import SETTINGS, Place

RELAY = """
[model.providers.relay]
kind = "relay"
"""
TOOL = """
[tools.counter]
kind = "a2a"
description = "Counts."
url = "{url}"
effect = "{effect}"
timeout = "20s"
"""


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Elsewhere]:
    with elsewhere(tmp_path / "counter") as server:
        yield server


@asynccontextmanager
async def place(
    client: Client, counter: Elsewhere, folder: Path, message: str, effect: str = "once", *, is_peer: bool = False
) -> AsyncIterator[Place]:
    """A project whose agent sends a message to the agent elsewhere, by its tool or by a peer that relays it."""
    await counter.until_up()
    project = folder / "project"
    (project / "agents").mkdir(parents=True)
    (project / "perdure.toml").write_text(SETTINGS + RELAY + TOOL.format(url=counter.url, effect=effect))
    head = "peers: [far]\ntools: []" if is_peer else "tools: [counter]"
    (project / "agents" / "default.md").write_text(f"---\n{head}\n---\nYou count.\n")
    (project / "agents" / "far.md").write_text("---\nmodel: relay:counter\ntools: [counter]\n---\n")
    subtask = {"id": "a", "agent": "far", "instructions": message}
    first = calls(("delegate", {"subtasks": [subtask]}) if is_peer else ("counter", {"message": message}))
    with ScriptedModel(lambda body: [first, FINISH][count_replies(body)]) as model:
        address = client.service_client.config.target_host
        it = Place(client, TaskServer(folder / "none"), Project(project, address, model.base_url))
        try:
            yield it
        finally:
            it.kill_worker()


@pytest.mark.parametrize("effect", ["once", "keyed"])
async def test_a_worker_that_dies_before_the_reply_sends_nothing_twice(
    client: Client, counter: Elsewhere, tmp_path: Path, effect: str
) -> None:
    """Of a `once` call a person is asked; a `keyed` one is found by its context."""
    counter.set("hold-SendMessage")
    async with place(client, counter, tmp_path, "count it", effect) as it:
        it.work()
        run = await it.start()
        await until(lambda: len(counter.task_files) == 1)
        it.kill_worker()
        counter.clear("hold-SendMessage")
        counter.set("end")
        it.work()
        if effect == "once":
            assert await it.question(run) == "resume_unsafe"
            await run.execute_update("answer", {"decision": "use_result", "text": "counted by hand"})
            assert await it.shown(run) == "counted by hand"
        else:
            assert "done: count it" in await it.shown(run)
    assert (counter.count("SendMessage"), len(counter.task_files)) == (1, 1)


@pytest.mark.parametrize(
    ("point", "victim"),
    [("recorded", "worker"), *((point, victim) for point in ("followed", "asked") for victim in ("worker", "agent"))],
)
async def test_a_task_goes_on_after_a_kill_with_one_message(
    client: Client, counter: Elsewhere, tmp_path: Path, point: str, victim: str
) -> None:
    async with place(client, counter, tmp_path, "ask" if point == "asked" else "count it") as it:
        it.work(Trap(Point.after_record) if point == "recorded" else None)
        run = await it.start()
        if point == "recorded":
            worker = it.worker
            await until(lambda: worker is not None and worker.exitcode is not None)  # it has killed itself
            it.worker = None
        elif point == "followed":
            await it.until_checked(run)
        else:
            assert await it.question(run) == "input"
        if victim == "agent":
            counter.kill()
        else:
            it.kill_worker()
        counter.set("end")
        if victim == "agent":
            counter.start()
        else:
            it.work()
        if point == "asked":
            await run.execute_update("answer", {"text": "blue"})
        shown = await it.shown(run)
    assert ("answered blue" if point == "asked" else "done: count it") in shown
    sent = [entry["text"] for entry in counter.log if entry["method"] == "SendMessage"]
    assert sent == (["ask", "blue"] if point == "asked" else ["count it"])
    assert len(counter.task_files) == 1


async def test_a_peer_of_a_delegation_goes_on_after_kills_of_both(
    client: Client, counter: Elsewhere, tmp_path: Path
) -> None:
    async with place(client, counter, tmp_path, "count it", is_peer=True) as it:
        it.work()
        run = await it.start()
        await until(lambda: counter.count("GetTask") > 1)
        counter.kill()
        it.kill_worker()
        counter.set("end")
        counter.start()
        it.work()
        shown = await it.shown(run)
    assert "done: " in shown
    assert "count it" in shown
    assert (counter.count("SendMessage"), len(counter.task_files)) == (1, 1)


async def test_an_answer_is_sent_in_spite_of_a_kill_and_counts_once(
    client: Client, counter: Elsewhere, tmp_path: Path
) -> None:
    async with place(client, counter, tmp_path, "ask") as it:
        it.work()
        run = await it.start()
        assert await it.question(run) == "input"
        counter.kill()
        await run.execute_update("answer", {"text": "blue"})
        it.kill_worker()
        it.work()
        counter.start()
        assert "answered blue" in await it.shown(run)
    answers = {entry["id"] for entry in counter.log if entry["method"] == "SendMessage" and entry["task"]}
    assert len(answers) == 1
