"""Delegation: a DAG of child runs, what becomes of their ends, and what the whole tree may use."""

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from perdure.activities.security import Secrets
from perdure.activities.telemetry.attributes import AGENT_NAME
from perdure.client.details import RunRecord, read_details
from perdure.client.run_list import RunInfo, find_run, iterate_runs, list_subtree
from perdure.client.watch import Watch
from perdure.contracts.agent import Agent
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.tool import Effect, ToolOutcome
from perdure.decisions import ids
from perdure.features.delegation.events import DelegationFinished
from perdure.features.delegation.rules import CONTEXT
from perdure.terminal.event_lines import format_event
from perdure.terminal.report import print_tree
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, fails, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World, connect_encrypted
from tests.workflows.runs import cancel_run, count_upserts, expect_cancelled, failure_of, result_of
from tests.workflows.script import agent_of, count_replies

Script = Callable[[dict[str, Any]], ScriptedAnswer]


def agent(name: str, *peers: str, tools: tuple[str, ...] = (), **limits: Any) -> Agent:
    """Its prompt names it, so that a script knows whom it answers."""
    own = LimitOverrides.model_validate(limits)
    return Agent(name=name, prompt=f"I am {name}.", description=f"does {name}", tools=tools, peers=peers, limits=own)


def task(name: str, who: str = "writer", *needs: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "agent": who, "instructions": f"Do {name}.", "depends_on": list(needs), **fields}


def delegates(*tasks: dict[str, Any], **more: Any) -> Reply:
    return calls(("delegate", {"subtasks": list(tasks), **more}))


def goal_of(body: dict[str, Any]) -> str:
    """The first message: the goal."""
    text: str = body["messages"][0]["content"][0]["text"]
    return text


def script(lead: list[ScriptedAnswer], peer: Script) -> Script:
    """The lead goes by the list; all others do what `peer` says."""
    return lambda body: lead[count_replies(body)] if agent_of(body) == "lead" else peer(body)


def finishes(body: dict[str, Any]) -> Reply:
    name = goal_of(body).partition('subtask_id: "')[2].partition('"')[0]
    return calls(("finish", {"outcome": f"{name} is done"}))


LEAD = agent("lead", "writer")
WRITER = agent("writer")
FINISH = calls(("finish", {"outcome": "all done"}))


async def tree(it: World, run: Run) -> dict[str, Any]:
    """All workflows of the run's tree, by id, once none of them is open; and they are replayed with it."""
    below = f"WorkflowId STARTS_WITH '{run.id}'"

    found: dict[str, Any] = {}

    async def are_closed() -> bool:
        rows = [each async for each in it.client.list_workflows(below)]
        found.update({row.id: row for row in rows})
        return run.id in found and all(row.close_time for row in rows)

    await it.until(are_closed)
    it.started.extend(found)
    return found


async def subtree(it: World, run_id: str) -> list[tuple[int, RunInfo]]:
    """The subtasks of a run, once the server lists one."""
    root = await find_run(it.client, run_id)

    async def is_listed() -> bool:
        return bool(await list_subtree(it.client, root))

    await it.until(is_listed)
    return await list_subtree(it.client, root)


def child_of(it: World, run: Run, name: str = "a") -> Run:
    """The run of a subtask of the first delegation."""
    return it.client.get_workflow_handle(f"{run.id}.1-{name}")


async def test_subtasks_run_in_the_order_of_their_needs_with_earlier_results(world: MakeWorld) -> None:
    dag = delegates(task("a"), task("b"), task("c", "writer", "a", "b", expected_output="one line"))
    async with world(script([dag, FINISH], finishes), agents=[LEAD, WRITER]) as it:
        run = await it.start(agent="lead")
        event = await result_of(run)
        assert event["payload"]["outcome"] == "all done"
        goals = [goal_of(body) for body in it.model.requests if agent_of(body) == "writer"]
        assert len(goals) == 3
        assert goals[2] == (
            f'---\ntype: "task"\ntask_id: "{run.id[4:]}.1"\nsubtask_id: "c"\nfrom: "lead"\n'
            f'expected_output: "one line"\n---\n\nDo c.\n\n{CONTEXT}\n\n'
            "## Result of a (by writer)\n\n```\na is done\n```\n\n"
            "## Result of b (by writer)\n\n```\nb is done\n```"
        )
        (brought, _) = await it.shown(run)
        assert '{"id":"c","agent":"writer","status":"done","outcome":"c is done"}' in brought
        found = await tree(it, run)
        assert set(found) == {run.id, f"{run.id}/delegation:1", *(f"{run.id}.1-{name}" for name in "abc")}
        assert all(each.status is WorkflowExecutionStatus.COMPLETED for each in found.values())
        assert [await it.failed_tasks(it.client.get_workflow_handle(name)) for name in found] == [0] * 5
        peer = child_of(it, run)
        assert (await peer.describe()).typed_search_attributes.get(AGENT_NAME) == "writer"
        assert [await count_upserts(each) for each in (run, peer)] == [1, 1]  # at the end


