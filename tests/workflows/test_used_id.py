"""A run id that is used again, as other Temporal clients and cron workflows can: what is derived from it is unique."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from perdure.contracts.agent import Agent
from perdure.contracts.tool import Effect
from perdure.testkit.model_server import ScriptedAnswer, calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.script import FINISH, count_replies

PAY = calls(("pay", {"eur": 5}))
DELEGATE = calls(("delegate", {"subtasks": [{"id": "a", "agent": "writer", "instructions": "Do a."}]}))
START = {"type": "agentic.start", "payload": {"goal": "pay the rent"}}


def pays(body: dict[str, Any]) -> ScriptedAnswer:
    return FINISH if count_replies(body) else PAY


def delegates(body: dict[str, Any]) -> ScriptedAnswer:
    return FINISH if count_replies(body) or "I am writer." in str(body["system"]) else DELEGATE


async def run_again(it: World, start: dict[str, Any], run_id: str) -> None:
    await asyncio.wait_for((await it.start_raw(start, id=f"run:{run_id}")).result(), 30)


def keys_of(tool: ScriptedTool) -> list[str]:
    return [context.idempotency_key for _, context in tool.calls]


@pytest.mark.parametrize("effect", [Effect.keyed, Effect.once], ids=str)
async def test_another_run_under_a_used_id_makes_its_calls_with_keys_of_its_own(
    world: MakeWorld, effect: Effect
) -> None:
    tool, run_id = ScriptedTool("pay", effect=effect), uuid4().hex[:12]
    async with world(pays, tool) as it:
        for _ in range(3):
            await run_again(it, START, run_id)
    first, *later = keys_of(tool)
    assert first == f"agentic:run:{run_id}:step:1:request"
    assert len({first, *later}) == 3
    assert all(key.startswith(f"agentic:run:{run_id}~") and key.endswith(":step:1:request") for key in later)


@pytest.mark.parametrize("effect", [Effect.keyed, Effect.once], ids=str)
async def test_each_tick_of_a_cron_workflow_has_keys_of_its_own(world: MakeWorld, effect: Effect) -> None:
    tool, run_id = ScriptedTool("pay", effect=effect), uuid4().hex[:12]
    async with world(pays, tool) as it:
        run = await it.start_raw(START, id=f"run:{run_id}", cron_schedule="@every 1s")
        await it.until(lambda: len(tool.calls) >= 3)
        await run.terminate()
    assert keys_of(tool)[0] == f"agentic:run:{run_id}:step:1:request"
    assert len(set(keys_of(tool))) == len(tool.calls)


async def test_a_swept_store_does_not_make_an_id_new(world: MakeWorld) -> None:
    tool, run_id = ScriptedTool("pay", effect=Effect.keyed), uuid4().hex[:12]
    async with world(pays, tool) as it:
        for _ in range(2):
            await run_again(it, START, run_id)
            it.project.stores.of(run_id).clear()
    assert len(set(keys_of(tool))) == 2


async def test_another_run_under_a_used_id_delegates_to_new_runs(world: MakeWorld) -> None:
    """Its subtasks are runs of their own, whose results lie in its workspace."""
    lead = Agent(name="lead", tools=(), peers=("writer",))
    writer, run_id = Agent(name="writer", tools=(), prompt="I am writer."), uuid4().hex[:12]
    start = {**START, "payload": {"goal": "lead", "agent": "lead"}}
    async with world(delegates, agents=(lead, writer)) as it:
        for _ in range(2):
            await run_again(it, start, run_id)
        subtask_runs = sum("I am writer." in str(body["system"]) for body in it.model.requests)
        folders = sorted(path.name for path in it.project.workspaces.iterdir())
    assert subtask_runs == 2
    assert len(folders) == 3  # the run's and its two subtasks'
