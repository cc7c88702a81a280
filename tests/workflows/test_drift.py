"""A run keeps its definition. Where it picks up again after an interruption and finds another one, a person decides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from perdure.contracts.agent import Agent
from perdure.contracts.tool import Effect
from perdure.decisions.tools import builtin_schemas
from perdure.testkit.model_server import calls, fails, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.runs import expect_cancelled
from tests.workflows.script import FINISH, count_replies


def edit_agent(it: World, prompt: str = "Be brief.", **fields: Any) -> None:
    """The next worker's project has another definition of the agent."""
    agent = it.project.agents["default"].evolve(prompt=prompt, **fields)
    it.project = replace(it.project, agents={"default": agent})


@asynccontextmanager
async def interrupt_run(it: World, busy: Any, **change: Any) -> AsyncIterator[Any]:
    """A run whose worker was stopped in the middle of its work, and that a worker of an edit_agent project takes up."""
    it.grace = timedelta(seconds=0.1)
    async with it.worker():
        run = await it.start()
        await it.until(busy)
    edit_agent(it, **change)
    async with it.worker():
        yield run


class HangsOnce:
    """The first model call hangs until its worker is stopped."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = answers, 0

    def __call__(self, body: dict[str, Any]) -> Any:
        self.asked += 1
        return slow(says("never heard"), 30) if self.asked == 1 else self.answers[count_replies(body)]


def system_prompts(it: World) -> list[str]:
    return [request["system"][0]["text"] for request in it.model.requests]


@pytest.mark.parametrize(
    ("decision", "system"),
    [("use_new", "You are tested.\n\nBe brief."), ("keep_old", "You are tested.")],
)
async def test_a_person_decides_which_definition_an_interrupted_run_goes_on_with(
    world: MakeWorld, decision: str, system: str
) -> None:
    script = HangsOnce(calls(("look", {})), FINISH)
    async with (
        world(script, ScriptedTool("look"), works=False) as it,
        interrupt_run(it, lambda: script.asked == 1) as run,
    ):
        state = await it.until_state(run, question=True)
        assert (state["question"]["kind"], state["question"]["options"]) == (
            "definition_changed",
            ["use_new", "keep_old", "stop"],
        )
        assert "+Be brief." in state["question"]["text"]
        assert len(it.model.requests) == 1
        await run.execute_update("answer", {"decision": decision})
        await run.result()
        assert system_prompts(it)[1:] == [system, system]
        assert await it.failed_tasks(run) == 0


async def test_a_person_may_stop_a_run_whose_definition_changed(world: MakeWorld) -> None:
    script = HangsOnce(FINISH)
    async with world(script, works=False) as it, interrupt_run(it, lambda: script.asked == 1) as run:
        await it.answer(run, decision="stop", by="eva")
        await expect_cancelled(run)
        assert len(it.model.requests) == 1


async def test_a_read_that_was_lost_runs_again_and_the_next_turn_asks(world: MakeWorld) -> None:
    started: list[int] = []

    async def look(arguments: Any, context: Any) -> str:
        started.append(1)
        if len(started) == 1:
            await asyncio.Event().wait()
        return "seen"

    tool = ScriptedTool("look", look)
    async with (
        world([calls(("look", {})), FINISH], tool, works=False) as it,
        interrupt_run(it, lambda: bool(started)) as run,
    ):
        state = await it.until_state(run, question=True)
        assert (state["question"]["kind"], state["completed_steps"]) == ("definition_changed", [1])
        await run.execute_update("answer", {"decision": "keep_old"})
        await run.result()
    assert len(started) == 2


async def test_a_changed_tool_is_a_changed_definition_and_the_difference_names_it(world: MakeWorld) -> None:
    script = HangsOnce(FINISH)
    tools = (ScriptedTool("look"), ScriptedTool("charge", effect=Effect.once))
    async with (
        world(script, *tools, allowed=["look"], works=False) as it,
        interrupt_run(it, lambda: script.asked == 1, prompt="", tools=("look", "charge")) as run,
    ):
        state = await it.until_state(run, question=True)
        assert "+tool charge: " in state["question"]["text"]
        assert "tool look" not in state["question"]["text"].replace("\n tool look", "")
        await run.execute_update("answer", {"decision": "use_new"})
        await run.result()
        assert "charge" in [tool["name"] for tool in it.model.requests[-1]["tools"]]


async def test_an_interruption_without_an_edit_asks_nothing(world: MakeWorld) -> None:
    script = HangsOnce(FINISH)
    async with (
        world(script, works=False) as it,
        interrupt_run(it, lambda: script.asked == 1, prompt="") as run,
    ):
        assert (await run.result())["type"] == "agent.completed"
        assert (await it.state(run))["question"] is None


async def test_other_descriptions_of_built_in_tools_are_no_changed_definition(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are code, as the next release has them; the run goes on with the descriptions it has."""
    script = HangsOnce(FINISH)
    offered = builtin_schemas(delegates=False, journal=True, follow_ups=False)
    older = tuple(schema.evolve(description=f"{schema.description} So.") for schema in offered)
    async with world(script, works=False) as it:
        with monkeypatch.context() as release:
            release.setattr("perdure.decisions.tools.all_schemas", lambda: older[:-1])
            it.grace = timedelta(seconds=0.1)
            async with it.worker():
                run = await it.start()
                await it.until(lambda: script.asked == 1)
        async with it.worker():
            await it.until(lambda: script.asked == 2)
            assert (await run.result())["type"] == "agent.completed"
        first, last = ([tool["name"] for tool in request["tools"]] for request in it.model.requests)
        assert first == last == [schema.name for schema in older[:-1]]