async def test_only_an_agent_with_peers_can_delegate(world: MakeWorld) -> None:
    answers = script(
        [delegates(task("a")), FINISH], lambda body: [delegates(task("x")), says("no")][count_replies(body)]
    )
    async with world(answers, agents=[LEAD, WRITER]) as it:
        run = await it.run_to_end(agent="lead")
        lead, writer = (next(b for b in it.model.requests if agent_of(b) == name) for name in ("lead", "writer"))
        assert "- `writer`: does writer" in str(lead["system"])
        assert "delegate" in [tool["name"] for tool in lead["tools"]]
        assert "peers" not in str(writer["system"])
        assert "delegate" not in [tool["name"] for tool in writer["tools"]]
        child = child_of(it, run)
        assert (await it.shown(child))[0].startswith("unknown_tool: there is no tool 'delegate' here")
        await tree(it, run)


CYCLE = (task("a", "writer", "c"), task("b", "writer", "a"), task("c", "writer", "b"))


@pytest.mark.parametrize(
    ("tasks", "limits", "said"),
    [
        (CYCLE, {}, "invalid_arguments: subtasks wait for each other: a -> c -> b -> a"),
        ([task("a", "writer", "a")], {}, "invalid_arguments: a depends on itself"),
        ([task("a", "writer", "z")], {}, "invalid_arguments: a depends on 'z', and there is no such subtask"),
        ([task("a"), task("a")], {}, "invalid_arguments: two subtasks are called 'a'"),
        ([task("a", "nobody")], {}, "unknown_agent: a: 'nobody' is none of your peers: writer"),
        ([task("a", "default")], {}, "unknown_agent: a: 'default' is none of your peers: writer"),
        ([task("../a")], {}, "invalid_arguments: subtasks.0.id: String should match pattern"),
        ([], {}, "invalid_arguments: subtasks: Tuple should have at least 1 item"),
        ([task(str(n)) for n in range(11)], {}, "too_many: 11 subtasks are too many: 10 at a time are the most"),
        ([task(str(n)) for n in range(2000)], {}, "too_many: 2000 subtasks are too many"),
        (
            [task(str(n)) for n in range(20)],
            {"max_steps": 6, "max_fanout": 20},
            "budget: over budget: 20 subtasks, and what is left is enough for 5 of them",
        ),
    ],
)
async def test_a_delegation_that_cannot_be_made_is_an_error_and_starts_nothing(
    world: MakeWorld, tasks: list[dict[str, Any]], limits: dict[str, Any], said: str
) -> None:
    async with world(script([delegates(*tasks), FINISH], finishes), agents=[LEAD, WRITER], **limits) as it:
        run = await it.run_to_end(agent="lead")
        assert (await it.shown(run))[0].startswith(said)
        assert set(await tree(it, run)) == {run.id}


async def test_a_failed_subtask_cancels_the_rest_and_the_parent_hears_which_and_why(world: MakeWorld) -> None:
    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        if "Do bad" in goal_of(body):
            return calls(("escalate", {"reason": "no pen"}))
        return slow(says("late"), 60) if "Do long" in goal_of(body) else finishes(body)

    dag = delegates(task("good"), task("long"), task("bad", "writer", "good"), task("never", "writer", "bad"))
    async with world(script([dag, FINISH], peer), agents=[LEAD, WRITER]) as it:
        run = await it.run_to_end(agent="lead")
        (said, _) = await it.shown(run)
        assert said == (
            "subtask_failed: subtask bad (writer) escalated: asked: no pen\n"
            "With it the whole delegation has failed: long cancelled, bad escalated, never waiting\n"
            'Done before: [{"id": "good", "agent": "writer", "status": "done", "outcome": "good is done"}]'
        )
        found = await tree(it, run)
        assert found[f"{run.id}.1-long"].status is WorkflowExecutionStatus.CANCELED
        assert f"{run.id}.1-never" not in found
        state = await it.state(run)
        assert state["delegated"]["steps"] == 0
        assert state["delegated"]["tokens"] > 0


