"""A worker with scripted tools and a scripted model, on the real server."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from anthropic import AsyncAnthropic
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecution, WorkflowHandle
from temporalio.converter import DataConverter
from temporalio.exceptions import TemporalError
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker

from perdure.activities.project import Project
from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.fallback import FallbackModel, Provider
from perdure.activities.providers.port import Model
from perdure.activities.providers.prices import Price
from perdure.activities.providers.rate_limit import RateLimiter
from perdure.activities.security import NO_SECRETS, Secrets
from perdure.activities.tools.interface import Tool
from perdure.client.runs import fork_run, resume_run, start_or_get_run
from perdure.codec import AesGcmCodec
from perdure.contracts.agent import Agent
from perdure.contracts.model_settings import BatchSettings, ModelOptions, Pace
from perdure.contracts.models import HEARTBEAT_TIMEOUT
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.tool import RETRY_DELAYS
from perdure.converter import with_encryption
from perdure.decisions.model_names import DEFAULT
from perdure.features.batches.rules import batch_pool_id
from perdure.process.models import create_http_client
from perdure.process.worker import build_worker
from perdure.process.workflows import all_workflows
from perdure.settings import Deployment
from perdure.settings.file import WorkerSettings
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import Script, ScriptedModel
from perdure.workflows.execution import TOOL_RETRIES
from tests.replaying import replay_history
from tests.shared_model import SharedModel
from tests.waiting import PATIENCE

KEY = "sk-canary-7f3a"  # the model server's key; it must turn up nowhere
# Without a sticky cache every workflow task replays its run from the first event, so a decision that depends on
# anything else cannot hide: PERDURE_TEST_NO_CACHE=1 runs this whole folder so.
GRACE = WorkerSettings().grace
CACHES = os.environ.get("PERDURE_TEST_NO_CACHE") != "1"
# PERDURE_TEST_FUSED=1 runs this folder with reads fused. These files are played in both shapes: together they cover
# what must hold in either, from one result per tool use to spans. They are fused in `make test-all` alone.
FUSES = os.environ.get("PERDURE_TEST_FUSED") == "1"
IN_BOTH_SHAPES = {
    f"test_{name}"
    for name in (
        "agent_run",
        "budget",
        "cancel",
        "context",
        "drift",
        "phases",
        "spans",
        "thrash",
        "tool_calls",
        "watch",
    )
}

APART_AND_FUSED = [pytest.param(False, id="apart"), pytest.param(True, id="fused", marks=pytest.mark.slow)]

Run = WorkflowHandle[Any, Any]


@asynccontextmanager
async def _leaving(worker: Worker) -> AsyncIterator[None]:
    """The SDK's core sometimes never ends the shutdown of a worker one of whose calls outlived its timed-out run."""
    await worker.__aenter__()
    try:
        yield
    finally:
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.__aexit__(None, None, None), PATIENCE)


async def connect_like(client: Client, converter: DataConverter) -> Client:
    """Another connection to the same server."""
    return await Client.connect(client.service_client.config.target_host, data_converter=converter)


async def connect_encrypted(client: Client, **keys: bytes) -> Client:
    """Another connection, which encrypts with these keys: by default with one of its own."""
    return await connect_like(client, with_encryption(AesGcmCodec(keys or {"k1": b"1" * 32})))


