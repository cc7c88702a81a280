"""Trees of runs: a cancel of the root reaches all of them, and none goes beyond its budget by more than a call."""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from perdure.client.runs import request_cancel, start_or_get_run
from perdure.contracts.failures import Escalation
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.signals import CancelRequest
from perdure.contracts.run.state import RunState, RunStatus, Snapshot
from perdure.decisions.ids import run_id_of_workflow, run_workflow_id
from perdure.decisions.run.limits import total_spent
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, slow
from perdure.testkit.rehearsal.sse import Json, estimate_tokens
from tests.chaos.auditor import Audit, audit, judge_logs
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import PATIENCE, Environment, retry_until_accepted, until, wait_for_value
from tests.workflows.script import agent_of, count_replies

AFTERWARDS = 1.0  # seconds in which nothing may happen any more
LARGEST_REPLY = 200  # tokens
AGENT = "---\ntools: [{tools}]\npeers: [{peers}]\nlimits: {{max_steps: 100000}}\n---\nI am {name}.\n"


def delegates(agent: str, count: int) -> Reply:
    subtasks = [{"id": f"t{n}", "agent": agent, "instructions": f"Do part {n}."} for n in range(count)]
    return calls(("delegate", {"subtasks": subtasks}))


def add_agent(it: Environment, name: str, *peers: str, tools: Sequence[str] = ()) -> None:
    text = AGENT.format(name=name, tools=", ".join(tools), peers=", ".join(peers))
    (it.project.folder / "agents" / f"{name}.md").write_text(text)


async def cancelled(context: ScenarioContext, *, fanout: int, levels: int) -> Row:
    """R16: the root of a tree is cancelled while its leaves have effects and a worker dies."""

    def says(body: Json) -> ScriptedAnswer:
        level = int(agent_of(body).removeprefix("level-"))
        return (
            delegates(f"level-{level + 1}", fanout)
            if level < levels
            else slow(calls(("reserve", {"note": count_replies(body)})), 0.3)
        )

    async with context.environment(says=says) as it:
        for level in range(levels):
            add_agent(it, f"level-{level}", f"level-{level + 1}")
        add_agent(it, f"level-{levels}", tools=["reserve"])
        workers, root = it.start_workers("r16", 2), f"r16-{context.seed}"
        size = sum(fanout**level for level in range(levels + 1))
        await _start(it, "r16", root, "level-0", max_steps=100 * size)
        await until(lambda: len({effect.run for effect in list(it.tools.effects)}) == fanout**levels)
        await asyncio.gather(
            retry_until_accepted(lambda: request_cancel(it.client, root, CancelRequest(reason="enough"))),
            workers.fault("kill"),
        )
        late = await it.all_ended()
        effects = len(it.tools.effects)
        tree = await _closed(it, root)
        it.handles = {run_id_of_workflow(each.id): it.client.get_workflow_handle(each.id) for each in _runs(tree)}
        found, _ = await asyncio.gather(audit(it, late=late, status=RunStatus.cancelled), asyncio.sleep(AFTERWARDS))
        if len(it.tools.effects) != effects:
            found.wrong(f"{len(it.tools.effects) - effects} effects after the root was cancelled")
        if found.runs != size:
            found.wrong(f"{found.runs} runs, and {size} were delegated")
        _judge_order(found, tree, run_workflow_id(root))
        return row(it, found, f"{size} runs cancelled in {_seconds(tree, run_workflow_id(root)):.1f} s with a kill")


def _judge_order(found: Audit, tree: Sequence[WorkflowExecution], root: str) -> None:
    """All are closed, and the root is the last."""
    ends = {each.id: each.close_time for each in tree}
    for each in tree:
        if each.status is not WorkflowExecutionStatus.CANCELED:
            found.wrong(f"{each.id} is {each.status and each.status.name}")
        end, last = ends[each.id], ends[root]
        if end is None or last is None or end > last:
            found.wrong(f"{each.id} is an orphan: the root ended before it")


def _seconds(tree: Sequence[WorkflowExecution], root: str) -> float:
    """From the first end to the last one, which is the root's."""
    ends = {each.id: each.close_time for each in tree if each.close_time is not None}
    return (ends[root] - min(ends.values())).total_seconds() if root in ends else float("nan")