@pytest.mark.parametrize("end", ["failed", "terminated", "cancelled", "timed out", "out of time"])
async def test_however_a_subtask_ends_badly_the_parent_hears_it(world: MakeWorld, end: str) -> None:
    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        if end == "out of time":
            return calls(("work", {}))
        return fails(401) if end == "failed" else slow(says("late"), 60)

    async def work(arguments: Any, context: Any) -> str:
        await asyncio.sleep(0.5)  # of active time
        return "worked"

    timeout = {"timeout": "1s"} if end == "timed out" else {}
    limits = {"soft_limit": "1h", "hard_limit": "400ms"} if end == "out of time" else {}
    writer = agent("writer", tools=("work",), **limits)
    answers = script([delegates(task("a", **timeout)), FINISH], peer)
    async with world(answers, ScriptedTool("work", work), agents=[LEAD, writer]) as it:
        run = await it.start(agent="lead")
        child = child_of(it, run)
        await it.until(lambda: len(it.model.requests) >= 2)
        if end == "terminated":
            await child.terminate("by hand")
        if end == "cancelled":
            await child.signal("cancel", {"reason": "not needed"})
        await result_of(run)
        reasons = {
            "failed": "failed: ModelRefused",
            "terminated": "was terminated: somebody terminated it in Temporal",
            "cancelled": "was cancelled: it was cancelled",
            "timed out": "timed out: its time of 0:00:01 was used up",
            "out of time": "timed out: HardLimit",
        }
        assert (await it.shown(run))[0].startswith(f"subtask_failed: subtask a (writer) {reasons[end]}")
        await tree(it, run)


async def test_of_any_the_first_that_is_done_ends_the_others(world: MakeWorld) -> None:
    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        if "Do first" in goal_of(body):
            return finishes(body)
        return calls(("escalate", {"reason": "no"})) if "Do bad" in goal_of(body) else slow(says("late"), 60)

    dag = delegates(task("bad"), task("slow"), task("first", "writer"), join="any")
    async with world(script([dag, FINISH], peer), agents=[LEAD, WRITER]) as it:
        run = await it.run_to_end(agent="lead")
        (said, _) = await it.shown(run)
        assert '"status":"done","outcome":"first is done"' in said
        assert (await tree(it, run))[f"{run.id}.1-slow"].status is WorkflowExecutionStatus.CANCELED


async def test_a_child_uses_no_tool_that_its_definition_lacks(world: MakeWorld) -> None:
    """Whatever its instructions say, and whatever the lead may do."""
    look = ScriptedTool("look")
    answers = script(
        [delegates(task("a")), FINISH], lambda body: [calls(("look", {})), says("no")][count_replies(body)]
    )
    async with world(answers, look, agents=[agent("lead", "writer", tools=("look",)), WRITER]) as it:
        run = await it.run_to_end(agent="lead")
        child = child_of(it, run)
        assert (await it.shown(child))[0].startswith("unknown_tool: there is no tool 'look' here")
        assert look.calls == []
        await tree(it, run)


async def test_files_of_a_subtask_are_there_for_those_that_need_them_and_for_the_lead(world: MakeWorld) -> None:
    def write(arguments: Any, context: Any) -> ToolOutcome:
        context.workspace.write("artifacts/page.md", b"# Page")
        return ToolOutcome(result="written", artifacts=("artifacts/page.md",))

    def read(arguments: Any, context: Any) -> str:
        with context.workspace.open("artifacts/a/page.md") as file:
            return str(file.read().decode())

    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        tool = "write" if "Do a" in goal_of(body) else "read"
        return [calls((tool, {})), finishes(body)][count_replies(body)]

    tools = (ScriptedTool("write", write), ScriptedTool("read", read))
    dag = delegates(task("a"), task("b", "writer", "a"))
    async with world(
        script([dag, FINISH], peer), *tools, agents=[LEAD, agent("writer", tools=("write", "read"))]
    ) as it:
        run = await it.start(agent="lead")
        event = await result_of(run)
        assert event["payload"]["artifacts"] == ["artifacts/a/page.md"]
        own = it.project.workspace(run.id.removeprefix("run:"))
        assert own.read_own("artifacts/a/page.md") == b"# Page"
        assert (await it.shown(child_of(it, run, "b")))[0] == "# Page"
        assert any("Files, in your workspace:\n- artifacts/a/page.md" in goal_of(body) for body in it.model.requests)
        await tree(it, run)