@dataclass
class World:
    """One project on a task queue of its own, and the model it speaks to."""

    client: Client
    queue: str
    project: Project
    model: ScriptedModel
    caches: bool = True
    grace: timedelta = GRACE  # for calls of a worker that is stopped
    searchable: bool = True  # what the workers' settings say of the namespace
    within: Callable[[Model], Model] = lambda model: model  # what a worker puts around the model
    heartbeat: timedelta = HEARTBEAT_TIMEOUT  # of silence, after which a worker counts as dead
    started: list[str] = field(default_factory=list)

    @property
    def pool(self) -> Run:
        """The pool of batches."""
        return self.client.get_workflow_handle(batch_pool_id(self.queue))

    async def start(self, goal: str = "do it", *, run_id: str | None = None, **payload: Any) -> Run:
        event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": goal, **payload}})
        run = await start_or_get_run(self.client, self.queue, event, run_id or uuid4().hex[:12])
        self.started.append(run.id)
        return run

    async def run_to_end(self, goal: str = "do it", **options: Any) -> Run:
        """A run that has completed."""
        run = await self.start(goal, **options)
        await run.result()
        return run

    async def resume(self, run: Run) -> Run:
        return self._started(await resume_run(self.client, self.queue, run.id))

    async def fork(self, run: Run, step: int, say: str | None = None) -> Run:
        return self._started(await fork_run(self.client, self.queue, run.id, step, say))

    def _started(self, run: Run) -> Run:
        self.started.append(run.id)
        return run

    async def start_raw(self, *args: Any, workflow_type: str = "AgentRun", **options: Any) -> Run:
        """A start as any Temporal client may send it: nothing is checked before the server."""
        run: Run = await self.client.start_workflow(
            workflow_type, args=args, task_queue=self.queue, **{"id": f"run:{uuid4().hex[:12]}", **options}
        )
        self.started.append(run.id)
        return run

    async def replay(self) -> None:
        """What every run did can be replayed from its history: no decision depends on anything else."""
        for workflow_id in dict.fromkeys(self.started):
            history = await self.client.get_workflow_handle(workflow_id).fetch_history()
            await replay_history(history, self.client.data_converter)

    @asynccontextmanager
    async def worker(
        self,
        client: Client | None = None,
        *,
        deployment: Deployment | None = None,
        workflows: tuple[type, ...] = all_workflows(),
        observers: Sequence[Interceptor] = (),
        slots: int = 100,
    ) -> AsyncIterator[None]:
        """A worker with a cache of its own, and so many activities at once. Two at once need a client each."""
        model = AsyncAnthropic(
            api_key=KEY, base_url=self.model.base_url, max_retries=0, http_client=create_http_client()
        )
        sizes = WorkerSettings(
            max_cached_workflows=1000 if self.caches else 0,
            max_concurrent_activities=slots,
            heartbeat=self.heartbeat,
            sticky_timeout=timedelta(seconds=1),  # a killed worker's runs go on soon
            grace=self.grace,
            search_attributes=self.searchable,
        )
        with patch("perdure.process.worker.all_workflows", lambda: workflows):
            reader = self.within(MessagesModel(model))
            at = client or self.client
            worker = build_worker(at, self.project, self.queue, reader, deployment, observers, sizes)
        async with model, _leaving(worker):
            yield

    async def another_client(self) -> Client:
        return await connect_like(self.client, self.client.data_converter)

    async def until(self, claim: Callable[[], bool | Awaitable[bool]], about: Run | None = None) -> None:
        """Waits for a condition, never for the clock. If it never holds, says what is known of the run."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    holds = claim()
                    if isinstance(holds, Awaitable):
                        holds = await holds
                    if holds:
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            if about is None:
                raise
            raise AssertionError(f"it never came to hold: {await self.overview(about)}") from error

    async def until_listed(self, query: str, number: int = 1) -> list[WorkflowExecution]:
        """So many workflows of this queue, once the server lists them: some time after they are so."""
        found: list[WorkflowExecution] = []

        async def are_listed() -> bool:
            found[:] = [e async for e in self.client.list_workflows(f"TaskQueue = '{self.queue}' AND {query}")]
            return len(found) >= number

        await self.until(are_listed)
        return found

    async def overview(self, run: Run) -> str:
        """Return what the server knows of a run, and its state if a worker answers."""
        described = (await run.describe()).raw_description
        events = [EventType.Name(event.event_type) async for event in run.fetch_history_events()]
        try:
            state: object = await run.query("state", rpc_timeout=timedelta(seconds=10))
        except TemporalError as error:
            state = error
        return f"{events}\n{described.pending_activities}\n{described.pending_workflow_task}\n{state}"

    async def state(self, run: Run) -> dict[str, Any]:
        answer: dict[str, Any] = await run.query("state")
        return answer

    async def until_state(self, run: Run, **wanted: Any) -> dict[str, Any]:
        """The state, once it has these values; `question=True` stands for any open question."""

        async def reached() -> bool:
            state = await self.state(run)
            return all(bool(state.get(k)) if v is True else state[k] == v for k, v in wanted.items())

        await self.until(reached, run)
        return await self.state(run)

    async def until_question(self, run: Run, question_id: str) -> dict[str, Any]:
        """The question, once it is the one that is open."""

        async def is_open() -> bool:
            question = (await self.state(run))["question"]
            return question is not None and question["id"] == question_id

        await self.until(is_open, run)
        question: dict[str, Any] = (await self.state(run))["question"]
        return question

    async def until_pending(self, run: Run, step: int) -> None:
        """Until this step is issued, and whatever is awaited outside is awaited."""

        async def issued() -> bool:
            state = await self.state(run)
            return state["status"] == "waiting_on_tool" and any(p["step"] == step for p in state["pending"])

        await self.until(issued, run)

    async def until_activity(self, run: Run, holds: Callable[[PendingActivityInfo], bool]) -> PendingActivityInfo:
        """The first pending activity of which this holds, once there is one."""
        seen: list[PendingActivityInfo] = []

        async def is_pending() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            seen[:] = [activity for activity in pending if holds(activity)]
            return bool(seen)

        await self.until(is_pending, run)
        return seen[0]

    async def until_event(self, run: Run, kind: "EventType.ValueType", count: int = 1) -> None:
        """Until so many events of this kind are in the run's history."""

        async def has_events() -> bool:
            return [event.event_type async for event in run.fetch_history_events()].count(kind) >= count

        await self.until(has_events, run)

    async def answer(self, run: Run, **answer: Any) -> dict[str, Any]:
        """Answers the run's question by the update, once it asks; returns the question."""
        question: dict[str, Any] = (await self.until_state(run, question=True))["question"]
        await run.execute_update("answer", {"question_id": question["id"], **answer})
        return question

    async def send_result(self, run: Run, step: int, tool: str, **fields: Any) -> None:
        run_id = fields.pop("run_id", run.id.removeprefix("run:"))
        payload = {"run_id": run_id, "step": step, "tool": tool, "status": "ok", "result": "done outside", **fields}
        await run.signal("tool_result", {"type": "agentic.tool_result", "payload": payload})

    async def parts(self, run: Run) -> list[dict[str, Any]]:
        """The live part of the conversation."""
        page = await run.query("transcript")
        parts: list[dict[str, Any]] = page["parts"]
        return parts

    async def results(self, run: Run) -> list[tuple[str, str]]:
        """The tool results of the conversation: (tool use, what the model was shown)."""
        blocks = [part["content"][0] for part in await self.parts(run) if part["kind"] == "result"]
        return [(block["tool_use_id"], block["content"]) for block in blocks]

    async def shown(self, run: Run) -> list[str]:
        """Return what the model was shown of each call."""
        return [text for _, text in await self.results(run)]

    async def executions(self, run: Run) -> list[Run]:
        """Handles of every execution of the run, from the last one back. The server's list may not have all yet."""
        handles: list[Run] = []
        run_id: str | None = (await run.describe()).run_id
        while run_id:
            handles.append(self.client.get_workflow_handle(run.id, run_id=run_id))
            first = await anext(handles[-1].fetch_history_events())
            run_id = first.workflow_execution_started_event_attributes.continued_execution_run_id
        return handles

    async def raw_history(self, run: Run) -> bytes:
        """All executions of the run, as the server stores them."""
        handles = await self.executions(run)
        return b"".join(
            [event.SerializeToString() for handle in handles async for event in handle.fetch_history_events()]
        )

    async def clear(self) -> None:
        """Ends what a test left open: the server is shared, and a run without a worker is a finding elsewhere."""
        left = self.client.list_workflows(f"TaskQueue = '{self.queue}' AND ExecutionStatus = 'Running'")
        for workflow_id in {*self.started, *[each.id async for each in left]}:  # what is new may not be listed yet
            with suppress(RPCError):  # it has ended since
                await self.client.get_workflow_handle(workflow_id).terminate("its test is over")

    async def failed_tasks(self, run: Run) -> int:
        """Workflow tasks that failed. A bug or a bad input that wedges a run shows up here.

        Not one whose end of the run did not count, as something came for it meanwhile; nor one that the server ended
        since more than a hundred events waited for it, as they may on a busy machine.
        """
        cause = WorkflowTaskFailedCause
        mended = (
            cause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
            cause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
        )
        events = [event async for event in run.fetch_history_events()]
        tasks = [event for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]
        return sum(task.workflow_task_failed_event_attributes.cause not in mended for task in tasks)


