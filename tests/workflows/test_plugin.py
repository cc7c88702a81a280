"""`PerdurePlugin` in a worker and a replayer of another program, which uses the typed shells, on the real server."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, assert_type, cast
from uuid import uuid4

import grpc
import httpx
import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, ClientConfig, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultPayloadConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import Replayer, Worker, WorkerConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from examples.refunds import refunds
from examples.refunds.refunds import Refund, pay
from perdure import PerdurePlugin
from perdure.client.errors import TemporalUnavailableError
from perdure.codec import AesGcmCodec
from perdure.contracts.models import Undecodable
from perdure.contracts.run.state import QuestionView
from perdure.contracts.tool import ToolOutcome
from perdure.converter import TolerantPayloadConverter, data_converter, with_encryption
from perdure.process.queue_marker import set_marker
from perdure.process.workflows import all_workflows
from perdure.settings import ProjectError, Settings, load_settings
from perdure.settings.file import WorkerSettings
from perdure.stubs import (
    AgentRun,
    CancelRequest,
    CompletedEvent,
    Conversation,
    CreateCommand,
    EscalatedEvent,
    FollowUp,
    Forgotten,
    HumanInput,
    LifecycleEvent,
    RunView,
    StartEvent,
    StartPayload,
    SubmitRequest,
    Submitted,
    TaskCommand,
    TaskResolved,
    TranscriptPage,
    TranscriptQuery,
    conversation_workflow_id,
    follow_up_workflow_id,
    run_workflow_id,
)
from perdure.testkit.model_server import calls
from perdure.workflows.agent_run.agent_run import AgentRun as RealAgentRun
from perdure.workflows.handlers import UnknownWorkflow
from tests.proxy import proxied
from tests.shared_model import SharedModel
from tests.waiting import PATIENCE
from tests.workflows.caller import Caller

EXAMPLE = Path(refunds.__file__).parent
KEYS = {"ANTHROPIC_API_KEY": "sk-test"}
KEY = "k1:" + "A" * 43 + "="


def reply(body: dict[str, Any]) -> Any:
    """Asks a person first where the goal says so."""
    goal, turns = str(body["messages"][0]["content"]), sum(one["role"] == "assistant" for one in body["messages"])
    return (
        calls(("ask_human", {"question": "Sure?"}))
        if "ask" in goal and not turns
        else calls(("finish", {"outcome": "ok"}))
    )


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    shutil.copytree(EXAMPLE / "agents", tmp_path / "agents")
    with SharedModel(reply) as model:
        env = {**KEYS, "ANTHROPIC_BASE_URL": model.base_url, "PERDURE_TASK_QUEUE": f"house-{uuid4().hex[:8]}"}
        yield load_settings(env, tmp_path)


async def connect(server: Client, plugin: PerdurePlugin) -> Client:
    return await Client.connect(server.service_client.config.target_host, plugins=[plugin])


async def once(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)


async def until_asked(run: WorkflowHandle[AgentRun, Any]) -> QuestionView:
    async def asks() -> bool:
        return (await run.query(AgentRun.state)).question is not None

    await once(asks)
    view = await run.query(AgentRun.state)
    assert_type(view, RunView)
    assert view.question is not None
    return view.question


async def test_a_program_starts_a_run_as_a_child_and_both_replay(client: Client, settings: Settings) -> None:
    plugin = PerdurePlugin(settings)
    house = await connect(client, plugin)
    async with Worker(house, task_queue=settings.task_queue, workflows=[Refund], activities=[pay]):
        started = await house.start_workflow(Refund.run, "a mug", id=uuid4().hex, task_queue=settings.task_queue)
        assert await started.result() == "paid: a mug; ok"
    replayer = Replayer(workflows=[Refund], plugins=[PerdurePlugin(replace(settings, api_key=None, base_url=None))])
    for workflow_id in (started.id, run_workflow_id(f"claim-{started.id}")):
        await replayer.replay_workflow(await house.get_workflow_handle(workflow_id).fetch_history())


async def test_a_worker_without_the_plugin_starts_a_run_on_our_task_queue(client: Client, settings: Settings) -> None:
    house, queue = await connect(client, PerdurePlugin(settings)), uuid4().hex
    async with (
        Worker(house, task_queue=settings.task_queue),
        Worker(client, task_queue=queue, workflows=[Caller]),
    ):
        outcome = await client.execute_workflow(Caller.run, settings.task_queue, id=uuid4().hex, task_queue=queue)
    assert outcome == "ok"


async def test_a_run_is_asked_answered_and_cancelled_with_types(client: Client, settings: Settings) -> None:
    house = await connect(client, PerdurePlugin(settings))
    start = StartEvent(type="agentic.start", payload=StartPayload(goal="ask me"))
    async with Worker(house, task_queue=settings.task_queue, workflows=[Refund]):
        ids = [run_workflow_id(uuid4().hex) for _ in range(2)]
        first, second = [
            await house.start_workflow(AgentRun.run, start, id=one, task_queue=settings.task_queue) for one in ids
        ]
        question = await until_asked(first)
        accepted = await first.execute_update(AgentRun.answer, HumanInput(question_id=question.id, text="yes"))
        end = await first.result()
        assert_type(end, CompletedEvent | EscalatedEvent)
        page = await first.query(AgentRun.transcript, TranscriptQuery(start=1, limit=1))
        assert_type(page, TranscriptPage)
        await until_asked(second)
        await second.signal(AgentRun.cancel)
        with pytest.raises(Exception, match="Workflow execution failed"):
            await second.result()
        assert (await second.query(AgentRun.state)).status == "cancelled"
    assert accepted["accepted"] is True
    assert isinstance(end, CompletedEvent)
    assert (end.payload.outcome, len(page.parts)) == ("ok", 1)


async def test_a_lane_and_a_follow_up_are_spoken_to_with_types(client: Client, settings: Settings) -> None:
    house, queue, name = await connect(client, PerdurePlugin(settings)), settings.task_queue, uuid4().hex[:12]
    async with Worker(house, task_queue=queue, workflows=[Refund]):
        opening = WithStartWorkflowOperation(
            Conversation.run,
            None,
            id=conversation_workflow_id(name),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_queue=queue,
        )
        request = SubmitRequest(request_id="r1", goal="tidy up")
        submitted = await house.execute_update_with_start_workflow(
            Conversation.submit, request, start_workflow_operation=opening
        )
        assert_type(submitted, Submitted)
        lane = await opening.workflow_handle()
        await house.get_workflow_handle(run_workflow_id(submitted.run_id)).result()

        async def has_ended(request_id: str) -> bool:
            recent = (await lane.query(Conversation.lane)).recent
            return any(turn.request_id.startswith(request_id) for turn in recent)

        await once(partial(has_ended, "r1"))
        forgotten = await lane.execute_update(Conversation.forget)
        assert_type(forgotten, Forgotten)
        await lane.signal(Conversation.cancel, CancelRequest(reason="over"))

        definition = {"origin": {}, "resumeTarget": {"session_id": name}, "summary": "wait"}
        command = CreateCommand.model_validate({"data": {"workflowId": name, "definition": definition}})
        later = await house.start_workflow(FollowUp.run, command, id=follow_up_workflow_id(name), task_queue=queue)
        task = {
            "workflowId": name,
            "taskId": "t1",
            "kind": "wait",
            "description": "a day",
            "input": {"delayMs": 86_400_000},
        }
        await later.execute_update(FollowUp.create_task, TaskCommand.model_validate({"data": task}))
        assert [one.task_id for one in (await later.query(FollowUp.state)).tasks] == ["t1"]
        await later.signal(FollowUp.task_resolved, TaskResolved(task_id="t1", result="here"))
        resolved = await later.result()
        assert_type(resolved, LifecycleEvent)
        await once(partial(has_ended, "wf:"))  # the turn that it resumed
    assert (submitted.position, forgotten.run_id, resolved.type) == (0, submitted.run_id, "evt.workflow.resolved")


async def test_the_clients_of_the_project_close_with_the_worker(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[httpx.AsyncClient] = []

    class Recorded(httpx.AsyncClient):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            opened.append(self)

    house = await connect(client, PerdurePlugin(settings))
    with monkeypatch.context() as patched:
        patched.setattr("perdure.process.worker.httpx.AsyncClient", Recorded)
        worker = Worker(house, task_queue=settings.task_queue, workflows=[Refund])
    async with worker:
        assert [one.is_closed for one in opened] == [False]
    assert [one.is_closed for one in opened] == [True]


async def test_what_the_server_lacks_ends_the_worker_with_its_reason(client: Client, settings: Settings) -> None:
    """Here: the queue's payloads are encrypted, and the program has no key."""
    codec = AesGcmCodec({"k1": bytes(32)})
    sealed = await Client.connect(client.service_client.config.target_host, data_converter=with_encryption(codec))
    await set_marker(sealed, settings.task_queue, codec)
    house = await connect(client, PerdurePlugin(settings))
    with pytest.raises(TemporalUnavailableError, match="is encrypted with key k1"):
        async with asyncio.timeout(PATIENCE), Worker(house, task_queue=settings.task_queue, workflows=[Refund]):
            await asyncio.Event().wait()