async def test_delegations_end_at_the_depth_that_the_first_run_sets(world: MakeWorld) -> None:
    """Each agent has the next one as its peer, and only hands on."""
    depth = 2
    agents = [agent(f"a{n}", f"a{n + 1}", max_depth=9) for n in range(5)]

    def hands_on(body: dict[str, Any]) -> ScriptedAnswer:
        may = "delegate" in [tool["name"] for tool in body["tools"]]
        number = int(agent_of(body)[1:])
        return delegates(task("x", f"a{number + 1}")) if may and not count_replies(body) else says(f"a{number} did it")

    async with world(hands_on, agents=[*agents, agent("a5")]) as it:
        run = await it.start(agent="a0", limits={"max_depth": depth})
        await result_of(run)
        agents_asked = {agent_of(body) for body in it.model.requests}
        assert agents_asked == {"a0", "a1", "a2"}
        await tree(it, run)


async def test_a_spawn_bomb_uses_no_more_than_the_budget_of_the_first_run(world: MakeWorld) -> None:
    """Every agent delegates to as many copies of itself as it can, over and over."""

    def bomb(body: dict[str, Any]) -> ScriptedAnswer:
        names = [tool["name"] for tool in body["tools"]]
        if "delegate" in names:
            wide = [4, 3, 2, 1][count_replies(body) % 4]
            return delegates(*[task(f"t{count_replies(body)}-{n}", "bomb") for n in range(wide)])
        return calls(("look", {"n": count_replies(body)}))

    bomber = agent("bomb", "bomb", tools=("look",))
    async with world(bomb, ScriptedTool("look"), agents=[bomber], max_steps=25) as it:
        run = await it.start(agent="bomb")
        event = await result_of(run)
        assert event["payload"]["reason"] == "step_budget"
        found = await tree(it, run)
        states = [await it.client.get_workflow_handle(name).query("state") for name in found if "/" not in name[-14:]]
        steps = sum(state["step"] for state in states if "step" in state)
        assert {"door": "delegation"} in [state.get("sender") for state in states]
        assert steps <= 25
        assert all(each.status is not WorkflowExecutionStatus.RUNNING for each in found.values())
        root = await it.state(run)
        assert root["step"] + root["delegated"]["steps"] == steps


async def test_a_tree_goes_beyond_its_tokens_by_a_call_at_most(world: MakeWorld) -> None:
    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        return calls(("look", {"n": count_replies(body)}))

    budget = 40_000
    look = ScriptedTool("look", lambda arguments, _: "lorem ipsum " * 20)
    dag = delegates(*[task(str(n)) for n in range(5)])
    async with world(
        script([dag, FINISH], peer),
        look,
        agents=[LEAD, agent("writer", tools=("look",))],
        budget_tokens=budget,
        max_steps=500,
    ) as it:
        run = await it.run_to_end(agent="lead")
        assert "token_budget" in (await it.shown(run))[0]
        state = await it.state(run)
        total = sum(state["usage"].values()) + state["delegated"]["tokens"]
        largest = max(part["about"]["usage"]["input"] for part in await it.parts(run) if part["kind"] == "reply")
        assert budget / 3 < total <= budget + largest
        await tree(it, run)


async def test_a_budget_of_tokens_for_a_few_is_refused_to_many(world: MakeWorld) -> None:
    dag = delegates(*[task(str(n)) for n in range(20)])
    async with world(
        script([dag, FINISH], finishes), agents=[LEAD, WRITER], budget_tokens=12_000, max_steps=99, max_fanout=20
    ) as it:
        run = await it.run_to_end(agent="lead")
        assert (await it.shown(run))[0].startswith("budget: over budget: 20 subtasks, and what is left is enough for ")
        assert set(await tree(it, run)) == {run.id}


def branches(body: dict[str, Any], leaf: Script) -> ScriptedAnswer:
    """One lead, five chiefs, five writers each."""
    match agent_of(body):
        case "lead":
            return [delegates(*[task(f"c{n}", "chief") for n in range(5)]), FINISH][count_replies(body)]
        case "chief":
            return [delegates(*[task(f"w{n}") for n in range(5)]), FINISH][count_replies(body)]
        case _:
            return leaf(body)


