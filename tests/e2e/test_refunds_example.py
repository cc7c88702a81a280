"""The example of a program with Perdure in its worker, as a process of its own, and our commands beside it."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from examples.refunds.refunds import Refund
from perdure.client.errors import RunNotFoundError
from perdure.client.runs import query_run_state
from perdure.converter import data_converter
from perdure.devserver import embedded_server
from perdure.testkit.model_server import ScriptedModel, calls
from tests.waiting import until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "refunds"
ASK = calls(("ask_human", {"question": "Was it broken when it came?"}))
JUSTIFIED = calls(("finish", {"outcome": "it came broken"}))
UNJUSTIFIED = calls(("escalate", {"reason": "it was used for a year"}))


def reply(body: dict[str, Any]) -> Any:
    goal, turns = str(body["messages"][0]["content"]), sum(one["role"] == "assistant" for one in body["messages"])
    if "old" in goal:
        return UNJUSTIFIED
    return JUSTIFIED if turns or "clear" in goal else ASK


@pytest.fixture
async def refunds(make_project: Any) -> AsyncIterator[tuple[Any, Client, str]]:
    project = make_project()
    shutil.copytree(EXAMPLE / "agents", project.folder / "agents")
    with ScriptedModel(reply) as model:
        async with embedded_server(project.home) as server:
            client = await Client.connect(server.address, data_converter=data_converter)
            env = {"ANTHROPIC_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "sk-test"}
            with worker_of(project, TEMPORAL_ADDRESS=server.address, **env):
                yield project, client, server.address


def refunds_process(project: Any, script: Path, **env: str) -> "subprocess.Popen[str]":
    """The program, which finds the Perdure of this checkout where it would find an installed one."""
    own = project.environment({"PYTHONPATH": str(ROOT), **env})
    command = [sys.executable, str(script)]
    return subprocess.Popen(
        command, cwd=project.folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def worker_of(project: Any, **env: str) -> Iterator[None]:
    with refunds_process(project, EXAMPLE / "refunds.py", **env) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "refunds are open\n", process.stderr.read()
            yield
        finally:
            process.kill()


async def test_a_programs_workflow_uses_an_agents_result_and_our_commands_see_the_run(refunds: Any) -> None:
    project, client, address = refunds

    async def asks() -> bool:
        with suppress(RunNotFoundError):  # not started yet
            view = await query_run_state(client, "claim-r2")
            return view is not None and view.question is not None
        return False

    claims = {"r1": "a clear case", "r2": "a mug", "r3": "an old mug", "r4": "a plate"}
    started = [
        await client.start_workflow(Refund.run, claim, id=one, task_queue="perdure") for one, claim in claims.items()
    ]
    await until(asks)
    await started[3].signal(Refund.withdraw, "found it")
    said = await asyncio.to_thread(project.perdure, "answer", "claim-r2", "yes", TEMPORAL_ADDRESS=address)
    assert said.code == 0, said.err
    results = await asyncio.wait_for(asyncio.gather(*(one.result() for one in started)), 60)
    assert results == [
        "paid: a clear case; it came broken",
        "paid: a mug; it came broken",
        "a person decides: it was used for a year",
        "withdrawn",
    ]
    listed = await asyncio.to_thread(project.perdure, "list", TEMPORAL_ADDRESS=address)
    assert {f"claim-{one}" for one in claims} <= set(listed.out.split())


def test_the_page_shows_the_code_of_the_example() -> None:
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    code = (EXAMPLE / "refunds.py").read_text(encoding="utf-8")
    assert [block for block in shown if block not in code] == []
