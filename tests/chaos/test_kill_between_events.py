"""Whatever is killed, and whenever: the run goes on to the same outcome, and nothing happens twice."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from perdure.activities.storage.workspace import folder_name
from perdure.client.connection import connect, register_search_attributes
from perdure.client.runs import start_or_get_run
from perdure.commands.demo import serve_site
from perdure.contracts.run.events import StartEvent
from perdure.devserver import embedded_server
from perdure.process.supervisor import CRASH_LOOP
from tests.chaos.killable import Project, home_of

AT_A_TIME = 16  # a call in flight costs its heartbeat timeout, in which nobody computes
PATIENCE = 180.0  # seconds for what takes ten; the machine may have other things to do


@dataclass(frozen=True)
class DemoProject:
    """The worked example's project, and a client of the server it runs on."""

    project: Project
    client: Client
    goal: str

    async def start(self, name: str) -> WorkflowHandle[Any, Any]:
        event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": self.goal}})
        return await start_or_get_run(self.client, name, event, name)

    async def outcome_of(self, run: WorkflowHandle[Any, Any]) -> dict[str, Any]:
        """What must be the same however often a worker died."""
        result = await asyncio.wait_for(run.result(), PATIENCE)
        events = [event async for event in run.fetch_history_events()]
        calls = [
            e.activity_task_scheduled_event_attributes
            for e in events
            if e.HasField("activity_task_scheduled_event_attributes")
        ]
        written = self.project.settings.workspaces / folder_name(run.id.removeprefix("run:")) / "artifacts/critique.md"
        return {
            "event": {**result, "payload": {**result["payload"], "run_id": ""}},
            "completion events": [e.event_type for e in events].count(
                EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
            ),
            "failed tasks": [e.event_type for e in events].count(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED),
            "tools": [
                json.loads(c.input.payloads[0].data)["tool"] for c in calls if c.activity_type.name == "call_tool"
            ],
            "critique": await asyncio.to_thread(written.read_text, encoding="utf-8"),
        }


@contextmanager
def working(demo: DemoProject, task_queue: str) -> Iterator[None]:
    process = demo.project.worker(task_queue)
    try:
        yield
    finally:
        process.kill()
        process.join()


async def holds(run: WorkflowHandle[Any, Any], events: int) -> None:
    """Returns as soon as the history has so many events, or the run has ended."""
    async for event in run.fetch_history_events(wait_new_event=True):
        if event.event_id >= events:
            return


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serve_site() as address:
        yield address


def project_for(site: str, folder: Path, address: str, home: str = "") -> Project:
    toml = f'[worker]\nheartbeat = "6s"\nsticky_timeout = "1s"\n[fetch]\nallow_hosts = ["{site.split("/")[2]}"]\n'
    (folder / "perdure.toml").write_text(toml, encoding="utf-8")
    return Project(folder, address, home=home)


@pytest.fixture(scope="module")
def demo(client: Client, site: str, tmp_path_factory: pytest.TempPathFactory) -> DemoProject:
    project = project_for(site, tmp_path_factory.mktemp("chaos"), client.service_client.config.target_host)
    return DemoProject(project, client, f"fetch web {site} and produce a 2 para critique")


async def test_a_worker_killed_between_any_two_events_changes_nothing(demo: DemoProject) -> None:
    run = await demo.start("unkilled")
    with working(demo, "unkilled"):
        expected = await demo.outcome_of(run)
    assert expected["event"]["type"] == "agent.completed"
    assert expected["tools"] == ["fetch", "write_file"]
    assert (expected["completion events"], expected["failed tasks"]) == (1, 0)
    last = max([event.event_id async for event in run.fetch_history_events()])
    turn = asyncio.Semaphore(AT_A_TIME)

    async def killed_at(events: int) -> dict[str, Any]:
        name = f"killed-at-{events}"
        async with turn:
            run = await demo.start(name)
            with working(demo, name):
                await asyncio.wait_for(holds(run, events), PATIENCE)
            with working(demo, name):
                return await demo.outcome_of(run)

    outcomes = await asyncio.gather(*(killed_at(events) for events in range(1, last + 1)))
    assert last > 30
    changed = {at: {k: said[k] for k in said if said[k] != expected[k]} for at, said in enumerate(outcomes, 1)}
    assert {at: what for at, what in changed.items() if what} == {}


async def test_a_server_killed_in_the_middle_comes_back_and_the_run_completes(site: str, tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "state") as server:
        born = time.monotonic()
        client = await connect(server.address)
        await register_search_attributes(client)
        it = DemoProject(
            project_for(site, tmp_path, server.address, home_of(client)),
            client,
            f"fetch web {site} and produce a 2 para critique",
        )
        run = await it.start("server-killed")
        await asyncio.sleep(max(0.0, born + CRASH_LOOP - time.monotonic()))  # one that dies younger is given up
        with working(it, "server-killed"):
            await holds(run, 15)
            pid = json.loads((tmp_path / "state" / "server.json").read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            outcome = await it.outcome_of(run)
    assert outcome["event"]["type"] == "agent.completed"
    assert (outcome["tools"], outcome["completion events"]) == (["fetch", "write_file"], 1)