OF_ONE = {  # the input of a delegation, but for its run
    "agent": "lead",
    "step": 1,
    "depth": 0,
    "max_depth": 3,
    "budget": {"steps": 5},
    "subtasks": [task("a")],
}
TREE = (agent("lead", "chief"), agent("chief", "writer"))
WIDE = {"max_steps": 500}


@pytest.mark.parametrize("door", ["signal", "native", "terminate"])
async def test_a_cancel_of_the_root_leaves_no_run_of_the_tree_and_no_effect_after_it(
    world: MakeWorld, door: str
) -> None:
    made: list[str] = []

    async def work(arguments: Any, context: Any) -> str:
        await asyncio.sleep(0.2)
        made.append(context.run_id)
        return "worked"

    def leaf(body: dict[str, Any]) -> ScriptedAnswer:
        return calls(("work", {"n": count_replies(body)}))

    tool = ScriptedTool("work", work, effect=Effect.once)
    async with world(
        lambda body: branches(body, leaf), tool, agents=[*TREE, agent("writer", tools=("work",))], **WIDE
    ) as it:
        run = await it.start(agent="lead")
        await it.until(lambda: len(set(made)) == 25)
        if door == "terminate":
            await run.terminate()
        else:
            await cancel_run(run, door)
            await expect_cancelled(run)
        found = await tree(it, run)
        before = len(made)
        assert len(found) == 31 + 6
        expected = {WorkflowExecutionStatus.CANCELED, WorkflowExecutionStatus.TERMINATED}
        assert {each.status for name, each in found.items() if name != run.id} == {WorkflowExecutionStatus.CANCELED}
        assert {each.status for each in found.values()} <= expected
        await asyncio.sleep(1)  # five times what a call takes: nothing is at work any more
        assert len(made) == before


async def test_three_levels_with_a_failure_a_timeout_and_a_cancel_in_them(world: MakeWorld) -> None:
    """Each stays in its branch, and the lead hears of the first: its other branches are stopped."""

    def answers(body: dict[str, Any]) -> ScriptedAnswer:
        if agent_of(body) == "lead":
            first = delegates(*[task(f"c{n}", "chief") for n in range(5)], join="any")
            return [first, FINISH][count_replies(body)]
        if agent_of(body) == "chief":
            number = goal_of(body).partition("Do c")[2][0]
            writers = [task(f"w{n}-of-{number}") for n in range(4)]
            extra = {"1": {"agent": "refuser"}, "2": {"agent": "sleeper", "timeout": "1s"}, "3": {"agent": "sleeper"}}
            last = {**task(f"x-of-{number}"), **extra.get(number, {})}
            ends = calls(("escalate", {"reason": f"chief {number} cannot"}))
            failed = "subtask_failed" in str(body["messages"])
            return delegates(*writers, last) if not count_replies(body) else ends if failed else FINISH
        match agent_of(body):
            case "refuser":
                return fails(401)
            case "sleeper":
                return slow(says("late"), 60)
            case _:
                return slow(finishes(body), 2)

    agents = [TREE[0], agent("chief", "writer", "refuser", "sleeper"), WRITER, agent("refuser"), agent("sleeper")]
    async with world(answers, agents=agents, max_steps=500) as it:
        run = await it.start(agent="lead")
        sleeper = it.client.get_workflow_handle(f"{run.id}.1-c3.1-x-of-3")
        await it.until(lambda: any("Do x-of-3" in goal_of(body) for body in it.model.requests))
        await sleeper.signal("cancel", {"reason": "enough"})
        await result_of(run)
        (said, _) = await it.shown(run)
        assert said.startswith('{"subtasks":[')
        found = await tree(it, run)
        assert all(each.status is not WorkflowExecutionStatus.RUNNING for each in found.values())
        root = await find_run(it.client, run.id)
        found_below = (await read_details(it.client, root.run_id)).subtasks
        assert found_below is not None
        assert [each.depth for each in found_below if each.agent == "chief"] == [1] * 5
        assert all(each.depth == 2 for each in found_below if each.agent != "chief")
        assert [found.run_id async for found in iterate_runs(it.client) if found.run_id.startswith(root.run_id)] == [
            root.run_id
        ]
        page = StringIO()
        print_tree(Console(file=page, width=160), found_below)
        assert re.search(rf"\n      {root.run_id}.1-c3.1-x-of-3 +cancelled +sleeper +0 steps", page.getvalue())
        chiefs = [it.client.get_workflow_handle(f"{run.id}.1-c{n}/delegation:1") for n in range(5)]
        whys = [(await chief.query("state"))["why"] for chief in chiefs]
        assert "failed: ModelRefused" in whys[1]
        assert "timed out" in whys[2]
        assert "was cancelled" in whys[3]


