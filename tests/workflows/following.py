"""A world where follow-ups work, with a lane that only takes down what is submitted to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from temporalio import workflow
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.features.follow_ups.activities import signal_event
from perdure.features.follow_ups.contract import Event
from perdure.features.follow_ups.outbox import Outbox
from perdure.process.workflows import all_workflows
from perdure.testkit.model_server import Script, calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World

FINISH = calls(("finish", {"outcome": "I will tell you when B replies."}))
WAIT = {"description": "Wait for B to reply to the DM about lunch", "channelId": "dm-b", "fromUserId": "B"}


@workflow.defn(name="Conversation", sandboxed=False)
class Lane:
    """Takes requests down in their order."""

    def __init__(self) -> None:
        self._requests: list[Any] = []
        self._closes = False

    @workflow.run
    async def run(self, *args: Any) -> list[Any]:
        await workflow.wait_condition(lambda: self._closes)
        return self._requests

    @workflow.update
    def submit(self, *args: Any) -> dict[str, Any]:
        self._requests.append(args[0])
        return {"run_id": "nobody's", "position": 0, "duplicate": False}

    @workflow.signal
    def close(self) -> None:
        self._closes = True

    @workflow.query
    def requests(self) -> list[Any]:
        return self._requests


# In the place of the real one, where there is one.
WITH_LANE = (
    *(each for each in all_workflows() if workflow._Definition.must_from_class(each).name != "Conversation"),
    Lane,
)


@dataclass
class FollowUpWorld:
    """A world, and what a follow-up in it meets. Every id is this world's own: the server is shared."""

    it: World
    session: str = field(default_factory=lambda: f"x-{uuid4().hex[:8]}")
    message: str = field(default_factory=lambda: f"m-{uuid4().hex[:8]}")

    async def create(self, completion: str = "all", *, run_id: str | None = None, **target: Any) -> Run:
        """A follow-up as another program would start it. Without a run nothing keeps `all` from being judged."""
        name = f"f-{uuid4().hex[:8]}"
        definition = {
            "version": 2,
            "origin": {"request_id": "discord:x:1", "session_id": self.session, "request_client": "discord"},
            "resumeTarget": {"session_id": self.session, "request_client": "discord", **target},
            "summary": "A asked for a lunch date; B was asked by DM.",
            "completion": completion,
        }
        data = {"workflowId": name, "definition": definition} | ({"runId": run_id} if run_id else {})
        headers = {"request_id": "discord:x:1", "session_id": self.session, "request_client": "discord"}
        command = {"type": "cmd.workflow.create", "headers": headers, "data": data}
        return await self.start_raw(command, workflow_id=f"wf:{name}")

    async def create_waiting(self, completion: str = "all", **options: Any) -> Run:
        """One that waits for B's reply."""
        run = await self.create(completion, **options)
        await self.wait_for_reply(run)
        return run

    async def start_raw(self, *args: Any, workflow_id: str | None = None) -> Run:
        result: Run = await self.it.client.start_workflow(
            "FollowUp", args=args, id=workflow_id or f"wf:{uuid4().hex[:8]}", task_queue=self.it.queue
        )
        self.it.started.append(result.id)
        return result

    def task(self, run: Run, kind: str, task_id: str = "t1", **given: Any) -> dict[str, Any]:
        data = {
            "workflowId": run.id.removeprefix("wf:"),
            "taskId": task_id,
            "kind": kind,
            "description": f"wait for {task_id}",
            "input": given,
        }
        return {"type": "cmd.workflow.task.create", "data": data}

    async def add(self, run: Run, kind: str, task_id: str = "t1", **given: Any) -> None:
        await run.execute_update("create_task", self.task(run, kind, task_id, **given))

    async def wait_for_reply(self, run: Run, task_id: str = "t1", **given: Any) -> None:
        about = {"channelId": "dm-b", "messageId": self.message, "fromUserId": "B"}
        await self.add(run, "discord.wait_for_reply", task_id, **{**about, **given})

    def reply(self, text: str = "Friday", **fields: Any) -> dict[str, Any]:
        """B's strict reply to the message that is waited on; `to` names another one, or None."""
        to = fields.pop("to", self.message)
        data = {
            "platform": "discord",
            "channelId": "dm-b",
            "messageId": f"r-{uuid4().hex[:8]}",
            "userId": "B",
            "userName": "Bea",
            "text": text,
            "ts": 1_700_000_000_000,
            "raw": {"discord": {"replyToMessageId": to}} if to else {"discord": {}},
            **fields,
        }
        return {"type": "evt.adapter.message.created", "data": data}

    async def publish(self, event: dict[str, Any]) -> Run:
        """Returns the topic that got it."""
        topic = await signal_event(self.it.client, self.it.queue, Event.model_validate(event))
        if topic not in self.it.started:
            self.it.started.append(topic)
        return self.it.client.get_workflow_handle(topic)

    async def requests(self, session: str | None = None) -> list[dict[str, Any]]:
        """What was submitted to the lane of a session, this world's by default."""
        lane = self.it.client.get_workflow_handle(f"conversation:{session or self.session}")
        try:
            result: list[dict[str, Any]] = await lane.query("requests")
        except RPCError:
            return []
        return result

    async def until_task(self, run: Run, task_id: str = "t1", *states: str) -> dict[str, Any]:
        async def reached() -> bool:
            return any(t["state"] in states for t in (await self.it.state(run))["tasks"] if t["taskId"] == task_id)

        await self.it.until(reached)
        return self.task_in(await self.it.state(run), task_id)

    async def until_late(self, run: Run) -> None:
        await self.it.until(lambda: self.has_late(run))

    async def has_late(self, run: Run) -> bool:
        return bool((await self.it.state(run))["late"])

    @staticmethod
    def task_in(state: dict[str, Any], task_id: str = "t1") -> dict[str, Any]:
        result: dict[str, Any] = next(task for task in state["tasks"] if task["taskId"] == task_id)
        return result

    async def follow_ups(self) -> list[Run]:
        """Those that agents of this world have started."""
        query = f"WorkflowType = 'FollowUp' AND TaskQueue = '{self.it.queue}'"
        return [self.it.client.get_workflow_handle(each.id) async for each in self.it.client.list_workflows(query)]

    async def follow_up_of(self, run: Run) -> Run:
        """The one follow-up that the run has created."""
        text = next(text for _, text in await self.it.results(run) if "workflowId" in text)
        name = text.partition('"workflowId":"')[2].partition('"')[0]
        result: Run = self.it.client.get_workflow_handle(f"wf:{name}")
        self.it.started.append(result.id)
        return result

    async def status(self, run: Run) -> WorkflowExecutionStatus | None:
        return (await run.describe()).status