async def test_a_worker_starts_without_search_attributes_if_the_project_says_so(
    client: Client, settings: Settings
) -> None:
    bare = replace(settings, file=settings.file.evolve(worker=WorkerSettings(search_attributes=False)))
    async with proxied(client.service_client.config.target_host) as proxy:
        proxy.denied = {
            "ListSearchAttributes": grpc.StatusCode.PERMISSION_DENIED,
            "CountWorkflowExecutions": grpc.StatusCode.INVALID_ARGUMENT,
        }
        house = await Client.connect(proxy.address, plugins=[PerdurePlugin(settings)])
        with pytest.raises(TemporalUnavailableError, match="search attributes are missing"):
            async with asyncio.timeout(PATIENCE), Worker(house, task_queue=settings.task_queue, workflows=[Refund]):
                await asyncio.Event().wait()
        house = await Client.connect(proxy.address, plugins=[PerdurePlugin(bare)])
        async with Worker(house, task_queue=settings.task_queue, workflows=[Refund], activities=[pay]):
            started = await house.start_workflow(Refund.run, "a mug", id=uuid4().hex, task_queue=settings.task_queue)
            assert await started.result() == "paid: a mug; ok"
    run = await client.get_workflow_handle(run_workflow_id(f"claim-{started.id}")).describe()
    assert {pair.key.name for pair in run.typed_search_attributes} <= {"BuildIds", "TemporalChangeVersion"}