async def test_another_worker_goes_on_with_a_delegation_and_dispatches_nothing_twice(world: MakeWorld) -> None:
    made: list[str] = []
    go_on = asyncio.Event()

    async def work(arguments: Any, context: Any) -> str:
        made.append(context.run_id)
        await go_on.wait()
        return "worked"

    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        return [calls(("work", {})), finishes(body)][count_replies(body)]

    tool = ScriptedTool("work", work, effect=Effect.keyed)
    dag = delegates(task("a"), task("b"), task("c", "writer", "a", "b"))
    async with world(
        script([dag, FINISH], peer), tool, agents=[LEAD, agent("writer", tools=("work",))], works=False
    ) as it:
        async with it.worker():
            run = await it.start(agent="lead")
            await it.until(lambda: len(made) == 2)
            go_on.set()  # a worker that leaves waits for its activities
        async with it.worker(await it.another_client()):
            await result_of(run)
        assert sorted(made) == [f"{run.id[4:]}.1-{name}" for name in "abc"]
        await tree(it, run)
        await it.replay()


async def test_a_run_that_goes_on_finds_the_delegation_that_was_begun_before_it(world: MakeWorld) -> None:
    """As a resumed run does: its call keeps the key of the run that first made it."""
    dag = delegates(task("a"))
    async with world(script([dag, FINISH], finishes), agents=[LEAD, WRITER]) as it:
        run_id = uuid4().hex[:12]
        request = {**OF_ONE, "run_id": run_id}
        existing = await it.start_raw(request, workflow_type="Delegation", id=f"run:{run_id}/delegation:1")
        run = await it.start(agent="lead", run_id=run_id)
        await result_of(run)
        assert '"outcome":"a is done"' in (await it.shown(run))[0]
        assert sum(agent_of(body) == "writer" for body in it.model.requests) == 1
        assert (await it.state(run))["delegated"]["tokens"] > 0
        assert set(await tree(it, run)) == {run.id, existing.id, f"{run.id}.1-a"}


async def test_a_run_resumed_after_a_timeout_hears_that_its_delegation_was_cut_short(world: MakeWorld) -> None:
    """Nothing is dispatched again by itself; whether to delegate anew is the model's to say."""
    answers = script([delegates(task("a")), FINISH], lambda _: slow(says("late"), 60))
    async with world(answers, agents=[LEAD, WRITER]) as it:
        goal = {"type": "agentic.start", "payload": {"goal": "do it", "agent": "lead"}}
        run = await it.start_raw(goal, execution_timeout=timedelta(seconds=3))
        with pytest.raises(WorkflowFailureError):
            await result_of(run)
        again = await it.resume(run)
        await result_of(again)
        assert "subtask_failed: subtask a (writer) was cancelled" in (await it.shown(again))[0]
        found = await tree(it, run)
        assert found[f"{run.id}.1-a"].status is WorkflowExecutionStatus.CANCELED
        assert sum(agent_of(body) == "writer" for body in it.model.requests) == 1


STRANGE = [
    {**OF_ONE, "run_id": "x", "subtasks": tasks} for tasks in (CYCLE, (task("a", "writer", "z"),), (task("a"),) * 2)
]


@pytest.mark.parametrize("args", [(), ({"type": "agentic.delegate"},), (5, 6), *((each,) for each in STRANGE)])
async def test_a_bad_input_of_a_delegation_ends_it_and_a_foreign_signal_is_ignored(world: MakeWorld, args: Any) -> None:
    async with world([]) as it:
        run = await it.start_raw(*args, workflow_type="Delegation", start_signal="no_such", start_signal_args=[1, 2])
        assert (await failure_of(run)).type == "InvalidInput"
        assert await it.failed_tasks(run) == 0