async def is_watched(run: Run) -> bool:
    """Return whether the run is to signal its end."""
    return bool((await run.query("snapshot"))["state"].get("watchers"))


MakeFollowUps = Callable[..., AbstractAsyncContextManager[FollowUpWorld]]


def make_follow_ups(world: MakeWorld) -> MakeFollowUps:
    @asynccontextmanager
    async def make(
        script: Script = (),
        *tools: ScriptedTool,
        outbox: Outbox | None = None,
        works: bool = True,
        workflows: tuple[type, ...] = WITH_LANE,
        **options: Any,
    ) -> AsyncIterator[FollowUpWorld]:
        async with world(script, *tools, works=False, **options) as it:
            it.project = replace(it.project, parts={"follow_ups": outbox})
            it.worker = partial(it.worker, workflows=workflows)  # type: ignore[method-assign]
            here = FollowUpWorld(it)
            allowed = it.project.agents["default"].evolve(follow_ups=(here.session,))
            it.project = replace(it.project, agents={**it.project.agents, "default": allowed})
            if not works:
                yield here
                return
            async with it.worker():
                yield here
                if workflows is WITH_LANE:
                    await _close_lanes(it)
            with patch("tests.workflows.conftest.all_workflows", lambda: workflows):
                await it.replay()

    return make


async def _close_lanes(it: World) -> None:
    query = f"WorkflowType = 'Conversation' AND TaskQueue = '{it.queue}' AND ExecutionStatus = 'Running'"
    async for lane in it.client.list_workflows(query):
        await it.client.get_workflow_handle(lane.id).signal("close")
