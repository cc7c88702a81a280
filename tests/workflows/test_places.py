"""Places: so many runs of an agent and calls of a tool at once, over all workers; who waits is held, and visible."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure.activities.effects.held import find_held
from perdure.contracts.agent import Agent
from perdure.contracts.tool import Effect
from perdure.features.places import workflow as places
from perdure.features.places.contract import PlacesState
from perdure.features.places.keeper import read_places
from perdure.features.places.rules import places_id
from perdure.testkit.model_server import calls
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.script import FINISH, by_turn
from tests.workflows.tools import HeldTool

LOOK = calls(("look", {}))
ASK = calls(("ask_human", {"question": "which one?"}))


def clerk(most: int = 1, **more: Any) -> Agent:
    return Agent(name="clerk", max_running=most, **{"tools": ("look",), **more})


async def held(it: World) -> dict[str, str]:
    return {each.workflow_id: each.why async for each in find_held(it.client, it.queue)}


async def until_held(it: World, *runs: Run) -> None:
    async def are_held() -> bool:
        return {run.id for run in runs} == set(await held(it))

    await it.until(are_held)


async def state(it: World) -> PlacesState:
    return await read_places(it.client, it.queue)


def look_then_finish(turn: int) -> Any:
    return LOOK if turn == 0 else FINISH


async def test_the_second_run_of_an_agent_waits_for_the_place_of_the_first(world: MakeWorld) -> None:
    tool = HeldTool("look", Effect.read)
    async with world(by_turn(look_then_finish), tool.tool, agents=[clerk()]) as it:
        first = await it.start(agent="clerk")
        await it.until(tool.started.is_set)
        second, third = await it.start(agent="clerk"), await it.start(agent="clerk")
        await until_held(it, second, third)
        assert set((await held(it)).values()) == {"agent clerk: 1 of 1 at work"}
        other = await it.start()
        tool.go_on.set()
        for run in (first, second, third, other):
            await run.result()
        await it.until(lambda: _is_empty(it))


async def _is_empty(it: World) -> bool:
    return await state(it) == PlacesState()


async def test_a_run_that_waits_for_a_person_gives_its_place_to_another(world: MakeWorld) -> None:
    tool = HeldTool("look", Effect.read)

    def script(body: Any) -> Any:
        asks = "ask" in str(body["messages"][0])
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return FINISH if turn else ASK if asks else LOOK

    async with world(script, tool.tool, agents=[clerk()]) as it:
        asking = await it.start("ask a person", agent="clerk")
        await it.until_state(asking, question=True)
        second = await it.start("look", agent="clerk")
        await it.until(tool.started.is_set)
        await it.answer(asking, text="the red one")
        await until_held(it, asking)
        tool.go_on.set()
        await second.result()
        await asking.result()
        await it.until(lambda: _is_empty(it))


async def test_a_run_that_waits_for_its_subtasks_gives_its_place_to_them(world: MakeWorld) -> None:
    """Else an agent whose subtasks are its own would wait for itself for ever."""

    def script(body: Any) -> Any:
        is_lead = "do it" in str(body["messages"][0])
        if is_lead and len(body["messages"]) == 1:
            task = {"id": "a", "agent": "clerk", "goal": "help", "expected_output": "a line"}
            return calls(("delegate", {"subtasks": [task]}))
        return FINISH

    async with world(script, agents=[clerk(tools=(), peers=("clerk",))]) as it:
        run = await it.start(agent="clerk")
        await asyncio.wait_for(run.result(), 60)


async def test_a_terminated_run_does_not_keep_its_place(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "CHECK_EVERY", places.CHECK_EVERY / 15)
    tool = HeldTool("look", Effect.read)
    async with world(by_turn(look_then_finish), tool.tool, agents=[clerk()]) as it:
        first = await it.start(agent="clerk")
        await it.until(tool.started.is_set)
        second = await it.start(agent="clerk")
        await until_held(it, second)
        await first.terminate("a test")
        tool.go_on.set()
        await second.result()
        it.started.remove(first.id)


async def test_a_cancelled_run_that_waits_is_not_waited_for(world: MakeWorld) -> None:
    tool = HeldTool("look", Effect.read)
    async with world(by_turn(look_then_finish), tool.tool, agents=[clerk()]) as it:
        first = await it.start(agent="clerk")
        await it.until(tool.started.is_set)
        second, third = await it.start(agent="clerk"), await it.start(agent="clerk")
        await until_held(it, second, third)
        await second.signal("cancel", {})
        await it.until(lambda: _is_over(second))
        tool.go_on.set()
        await first.result()
        await asyncio.wait_for(third.result(), 60)


async def _is_over(run: Run) -> bool:
    return (await run.describe()).status is not WorkflowExecutionStatus.RUNNING


async def test_so_many_calls_of_a_tool_are_under_way_at_once(world: MakeWorld) -> None:
    tool = HeldTool("pay", Effect.once)
    script = by_turn(lambda turn: calls(("pay", {})) if turn == 0 else FINISH)
    async with world(script, tool.tool, works=False) as it:
        limited = replace(it, project=replace(it.project, parts={"places": {"pay": 2}}))
        async with limited.worker():
            runs = [await it.start() for _ in range(5)]
            await it.until(lambda: len(tool.calls) == 2)

            async def three_wait() -> bool:
                return sorted((await held(it)).values()) == ["tool pay: 2 of 2 at work"] * 3

            await it.until(three_wait)
            assert len(tool.calls) == 2
            tool.go_on.set()
            for run in runs:
                await run.result()
        assert len(tool.calls) == len(set(tool.keys)) == 5


async def test_the_successor_of_a_terminated_entity_knows_who_has_a_place(world: MakeWorld) -> None:
    tool = HeldTool("look", Effect.read)
    async with world(by_turn(look_then_finish), tool.tool, agents=[clerk()]) as it:
        first = await it.start(agent="clerk")
        await it.until(tool.started.is_set)
        await it.client.get_workflow_handle(places_id(it.queue)).terminate("a test")
        second = await it.start(agent="clerk")
        await until_held(it, second)
        tool.go_on.set()
        await first.result()
        await second.result()