async def test_a_resumed_subtask_that_may_not_delegate_is_no_changed_definition(world: MakeWorld) -> None:
    """It gets no list of peers at the greatest depth; that is no drift (B10)."""

    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        return fails(401, then=says("done after all"))

    async with world(
        script([delegates(task("a")), FINISH], peer), agents=[LEAD, agent("writer", "lead")], max_depth=1
    ) as it:
        run = await it.run_to_end(agent="lead")
        again = await it.resume(child_of(it, run))
        event = await result_of(again)
        assert event["payload"]["outcome"] == "done after all"
        assert (await it.state(again))["parent"] == run.id.removeprefix("run:")
        await tree(it, run)


async def test_the_reconciler_leaves_runs_of_an_open_delegation_alone(world: MakeWorld) -> None:
    async with world(
        script([delegates(task("a")), FINISH], lambda _: slow(says("late"), 4)), agents=[LEAD, WRITER]
    ) as it:
        run = await it.start(agent="lead")
        await it.until(lambda: len(it.model.requests) == 2)
        look = await it.start_raw({}, workflow_type="Reconcile")
        report = await result_of(look)
        assert "orphaned" not in report["found"]
        await result_of(run)
        await tree(it, run)


async def test_a_cancel_while_it_waits_for_a_delegation_begun_before_ends_both(world: MakeWorld) -> None:
    answers = script([delegates(task("a")), FINISH], lambda _: slow(says("late"), 60))
    async with world(answers, agents=[LEAD, WRITER]) as it:
        run_id = uuid4().hex[:12]
        request = {**OF_ONE, "run_id": run_id}
        await it.start_raw(request, workflow_type="Delegation", id=f"run:{run_id}/delegation:1")
        run = await it.start(agent="lead", run_id=run_id)
        await it.until(lambda: len(it.model.requests) == 2)

        async def waits() -> bool:
            return "watch_run" in str(await run.fetch_history())

        await it.until(waits)
        await run.signal("cancel", {"reason": "enough"})
        await expect_cancelled(run)
        assert (await it.state(run))["status"] == "cancelled"
        found = await tree(it, run)
        assert {each.status for each in found.values()} == {WorkflowExecutionStatus.CANCELED}
        assert max(found, key=lambda name: found[name].close_time) == run.id


async def test_another_run_under_the_id_of_a_subtask_is_not_taken_for_it(world: MakeWorld) -> None:
    async with world(script([delegates(task("a")), FINISH], finishes), agents=[LEAD, WRITER]) as it:
        run_id = uuid4().hex[:12]
        await result_of(await it.start("something else", agent="writer", run_id=f"{run_id}.1-a"))
        run = await it.start(agent="lead", run_id=run_id)
        await result_of(run)
        said = f"subtask_failed: subtask a (writer) failed: there was a run {run_id}.1-a already"
        assert (await it.shown(run))[0].startswith(said)


async def test_another_run_under_the_id_of_a_delegation_does_not_hold_up_the_run(world: MakeWorld) -> None:
    async with world(script([delegates(task("a")), FINISH], finishes), agents=[LEAD, WRITER]) as it:
        run_id = uuid4().hex[:12]
        await result_of(await it.start("something else", agent="writer", run_id=f"{run_id}/delegation:1"))
        run = await it.start(agent="lead", run_id=run_id)
        await result_of(run)
        assert (await it.shown(run))[0].startswith("subtask_failed: the delegation is gone")


async def test_a_fork_before_a_delegation_has_its_whole_budget(world: MakeWorld) -> None:
    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        return [calls(("look", {})), finishes(body)][count_replies(body)]

    agents = [LEAD, agent("writer", tools=("look",))]
    async with world(
        script([delegates(task("a")), FINISH], peer), ScriptedTool("look"), agents=agents, max_steps=3
    ) as it:
        run = await it.run_to_end(agent="lead")
        again = await it.fork(run, 0)
        await result_of(again)
        states = [await it.state(each) for each in (run, again)]
        assert [state["delegated"]["steps"] for state in states] == [1, 1]
        latest = next(body for body in reversed(it.model.requests) if agent_of(body) == "lead")
        assert "It went on and made: delegate (step 1)" in str(latest["messages"])


@pytest.mark.parametrize("ending", ["\\", "'", '"', "' OR 1=1", "%"])
async def test_the_subtree_of_a_run_is_found_with_any_character_in_its_id(world: MakeWorld, ending: str) -> None:
    async with world(script([delegates(task("a")), FINISH], finishes), agents=[LEAD, WRITER]) as it:
        run = await it.start(agent="lead", run_id=f"{uuid4().hex[:12]}{ending}")
        await result_of(run)
        found = await subtree(it, run.id.removeprefix("run:"))
    assert [depth for depth, _ in found] == [1]