async def bounded(context: ScenarioContext, *, steps: int, tokens: int) -> Row:
    """R19: what never ends by itself, once in a circle, once in a tree that grows, once with more than it can pay."""
    async with context.environment(says=_never_done) as it:
        add_agent(it, "looper", tools=["look"])
        add_agent(it, "roamer", tools=["look"])
        add_agent(it, "bomb", "bomb", tools=["look"])
        add_agent(it, "lead", "roamer")
        it.start_workers("r19", 2)
        found = Audit()
        wanted: list[tuple[str, dict[str, Any], Escalation]] = [
            ("looper", {"max_steps": steps, "max_turns": steps // 2}, Escalation.turn_budget),
            ("roamer", {"max_steps": steps}, Escalation.step_budget),
            ("roamer", {"max_steps": 1000, "max_turns": 1000, "budget_tokens": tokens}, Escalation.token_budget),
            ("bomb", {"max_steps": steps}, Escalation.step_budget),
            ("bomb", {"max_steps": 1000, "max_turns": 1000, "budget_tokens": tokens}, Escalation.token_budget),
            ("lead", {"max_steps": 6, "max_fanout": 20}, Escalation.step_budget),
        ]
        ends = await asyncio.gather(*(_spent(it, found, n, *each[:2]) for n, each in enumerate(wanted)))
        for (agent, limits, end), reason in zip(wanted, ends, strict=True):
            if reason != end:
                found.wrong(f"{agent} with {limits} ended {reason!r}")
        judge_logs(found, it, quiet=True)
        return row(it, found, f"{len(wanted)} endless trees, each ended by its budget")


def _never_done(body: Json) -> ScriptedAnswer:
    done, tools = count_replies(body), [tool["name"] for tool in body["tools"]]
    match agent_of(body):
        case "lead":
            return delegates("roamer", 20 if done == 0 else 5)
        case "bomb" if "delegate" in tools:
            return delegates("bomb", (4, 3, 2, 1)[done % 4])
        case "looper":
            return calls(("look", {"n": 1}))
        case _:
            return calls(("look", {"n": done}))


async def _spent(it: Environment, found: Audit, number: int, agent: str, limits: dict[str, Any]) -> str:
    """Why it ended; what its tree has used is within its limits, but for one call."""
    run = f"r19-{it.seed}-{number}"
    handle = await _start(it, "r19", run, agent, **limits)
    event = await asyncio.wait_for(handle.result(), PATIENCE)
    states = [await _state(it, each) for each in _runs(await _closed(it, run))]
    found.runs += len(states)
    steps = sum(state.step for state in states)
    if steps > limits["max_steps"]:
        found.wrong(f"{agent} with {limits}: {steps} steps")
    tokens, most = sum(state.usage.total for state in states), limits.get("budget_tokens")
    largest = LARGEST_REPLY + max(estimate_tokens(body) for body in it.model.requests if agent_of(body) == agent)
    if most is not None and tokens > most + largest:
        found.wrong(f"{agent} with {limits}: {tokens} tokens, and {largest} in the largest call")
    spent = total_spent(next(state for state in states if state.run_id == run))
    if (spent.steps, spent.tokens) != (steps, tokens):
        found.wrong(f"{agent} with {limits}: {steps} steps and {tokens} tokens are spent as {spent}")
    return str(event["payload"].get("reason", event["type"]))


async def _start(it: Environment, queue: str, run: str, agent: str, **limits: Any) -> Any:
    payload = {"goal": f"be {agent}", "agent": agent, "limits": limits}
    event = StartEvent.model_validate({"type": "agentic.start", "payload": payload})
    it.handles[run] = await retry_until_accepted(lambda: start_or_get_run(it.client, queue, event, run))
    return it.handles[run]


async def _state(it: Environment, run: WorkflowExecution) -> RunState:
    snapshot: Snapshot = await it.client.get_workflow_handle(run.id).query("snapshot", result_type=Snapshot)
    return snapshot.state


async def _closed(it: Environment, root: str) -> list[WorkflowExecution]:
    """All workflows of the tree, once the server lists none of them as open."""
    query = f"RootWorkflowId = '{run_workflow_id(root)}'"

    async def list_tree() -> list[WorkflowExecution]:
        return [each async for each in it.client.list_workflows(query)]

    tree: list[WorkflowExecution] = await wait_for_value(
        list_tree, lambda tree: bool(tree) and all(each.close_time is not None for each in tree)
    )
    return tree


def _runs(tree: Sequence[WorkflowExecution]) -> list[WorkflowExecution]:
    return [each for each in tree if each.workflow_type == "AgentRun"]
