"""The sides, and how a run of each is started, looked at and answered."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from bench.crash.model import CENTS, goal
from bench.crash.tools import Settings
from bench.crash.worker import shop_settings
from bench.crash.workers import Nursery, Worker
from perdure import Perdure, Run
from perdure.contracts.run.signals import QuestionKind

QUERY_TIMEOUT = timedelta(seconds=5)
PERSON = "ann"
SOON = 0.01  # seconds


class Sight(StrEnum):
    """A run, as its caller sees it."""

    running = "running"
    asked = "asked"  # a person is asked to approve the payment
    in_doubt = "in doubt"  # a person is asked what became of the payment
    ended = "ended"
    failed = "failed"


@dataclass(frozen=True)
class Side:
    """`peer` names its environment, None: ours. `timeouts` are those of its documentation, `packages` its versions."""

    name: str
    title: str
    module: str
    preloaded: tuple[str, ...]
    peer: str | None
    timeouts: str
    packages: tuple[str, ...]
    has_attempts: bool = True  # a payment can be limited to one attempt


SIDES = (
    Side(
        "perdure",
        "Perdure",
        "bench.crash.worker",
        ("bench.crash.worker", "perdure.workflows.agent_run.agent_run", "httpx2", "anthropic"),
        None,
        "lost worker noticed after 15 s (`heartbeat`) or 5 s (`sticky_timeout`), a tool 30 s",
        ("temporalio",),
        has_attempts=False,
    ),
    Side(
        "agent_harness",
        "Temporal Agent Kit",
        "bench.peers.crash.agent_harness",
        ("pydantic_ai.durable_exec.temporal", "temporal_agent_harness.plugin", "openai", "temporalio.worker"),
        "agent_harness",
        "a tool 30 s, a model call 60 s with a heartbeat of 30 s",
        ("temporal-agent-harness", "pydantic-ai-slim", "temporalio"),
    ),
    Side(
        "langgraph",
        "LangGraph on Temporal",
        "bench.peers.crash.langgraph",
        ("temporalio.langgraph", "langchain_openai", "langgraph.graph", "temporalio.worker"),
        "langgraph",
        "each node 30 s",
        ("temporalio-langgraph", "langgraph", "temporalio"),
    ),
    Side(
        "openai_agents",
        "OpenAI Agents SDK on Temporal",
        "bench.peers.crash.openai_agents",
        ("temporalio.openai_agents", "agents", "openai", "temporalio.worker"),
        "openai_agents",
        "a tool 10 s, a model call 30 s",
        ("openai-agents", "temporalio-openai-agents", "temporalio"),
    ),
    Side(
        "pydantic_ai",
        "Pydantic AI on Temporal",
        "bench.peers.crash.pydantic_ai",
        ("pydantic_ai.durable_exec.temporal", "pydantic_ai.models.openai", "openai", "temporalio.worker"),
        "pydantic_ai",
        "a tool 60 s, a model call 60 s with a heartbeat of 30 s",
        ("pydantic-ai-slim", "temporalio"),
    ),
    Side(
        "langgraph_sqlite",
        "LangGraph with SqliteSaver",
        "bench.peers.crash.langgraph_sqlite",
        ("langchain.agents.middleware", "langchain_openai", "langgraph.checkpoint.sqlite.aio"),
        "langgraph",
        "none: it is started again as soon as it is dead",
        ("langgraph", "langchain", "langgraph-checkpoint-sqlite"),
        has_attempts=False,
    ),
)
NAMES = tuple(side.name for side in SIDES)


class SideRun(Protocol):
    """A run of a side. `bill` names it and its task queue, or its thread."""

    async def start_worker(self) -> Worker: ...
    async def start(self) -> None: ...
    async def look(self) -> Sight: ...
    async def approve(self) -> None:
        """Approve the payment, as a person does."""

    async def settle(self, receipt: str | None) -> None:
        """Answer what became of the payment: with its receipt, or that it was not made."""

    async def close(self) -> None:
        """Leave nothing running, whatever the end was."""

    async def finish(self) -> int:
        """Wait for the end without asking for it, and return the bytes of the record that the run leaves."""


@dataclass
class TemporalRun:
    """A run of a peer on Temporal."""

    client: Client
    nursery: Nursery
    settings: Settings
    bill: str
    handle: WorkflowHandle[Any, Any] | None = None

    async def start_worker(self) -> Worker:
        return await self.nursery.start(replace(self.settings))

    async def start(self) -> None:
        self.handle = await self.client.start_workflow("Shop", goal(self.bill), id=self.bill, task_queue=self.bill)

    @property
    def run(self) -> WorkflowHandle[Any, Any]:
        if self.handle is None:
            raise AssertionError("the run was started")
        return self.handle

    async def look(self) -> Sight:
        status = (await self.run.describe()).status
        if status is WorkflowExecutionStatus.COMPLETED:
            return Sight.ended
        if status is not WorkflowExecutionStatus.RUNNING:
            return Sight.failed
        return await self._look_inside()

    async def _look_inside(self) -> Sight:
        return Sight.asked if self.settings.asks and await self._query("asks") else Sight.running

    async def _query(self, name: str) -> Any:
        """The answer, or None while no worker gives one."""
        try:
            return await self.run.query(name, rpc_timeout=QUERY_TIMEOUT)
        except RPCError:
            return None

    async def approve(self) -> None:
        await self.run.signal("approve")

    async def settle(self, receipt: str | None) -> None:
        raise AssertionError(f"a peer does not ask what became of {receipt}")

    async def close(self) -> None:
        if self.handle is not None and (await self.run.describe()).status is WorkflowExecutionStatus.RUNNING:
            await self.run.terminate("the trial is over")

    async def finish(self) -> int:
        return await _finish(self.run)


@dataclass
class HarnessRun(TemporalRun):
    """Its agents are started without work, which a message brings, and go on until they are closed."""

    async def start(self) -> None:
        self.handle = await self.client.start_workflow("Shop", {}, id=self.bill, task_queue=self.bill)
        message = {"type": "ask", "payload": {"text": goal(self.bill)}}
        await self.run.execute_update("send_agent_message", message)

    async def _look_inside(self) -> Sight:
        if await self._query("replies"):
            return Sight.ended
        return Sight.asked if self.settings.asks and await self._approvals() else Sight.running

    async def _approvals(self) -> list[dict[str, Any]]:
        status = await self._query("agent_status")
        return status["pending_approvals"] if status else []

    async def approve(self) -> None:
        for approval in await self._approvals():
            decision = {"tool_id": approval["tool_id"], "approved": True}
            await self.run.execute_update("tool_approval", decision)

    async def finish(self) -> int:
        await self.run.signal("close")
        return await _finish(self.run)


@dataclass
class GraphRun:
    """A thread of LangGraph, without a server: its program is started again after a crash, and for an answer."""

    nursery: Nursery
    settings: Settings
    bill: str
    worker: Worker | None = None
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def start_worker(self) -> Worker:
        self.worker = await self.nursery.start(replace(self.settings, task=goal(self.bill)))
        return self.worker

    async def start(self) -> None:
        """The program has begun by itself."""

    async def look(self) -> Sight:
        if self.worker is None:
            raise AssertionError("the program was started")
        is_alive, said = self.worker.is_alive(), self.reports.get(self.worker.name, {})
        if said.get("ended"):
            return Sight.ended
        if said.get("asks"):
            return Sight.asked
        return Sight.running if is_alive else Sight.failed

    async def approve(self) -> None:
        self.worker = await self.nursery.start(replace(self.settings, task=goal(self.bill), is_approved=True))

    async def settle(self, receipt: str | None) -> None:
        raise AssertionError(f"a peer does not ask what became of {receipt}")

    async def close(self) -> None:
        if self.worker is not None:
            await self.worker.kill()

    async def finish(self) -> int:
        while await self.look() is Sight.running:  # noqa: ASYNC110 - a process tells nobody
            await asyncio.sleep(SOON)
        files = await asyncio.to_thread(lambda: list(Path(self.settings.home).glob(f"{self.bill}.sqlite*")))
        return sum(file.stat().st_size for file in files)


@dataclass
class PerdureRun:
    """Through Perdure's own client."""

    client: Client
    nursery: Nursery
    settings: Settings
    bill: str

    async def start_worker(self) -> Worker:
        return await self.nursery.start(replace(self.settings))

    async def start(self) -> None:
        async with self._perdure() as perdure:
            await perdure.start(goal(self.bill), agent="clerk", run_id=self.bill)

    def _perdure(self) -> Perdure:
        settings = shop_settings(self.settings.home, self.settings.model, self.bill)
        return Perdure(settings, client=self.client, task_queue=self.bill)

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(f"run:{self.bill}")

    async def look(self) -> Sight:
        status = (await self.handle.describe()).status
        if status is WorkflowExecutionStatus.COMPLETED:
            return Sight.ended
        if status is not WorkflowExecutionStatus.RUNNING:
            return Sight.failed
        async with self._perdure() as perdure:
            state = await perdure.get_run(self.bill).state()
        if state is None or state.question is None:
            return Sight.running
        return Sight.in_doubt if state.question.kind == QuestionKind.resume_unsafe else Sight.asked

    async def approve(self) -> None:
        async with self._perdure() as perdure:
            await perdure.get_run(self.bill).answer(decision="approve", by=PERSON)

    async def settle(self, receipt: str | None) -> None:
        async with self._perdure() as perdure:
            run: Run = perdure.get_run(self.bill)
            if receipt is None:
                await run.answer(decision="run_again", by=PERSON)
            else:
                await run.answer(f"{receipt}: {CENTS} cents", decision="use_result", by=PERSON)

    async def close(self) -> None:
        if (await self.handle.describe()).status is WorkflowExecutionStatus.RUNNING:
            await self.handle.terminate("the trial is over")

    async def finish(self) -> int:
        return await _finish(self.handle)


async def _finish(handle: WorkflowHandle[Any, Any]) -> int:
    await handle.result()
    return (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes


KINDS: dict[str, type[TemporalRun]] = {"agent_harness": HarnessRun}


def open_run(
    side: Side, client: Client, nursery: Nursery, settings: Settings, reports: dict[str, dict[str, Any]]
) -> SideRun:
    bill = settings.queue
    if side.name == "perdure":
        return PerdureRun(client, nursery, settings, bill)
    if side.name == "langgraph_sqlite":
        return GraphRun(nursery, settings, bill, reports=reports)
    return KINDS.get(side.name, TemporalRun)(client, nursery, settings, bill)