async def test_a_run_under_the_longest_id_that_the_server_takes_delegates(world: MakeWorld) -> None:
    """Any Temporal client may start one."""
    async with world(script([delegates(task("a")), FINISH], finishes), agents=[LEAD, WRITER]) as it:
        start = {"type": "agentic.start", "payload": {"goal": "do it", "agent": "lead"}}
        long = uuid4().hex.ljust(ids.MAX_WORKFLOW_ID_BYTES - len("run:"), "x")
        run = await it.start_raw(start, id=f"run:{long}")
        event = await result_of(run)
        assert event["payload"]["outcome"] == "all done"
        assert [each.run_id for _, each in await subtree(it, long)] == [ids.subtask_run_id(long, 1, "a")]


async def test_nothing_that_is_delegated_under_encryption_can_be_read_on_the_server(
    world: MakeWorld, client: Client
) -> None:
    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        if "Do bad" in goal_of(body):
            return calls(("escalate", {"reason": "the reason, unseen"}))
        return calls(("finish", {"outcome": "the outcome, unseen"}))

    first = delegates(task("a", instructions="the instructions, unseen"), task("b", "writer", "a", timeout="1h"))
    second = delegates(task("bad", instructions="Do bad, unseen"), task("c", expected_output="unseen"))
    encrypted = await connect_encrypted(client)
    async with world(script([first, second, FINISH], peer), server=encrypted, agents=[LEAD, WRITER]) as it:
        run = await it.run_to_end(agent="lead")
        assert "the outcome, unseen" in (await it.shown(run))[0]
        assert "the reason, unseen" in (await it.shown(run))[1]
        found = await tree(it, run)
        for workflow_id in found:
            assert b"unseen" not in await it.raw_history(it.client.get_workflow_handle(workflow_id))
            assert b"unseen" not in found[workflow_id].raw_info.SerializeToString()


async def test_a_secret_in_the_reply_of_a_subtask_is_redacted_everywhere(world: MakeWorld) -> None:
    secret = "canary-5d1e-9f"

    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        if "Do bad" in goal_of(body):
            return calls(("escalate", {"reason": f"it is {secret}"}))
        return calls(("finish", {"outcome": f"it is {secret}"}))

    dag = delegates(task("a"), task("bad", "writer", "a"))
    secrets = Secrets([("TOKEN", secret)])
    async with world(script([dag, FINISH], peer), agents=[LEAD, WRITER], secrets=secrets) as it:
        run = await it.run_to_end(agent="lead")
        assert "subtask_failed" in (await it.shown(run))[0]
        for workflow_id in await tree(it, run):
            raw = await it.raw_history(it.client.get_workflow_handle(workflow_id))
            assert secret.encode() not in raw
        assert not any(secret in str(body) for body in it.model.requests)


@pytest.mark.parametrize(
    ("join", "status"), [("all", "failed"), ("any", "done")], ids=["one fails all", "one is enough, and it comes later"]
)
async def test_subtasks_that_failed_are_named_at_each_door(world: MakeWorld, join: str, status: str) -> None:
    def peer(body: dict[str, Any]) -> ScriptedAnswer:
        if 'subtask_id: "bad"' in goal_of(body):
            return calls(("escalate", {"reason": "not today"}))
        return slow(calls(("finish", {"outcome": "fine"})), 1.0)

    answers = script([delegates(task("bad"), task("good"), join=join), FINISH], peer)
    async with world(answers, agents=[LEAD, WRITER]) as it:
        run = await it.run_to_end(agent="lead")
        other = await it.run_to_end(agent="writer")
        await tree(it, run)
        found, plain = await find_run(it.client, run.id), await find_run(it.client, other.id)
        events = [event async for event in Watch(it.client, run.id, follow=False).events()]
        row = RunRecord.of(found)
    (ended,) = [event for event in events if isinstance(event, DelegationFinished)]
    first, *rows = map(str, format_event(ended, 100))
    assert first.endswith(f"delegation {status}: 1 of 2 subtasks failed")
    assert any("bad escalated" in row for row in rows)
    assert (row.shown_status, row.subtasks_failed) == ("completed, subtasks failed", True)
    assert not plain.has_failed_subtasks
