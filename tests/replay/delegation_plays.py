"""Leads and their subtasks, in the scenarios."""

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.contracts.agent import Agent
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls
from tests.replay.scenario import GOAL
from tests.replay.scripts import FINISH
from tests.workflows.conftest import Run, World

LEAD = Agent(name="default", tools=(), peers=("writer",))
WRITER = Agent(name="writer", prompt="I am the writer.", tools=())
PEERS = {"agents": (LEAD, WRITER)}
A, B = ({"id": name, "agent": "writer", "instructions": f"Do {name}."} for name in "ab")
DELEGATE = calls(("delegate", {"subtasks": [A, {**B, "depends_on": ["a"]}]}))
CIRCLE = calls(("delegate", {"subtasks": [{**A, "depends_on": ["b"]}, {**B, "depends_on": ["a"]}]}))
BESIDE = calls(("delegate", {"subtasks": [A, B]}))
ANY = calls(("delegate", {"subtasks": [A, B], "join": "any"}))
SOON = calls(("delegate", {"subtasks": [{**A, "timeout": "200ms"}]}))
OUTSIDE = {
    "agents": (
        Agent(name="default", tools=(), peers=("outsider",)),
        Agent(name="outsider", tools=(), mailbox=True),
    )
}
ASKED = [{**each, "agent": "outsider"} for each in (A, {**B, "timeout": "200ms"})]
BEGUN = {
    "type": "agentic.delegate",
    "run_id": "found",
    "agent": "default",
    "step": 1,
    "depth": 0,
    "max_depth": 3,
    "budget": {"steps": 5},
    "subtasks": [A],
}


def leading(
    delegates: Reply, *, a: ScriptedAnswer = FINISH, b: ScriptedAnswer = FINISH
) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """The lead delegates once, and the writer answers `a` or `b`."""

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if "I am the writer" in str(body["system"]):
            return a if "Do a" in str(body["messages"]) else b
        return FINISH if len(body["messages"]) > 1 else delegates

    return script


def begins_with(name: str) -> Callable[[World], Awaitable[Run]]:
    """A run that delegates; what is recorded is the workflow below it that is called so."""

    async def begin(it: World) -> Run:
        run = await it.start_raw(GOAL)
        below: Run = it.client.get_workflow_handle(f"{run.id}{name}")

        async def is_there() -> bool:
            return (await it.client.count_workflows(f"WorkflowId = '{below.id}'")).count > 0

        await it.until(is_there)
        return below

    return begin


async def finds_its_delegation(it: World) -> Run:
    await it.client.start_workflow("Delegation", BEGUN, id="run:found/delegation:1", task_queue=it.queue)
    return await it.start(run_id="found")


async def waits_for_a_writer(it: World, run: Run) -> None:
    await it.until(lambda: any("I am the writer" in str(request["system"]) for request in it.model.requests))


async def stops_while_delegating(it: World, run: Run) -> None:
    await waits_for_a_writer(it, run)
    await run.signal("cancel", {"reason": "enough"})


async def stops_a_delegation(it: World, run: Run) -> None:
    await waits_for_a_writer(it, run)
    await run.cancel()
