"""Records the histories of this version: `make histories`, or `python -m tests.replay.record`.

Every scenario runs on the real server. Older versions' folders are never touched; this version's is replaced as a
whole, and only when every scenario has ended as its entry says.
"""

import asyncio
import gzip
import logging
import shutil
import sys
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from time import monotonic

from temporalio.client import Client, WorkflowFailureError

from perdure.client.runs import wait_for_run_end
from perdure.process.streams import exit_now
from tests.conftest import SHORT_HISTORY, server
from tests.replay.scenario import Scenario
from tests.replay.scenarios import SCENARIOS
from tests.workflows.conftest import World, worlds

HISTORIES = Path(__file__).parent / "histories"
AT_A_TIME = 6
PATIENCE = 120.0  # seconds for a scenario that takes a few
SUFFIX = ".json.gz"
RETURNING = (
    "EventTopic",
    "Conversation",
    "ModelBatches",
    "Notify",
    "Inbound",
    "Push",
    "SharedCalls",
    "Pauses",
    "ProjectQuestion",
)


@cache
def this_version() -> str:
    """As the checkout has it; an environment may hold the metadata of an older one."""
    project = tomllib.loads((HISTORIES.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])


async def record(scenario: Scenario, client: Client, folder: Path) -> None:
    """Plays one scenario, and writes a file for each execution of its run."""
    with tempfile.TemporaryDirectory() as files:
        tools = [tool() for tool in scenario.tools]
        async with worlds(client, Path(files))(scenario.script, *tools, **scenario.limits) as it:
            if scenario.begins is not None:
                run = await scenario.begins(it)
            else:
                run = await it.start_raw(*scenario.args, workflow_type=scenario.type, **scenario.options)
            await scenario.play(it, run)
            end = await format_end(client, run.id, scenario.type)
            if end != scenario.ends:
                raise AssertionError(f"{scenario.name} ended {end}, not {scenario.ends}")
            executions = await histories(it, run.id)
    for number, json in enumerate(executions, 1):
        name = scenario.name if len(executions) == 1 else f"{scenario.name}.{number}"
        # Stack traces show where the checkout and Python are, which nobody needs and no replay reads.
        neutral = json
        for place, written in ((HISTORIES.parents[2], "/perdure"), (sys.prefix, "/venv"), (sys.base_prefix, "/python")):
            neutral = neutral.replace(str(place), written)
        (folder / f"{name}{SUFFIX}").write_bytes(gzip.compress(neutral.encode(), 9, mtime=0))


async def format_end(client: Client, workflow_id: str, kind: str) -> str:
    """In the words of `Scenario.ends`."""
    if kind == "Reconcile":
        await client.get_workflow_handle(workflow_id).result()
        return "reported"
    ends = (
        "EventTopic",
        "Conversation",
        "ModelBatches",
        "Notify",
        "Inbound",
        "Push",
        "SharedCalls",
        "Pauses",
        "ProjectQuestion",
        "Budgets",
        "Places",
    )
    if kind in ends:
        try:
            await client.get_workflow_handle(workflow_id).result()
        except WorkflowFailureError:
            return "cancelled"
        return "over"
    if kind == "Delegation":
        try:
            result: dict[str, str] = await client.get_workflow_handle(workflow_id).result()
        except WorkflowFailureError:
            return "cancelled"
        return result["status"]
    end = await wait_for_run_end(client, workflow_id)
    why = end.kind or (end.event or {}).get("payload", {}).get("reason")
    return f"{end.status} {why}" if why else end.status


async def histories(it: World, workflow_id: str) -> list[str]:
    """Every execution of a run, the first one first, each as the server has it."""
    last = (await it.client.get_workflow_handle(workflow_id).fetch_history()).run_id
    chain: list[str] = []
    before: str | None = last
    while before:
        history = await it.client.get_workflow_handle(workflow_id, run_id=before).fetch_history()
        chain.insert(0, history.to_json())
        before = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return chain


async def main() -> None:
    logging.disable(logging.CRITICAL)  # what the scenarios provoke is no news
    began = monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder, turn = Path(made), asyncio.Semaphore(AT_A_TIME)
        long, short = await server(), await server(**{"limit.historyCount.suggestContinueAsNew": SHORT_HISTORY})
        async with long, short:

            async def one(scenario: Scenario) -> None:
                async with turn:
                    client = short.client if scenario.rotates else long.client
                    try:
                        await asyncio.wait_for(record(scenario, client, folder), PATIENCE)
                    except Exception as error:
                        error.add_note(f"in the scenario {scenario.name}")
                        raise

            async with asyncio.TaskGroup() as group:
                for scenario in SCENARIOS:
                    group.create_task(one(scenario))
        target = HISTORIES / this_version()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
    files = list(target.iterdir())
    size = sum(file.stat().st_size for file in files)
    print(f"{len(SCENARIOS)} scenarios, {len(files)} histories, {size:,} bytes, {monotonic() - began:.0f} s: {target}")


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    exit_now(0)
