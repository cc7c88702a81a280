"""Whole workers are killed while they share rotating tokens of three seconds: all calls succeed, with one login."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from perdure.client.connection import connect
from perdure.client.runs import start_or_get_run
from perdure.contracts.run.events import StartEvent
from perdure.decisions.ids import QUESTION_PREFIX
from perdure.features.mcp.offer import open_grants
from perdure.settings import load_settings
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls, says, slow
from tests.activities.test_mcp_grants import login_at_terminal, until_refreshed
from tests.e2e.conftest import make_project, site
from tests.e2e.projects import Json, MakeProject, Project, results_of, serve, turn_of, use_model
from tests.mcp.desk import KEYS
from tests.mcp.oauth import OAuthServer
from tests.waiting import until

__all__ = ["make_project", "site"]  # fixtures

TTL = 3.0  # seconds of a token, which is refreshed when a fifth of them is left
RUNS, CALLS, KILLS = 6, 16, 5
CONFIG = """
[worker]
heartbeat = "2s"
sticky_timeout = "1s"

[mcp.tickets]
auth = "oauth"
"""
AGENT = "---\ntools: [tickets__stock]\nlimits: {max_steps: 100, max_turns: 100}\n---\nYou count.\n"


def reply(body: Json) -> ScriptedAnswer:
    turn = turn_of(body)
    return says("all counted") if turn == CALLS else slow(calls(("tickets__stock", {"article": f"m{turn}"})), 1)


@pytest.fixture
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


class Workers:
    """Three processes of `perdure worker`, with a log each."""

    def __init__(self, project: Project, address: str, stack: ExitStack) -> None:
        self.project = project
        self.environment = project.environment({"TEMPORAL_ADDRESS": address})
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        stack.callback(self.stop)

    def log(self, number: int) -> Path:
        return self.project.folder / f"worker-{number}.log"

    def start(self, number: int) -> None:
        command = [sys.executable, "-m", "perdure.cli", "worker"]
        with self.log(number).open("ab") as log:
            self.processes[number] = subprocess.Popen(
                command, cwd=self.project.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def starts(self) -> int:
        """The number of times that a worker got ready."""
        return sum(self.log(number).read_text().count("worker ready") for number in self.processes)

    def kill(self, number: int) -> None:
        os.kill(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.mark.slow
async def test_three_workers_share_rotating_tokens_while_they_are_killed(
    make_project: MakeProject, oauth: OAuthServer
) -> None:
    with ExitStack() as stack:
        model = stack.enter_context(ScriptedModel(reply))
        project = make_project(PERDURE_CODEC_KEYS=KEYS, **use_model(model))
        entry = {"type": "http", "url": f"{oauth.url}/mcp"}
        servers = json.dumps({"mcpServers": {"tickets": entry}})
        project.write_all({"perdure.toml": CONFIG, "agents/default.md": AGENT, ".mcp.json": servers})
        settings = load_settings(project.environment(), project.folder)
        store = open_grants(settings)
        oauth.ttl = TTL
        await login_at_terminal(oauth, store)
        accepted = await asyncio.to_thread(project.perdure, "tools", "--accept", "tickets")
        assert accepted.code == 0, accepted
        async with serve(project) as served:
            client = await connect(served.address, settings.codec, settings.payloads)
            workers = Workers(project, served.address, stack)
            for number in range(3):
                workers.start(number)
            await until(lambda: workers.starts() == 3)
            event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": "count"}})
            began = time.monotonic()
            runs = [await start_or_get_run(client, settings.task_queue, event, f"r{n}") for n in range(RUNS)]
            for kill in range(KILLS):
                await until_refreshed(oauth)  # a kill after the answer is sent, and before it is stored, costs a login
                await asyncio.sleep(0.3)
                workers.kill(kill % 3)
                workers.start(kill % 3)
            ends = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 240)
            took = time.monotonic() - began
            results = [await results_of(client, run.id.removeprefix("run:")) for run in runs]
            questions = [row.id async for row in client.list_workflows("WorkflowType = 'ProjectQuestion'")]
    assert len(ends) == RUNS
    assert [len(each) for each in results] == [CALLS] * RUNS
    assert all("pieces" in result for each in results for result in each), results
    assert not [name for name in questions if name.startswith(QUESTION_PREFIX)]
    assert (oauth.count("login"), oauth.count("reused"), oauth.families[0].is_revoked) == (1, 0, False)
    # One for each token that was used: never more than one in the shortest time that a token lasts.
    assert KILLS <= oauth.count("refresh") <= took / (TTL * 4 / 5) + 1
    grant = await store.read("tickets")
    assert grant is not None
    assert (grant.ended, grant.generation) == ("", 1)