class Other(DefaultPayloadConverter):
    pass


async def lazy(converter: DataConverter = data_converter, *plugins: SimplePlugin, namespace: str = "default") -> Client:
    return await Client.connect(
        "127.0.0.1:1", namespace=namespace, lazy=True, data_converter=converter, plugins=plugins
    )


def offered(client: Client, queue: str, **options: Any) -> WorkerConfig:
    """What a worker gives its plugins."""
    defaults: dict[str, Any] = {
        "workflows": [Refund],
        "activities": [],
        "interceptors": [],
        "workflow_runner": SandboxedWorkflowRunner(),
        "graceful_shutdown_timeout": timedelta(),
        "max_heartbeat_throttle_interval": timedelta(seconds=60),
        "default_heartbeat_throttle_interval": timedelta(seconds=30),
    }
    return cast("WorkerConfig", {"client": client, "task_queue": queue, **defaults, **options})


async def test_an_option_that_the_program_has_chosen_stays(settings: Settings) -> None:
    client, plugin = await lazy(), PerdurePlugin(settings)
    plain = plugin.configure_worker(offered(client, settings.task_queue))
    hour, runner = (
        timedelta(hours=1),
        SandboxedWorkflowRunner(SandboxRestrictions.default.with_passthrough_modules("x")),
    )
    chosen = {
        "graceful_shutdown_timeout": hour,
        "max_cached_workflows": 7,
        "tuner": object(),
        "workflow_runner": runner,
    }
    own = plugin.configure_worker(offered(client, settings.task_queue, **chosen))
    ours = settings.file.worker
    assert (plain["max_concurrent_activities"], plain["max_cached_workflows"]) == (
        ours.max_concurrent_activities,
        ours.max_cached_workflows,
    )
    assert plain["graceful_shutdown_timeout"] > timedelta()
    assert plain["max_heartbeat_throttle_interval"] <= timedelta(seconds=1)
    assert (own["graceful_shutdown_timeout"], own["max_cached_workflows"]) == (hour, 7)
    assert "max_concurrent_activities" not in own
    assert isinstance(own["workflow_runner"], SandboxedWorkflowRunner)
    assert {"x", "perdure"} <= own["workflow_runner"].restrictions.passthrough_modules
    assert plain["workflows"] == [Refund, *(each for each in all_workflows() if each is not UnknownWorkflow)]
    assert "build_id" not in plain


async def test_a_client_with_a_codec_of_its_own_keeps_it(settings: Settings) -> None:
    codec = AesGcmCodec({"mine": bytes(32)})
    client = await lazy(replace(DataConverter.default, payload_codec=codec), PerdurePlugin(settings))
    assert client.data_converter.payload_codec is codec
    assert client.data_converter.payload_converter_class is data_converter.payload_converter_class