async def test_an_edit_without_an_interruption_asks_nothing_and_changes_nothing(world: MakeWorld) -> None:
    async with world([calls(("ask_human", {"question": "Which?"})), FINISH], works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        edit_agent(it)
        async with it.worker():
            await run.execute_update("answer", {"text": "the first"})
            assert (await run.result())["type"] == "agent.completed"
        assert system_prompts(it) == ["You are tested."] * 2


async def test_a_resumed_run_that_finds_its_agent_changed_asks(world: MakeWorld) -> None:
    broken = [True]

    def script(body: dict[str, Any]) -> Any:
        return fails(status=401, type="authentication_error") if broken else FINISH

    async with world(script, works=False) as it:
        async with it.worker():
            run = await it.start()
            with pytest.raises(WorkflowFailureError):
                await run.result()
        broken.clear()
        edit_agent(it)
        async with it.worker():
            again = await it.resume(run)
            state = await it.until_state(again, question=True)
            assert state["question"]["kind"] == "definition_changed"
            await again.execute_update("answer", {"decision": "use_new"})
            await again.result()
        assert system_prompts(it)[-1] == "You are tested.\n\nBe brief."


async def test_a_run_whose_agent_is_gone_asks_a_person(world: MakeWorld) -> None:
    script = HangsOnce(FINISH)
    async with world(script, works=False, grace=timedelta(seconds=0.1)) as it:
        it.project = replace(it.project, agents={**it.project.agents, "writer": Agent(name="writer", tools=())})
        async with it.worker():
            run = await it.start(agent="writer")
            await it.until(lambda: script.asked == 1)
        it.project = replace(it.project, agents={"default": it.project.agents["default"]})
        async with it.worker():
            state = await it.until_state(run, question=True)
            assert state["question"]["text"] == "agent 'writer' is not in the project any more"
            await run.execute_update("answer", {"decision": "keep_old"})
            assert (await run.result())["type"] == "agent.completed"


async def test_a_turn_that_was_merely_too_long_is_no_interruption(world: MakeWorld) -> None:
    script = HangsOnce(FINISH)
    async with world(script, works=False, turn_timeout="1s") as it, it.worker():
        run = await it.start()
        await it.until(lambda: script.asked == 1)
        edit_agent(it)
        assert (await run.result())["type"] == "agent.completed"


async def test_a_project_that_has_moved_on_since_the_question_is_asked_about_again(world: MakeWorld) -> None:
    script = HangsOnce(FINISH)
    async with world(script, works=False) as it, interrupt_run(it, lambda: script.asked == 1) as run:
        await it.until_state(run, question=True)
        assert isinstance(it.project.agents, dict)  # of the worker that is at work
        it.project.agents["default"] = it.project.agents["default"].evolve(prompt="Charge twice.")
        await run.execute_update("answer", {"question_id": "q1", "decision": "use_new"})
        state = await it.until_state(run, question=True)
        assert state["question"]["id"] == "q2"
        await run.execute_update("answer", {"decision": "stop"})
        with pytest.raises(WorkflowFailureError):
            await run.result()
        assert len(it.model.requests) == 1
