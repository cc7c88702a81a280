"""Follow-ups under fault: events early, late, twice, wrong, at the deadline, and while no worker is there."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import WorkflowHandle

from perdure.contracts.conversation import TurnEnd
from perdure.features.follow_ups.activities import signal_event
from perdure.features.follow_ups.contract import Event
from tests.chaos.auditor import Audit, judge_logs
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import PATIENCE, Environment, Workers, retry_until_accepted, until
from tests.chaos.lanes import reply as says
from tests.chaos.lanes import until_idle

QUEUE = "r17"
WAYS = ("early", "late", "twice", "wrong", "deadline", "restart", "never")
DEADLINE = 3000  # milliseconds, for those that may be resolved by it

Handle = WorkflowHandle[Any, Any]


@dataclass
class FollowUpPlan:
    """What comes for each task. `gone` is when all workers have been killed; `waiting` tasks have their event then."""

    it: Environment
    session: str
    ways: dict[str, list[str]] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    async def create(self, name: str) -> Handle:
        """With a question that keeps it open until all its tasks are there."""
        about = {"request_id": "discord:x:1", "session_id": self.session, "request_client": "discord"}
        target = {"session_id": self.session, "request_client": "discord"}
        definition = {"origin": about, "resumeTarget": target, "summary": "A asked, B was asked."}
        command = {"type": "cmd.workflow.create", "data": {"workflowId": name, "definition": definition}}
        run: Handle = await self.it.client.start_workflow("FollowUp", command, id=f"wf:{name}", task_queue=QUEUE)
        await self.add(run, "prompt", "hold", text="All there?")
        return run

    async def add(self, run: Handle, kind: str, task_id: str, **given: Any) -> None:
        data = {"workflowId": run.id.removeprefix("wf:"), "taskId": task_id, "kind": kind, "input": given}
        command = {"type": "cmd.workflow.task.create", "data": {**data, "description": f"wait for {task_id}"}}
        await retry_until_accepted(lambda: run.signal("task_create", command))

    async def says(self, to: str, user: str = "B", number: int = 1) -> None:
        fields = {"channelId": "dm-b", "messageId": f"{to}-{user}-{number}", "userId": user, "text": f"{user} {number}"}
        data = {"platform": "discord", "ts": 1, **fields, "raw": {"discord": {"replyToMessageId": to}}}
        event = Event.model_validate({"type": "evt.adapter.message.created", "data": data})
        await retry_until_accepted(lambda: signal_event(self.it.client, QUEUE, event))

    async def play(self, run: Handle, number: int, way: str) -> None:
        """A task, and what comes for it."""
        name, message = f"t{number}", f"{run.id}-{number}"
        if way == "early":
            await self.says(message)
        given = {"timeoutMs": DEADLINE} if way in ("deadline", "never") else {}
        about = {"channelId": "dm-b", "messageId": message, "fromUserId": "B"}
        await self.add(run, "discord.wait_for_reply", name, **about, **given)
        if way == "wrong":
            await self.says(message, user="C")
        if way == "deadline":
            await asyncio.sleep(DEADLINE / 1000)  # as near to it as can be: either may win
        if way == "restart":
            self.waiting += 1
            await self.gone.wait()
        if way not in ("early", "never"):
            for _ in range(3 if way == "twice" else 1):
                await self.says(message)
        if way == "late":
            await self.says(message, number=2)


async def resolved_once(context: ScenarioContext, *, follow_ups: int, tasks: int, kills: int) -> Row:
    """R17: each task is resolved once, and each follow-up resumes the work once, in one real lane for all of them."""
    async with context.environment(says=says) as it:
        workers, plan = it.start_workers(QUEUE, 2), FollowUpPlan(it, f"r17-{context.seed}")
        runs = [await plan.create(f"r17-{context.seed}-{number}") for number in range(follow_ups)]
        for run in runs:
            plan.ways[run.id] = ["restart", *it.random.choices(WAYS, k=tasks - 1)]
        plays = [
            asyncio.create_task(plan.play(run, number, way))
            for run in runs
            for number, way in enumerate(plan.ways[run.id])
        ]
        await workers.kill_some(kills, 0.2, 1.0)
        left = sum(ways.count("restart") for ways in plan.ways.values())
        await until(lambda: plan.waiting == left)
        await _all_gone(workers)
        plan.gone.set()  # what comes now finds no worker at all
        await asyncio.wait_for(asyncio.gather(*plays), PATIENCE)
        workers.add(2)
        for run in runs:
            await run.signal("human_input", {"text": "yes"})
        found = await _judged(plan, runs)
        judge_logs(found, it, quiet=True)
        return row(it, found, f"{follow_ups} follow-ups of {tasks} tasks each")


async def _all_gone(workers: Workers) -> None:
    """Kills every worker, and has none in their place."""
    for worker in workers.processes:
        worker.kill()
        await asyncio.to_thread(worker.join)
        workers.environment.killed(worker)
        workers.environment.fault()
    workers.processes.clear()


async def _judged(plan: FollowUpPlan, runs: list[Handle]) -> Audit:
    found = Audit()
    await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), PATIENCE)
    for run in runs:
        state = await run.query("state")
        by_name = {task["taskId"]: task for task in state["tasks"]}
        resolved = [each["data"]["taskId"] for each in state["events"] if each["type"] == "evt.workflow.task.resolved"]
        if len(set(resolved)) != len(resolved):
            found.wrong(f"{run.id}: a task was resolved twice: {resolved}")
        for number, way in enumerate(plan.ways[run.id]):
            if why := _fault(way, by_name[f"t{number}"]):
                found.wrong(f"{run.id}, {way}: {why}")
    lane = await until_idle(plan.it, plan.session, len(runs))
    ended = {turn.request_id: turn.end for turn in lane.recent}
    if lane.accepted != len(runs) or ended != {f"{run.id}:1": TurnEnd.completed for run in runs}:
        found.wrong(f"{len(runs)} follow-ups, and the lane: {lane}")
    found.runs = len(runs)
    return found


def _fault(way: str, task: Mapping[str, Any]) -> str | None:
    """Why the task has not what has come for it; None where it has."""
    by, result = task["resolvedBy"], task["result"]
    if task["state"] != "resolved":
        return f"it is {task['state']}"
    if way == "never" or (way == "deadline" and by == "timeout"):
        return None if (by, result["status"]) == ("timeout", "timeout") else f"resolved by {by}"
    texts = ("B 1", "B 2") if way == "late" else ("B 1",)
    return None if result.get("replyUserId") == "B" and result["text"] in texts else f"resolved to {result}"