class OfOtherLibrary(PydanticPayloadConverter):
    """As another agent library's: a subclass of pydantic's, which marks what it has read."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        read = super().from_payloads(payloads, type_hints)
        return [f"{value}, read by the other library" if isinstance(value, str) else value for value in read]


class OtherPlugin(SimplePlugin):
    """As another agent library's: it keeps a converter that derives from pydantic's, or replaces any."""

    def __init__(self, *, replaces: bool = False) -> None:
        super().__init__("other")
        self._replaces = replaces

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        converter = config["data_converter"]
        is_derived = issubclass(converter.payload_converter_class, PydanticPayloadConverter)
        if self._replaces or not is_derived:
            config["data_converter"] = replace(converter, payload_converter_class=OfOtherLibrary)
        return config


@pytest.mark.parametrize("is_first", [True, False])
async def test_another_librarys_plugin_may_be_beside_ours_in_either_order(settings: Settings, is_first: bool) -> None:
    ours = PerdurePlugin(settings)
    client = await lazy(DataConverter.default, *([OtherPlugin(), ours] if is_first else [ours, OtherPlugin()]))
    converter: Any = client.data_converter.payload_converter_class()
    assert isinstance(converter, TolerantPayloadConverter)
    assert isinstance(converter, OfOtherLibrary) is is_first
    payloads = converter.to_payloads(["it", ToolOutcome(result="c")])
    assert converter.from_payloads(payloads[:1], [str]) == ["it, read by the other library" if is_first else "it"]
    assert json.loads(payloads[1].data) == {"result": "c"}, "defaults are left out"
    broken = Payload(metadata={"encoding": b"json/plain"}, data=b"{")
    assert isinstance(converter.from_payloads([broken])[0], Undecodable)
    ours.configure_worker(offered(client, settings.task_queue))


async def test_a_plugin_that_replaces_our_converter_is_named(settings: Settings) -> None:
    ours = PerdurePlugin(settings)
    client = await lazy(DataConverter.default, ours, OtherPlugin(replaces=True))
    with pytest.raises(ProjectError, match="by OfOtherLibrary: put PerdurePlugin after it"):
        ours.configure_worker(offered(client, settings.task_queue))
    client = await lazy(DataConverter.default, OtherPlugin(replaces=True), ours)
    ours.configure_worker(offered(client, settings.task_queue))


@pytest.mark.parametrize(
    ("env", "converter", "reason"),
    [
        ({}, replace(DataConverter.default, payload_converter_class=Other), "this client's payload converter is Other"),
        ({"PERDURE_CODEC_KEYS": KEY}, with_encryption(AesGcmCodec({"k": bytes(32)})), "use one of them"),
    ],
)
async def test_a_client_that_does_not_fit_is_refused_in_one_line(
    env: dict[str, str], converter: DataConverter, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ProjectError, match=reason) as refused:
        await lazy(converter, PerdurePlugin(load_settings({**KEYS, **env}, tmp_path)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("env", "options", "reason"),
    [
        ({}, {"task_queue": "house"}, "this worker's task queue is 'house' and the project's is 'perdure'"),
        ({}, {"namespace": "house"}, "this worker's namespace is 'house' and TEMPORAL_NAMESPACE is 'agents'"),
        ({}, {"workflows": [Refund, RealAgentRun]}, "give PerdurePlugin to the client alone"),
        ({}, {"converter": DataConverter.default}, "does not have Perdure's converter"),
        ({"PERDURE_CODEC_KEYS": KEY}, {}, "does not have Perdure's converter"),
        ({"ANTHROPIC_API_KEY": "", "PERDURE_MODEL": "claude-sonnet-5-5"}, {}, "needs ANTHROPIC_API_KEY"),
    ],
)
async def test_a_worker_that_does_not_fit_is_refused_in_one_line(
    env: dict[str, str], options: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "agents")
    client = await lazy(options.pop("converter", data_converter), namespace=options.pop("namespace", "agents"))
    plugin = PerdurePlugin(load_settings({**KEYS, **env}, tmp_path))
    with pytest.raises(ProjectError, match=reason) as refused:
        plugin.configure_worker(offered(client, options.pop("task_queue", "perdure"), **options))
    assert "\n" not in str(refused.value)


async def test_a_new_mcp_server_is_refused_until_its_tools_are_accepted(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "git-mcp"}}}')
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.md").write_text("---\ntools: [git__*]\n---\nYou are tested.\n")
    plugin = PerdurePlugin(load_settings(KEYS, tmp_path))
    with pytest.raises(
        ProjectError, match="MCP server git is new here: accept its tools with perdure tools --accept git"
    ):
        plugin.configure_worker(offered(await lazy(), "perdure"))