def with_router(model: Model) -> Model:
    """Put a router around the model, as a worker does."""
    return FallbackModel({DEFAULT: Provider(model, RateLimiter(DEFAULT))})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fuses" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in IN_BOTH_SHAPES:
        metafunc.parametrize("fuses", APART_AND_FUSED)


@pytest.fixture
def fuses() -> bool:
    """Return True if the reads of a turn and the next model call are one activity."""
    return FUSES


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> float:
    """Tool calls are retried after this share of the delays of their policy."""
    share = 0.1
    for effect, policy in TOOL_RETRIES.items():
        initial, most = policy.initial_interval * share, policy.maximum_interval
        quick = replace(policy, initial_interval=initial, maximum_interval=most and most * share)
        monkeypatch.setitem(TOOL_RETRIES, effect, quick)
    quick_delays = replace(RETRY_DELAYS, first=RETRY_DELAYS.first * share, most=RETRY_DELAYS.most * share)
    monkeypatch.setattr("perdure.activities.model.fused_turn.RETRY_DELAYS", quick_delays)
    return share


MakeWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def world(client: Client, tmp_path: Path, fuses: bool) -> MakeWorld:
    return worlds(client, tmp_path, in_one=fuses)


def worlds(client: Client, workspaces: Path, *, in_one: bool = FUSES) -> MakeWorld:
    """Makes worlds on a server; each keeps its runs' files in `workspaces`."""

    @asynccontextmanager
    async def make(
        script: Script,
        *tools: Tool,
        server: Client = client,
        allowed: Sequence[str] | None = None,
        works: bool = True,
        caches: bool = CACHES,
        secrets: Secrets = NO_SECRETS,
        window: int | None = None,
        prices: Mapping[str, Price] = MappingProxyType({}),
        agent_limits: Mapping[str, Any] = MappingProxyType({}),
        agents: Sequence[Agent] = (),
        ceiling: Mapping[str, Any] = MappingProxyType({}),
        follow_ups: tuple[str, ...] | None = None,
        heartbeat: timedelta = HEARTBEAT_TIMEOUT,
        fuses: bool = in_one,
        grace: timedelta = GRACE,
        searchable: bool = True,
        batches: ScriptedBatches | None = None,
        pooling: BatchSettings | None = None,
        **limits: Any,
    ) -> AsyncIterator[World]:
        names = tuple(tool.route.name for tool in tools) if allowed is None else tuple(allowed)
        default = Agent(name="default", tools=names, limits=LimitOverrides(**agent_limits), follow_ups=follow_ups)
        project = Project(
            agents={agent.name: agent for agent in (default, *agents)},
            tools={tool.route.name: tool for tool in tools},
            model="scripted",
            options=ModelOptions(max_tokens=1024),
            limits=LimitOverrides.model_validate(limits),
            ceiling=LimitOverrides.model_validate(ceiling),
            fuse_reads=fuses,
            workspaces=workspaces,
            instructions="You are tested.",
            secrets=secrets,
            window=window,
            prices=prices,
        )
        if pooling:
            project = replace(project, pace=Pace.batch, batches=pooling)
        with SharedModel(script, batches=batches) as model:
            it = World(server, f"q-{uuid4().hex[:8]}", project, model, caches, grace, searchable, heartbeat=heartbeat)
            it.within = with_router if pooling else it.within
            try:
                if not works:
                    yield it
                    return
                async with it.worker():
                    yield it
                await it.replay()
            finally:
                await it.clear()

    return make
