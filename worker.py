"""The worker: runs agent workflows and their activities on one task queue. `python worker.py` starts one.

All wiring is here: which model answers, which tools there are, how Temporal is told of them.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.resources import files
from typing import NoReturn

import httpx
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from activities.claude import PRICES
from activities.context import Summaries
from activities.conversation import Conversations
from activities.delegation import Delegations
from activities.fetch import FetchTool
from activities.files import ListFiles, ReadFile, WriteFile
from activities.followup import FollowUps
from activities.http_tool import HttpTool
from activities.inherit import Inheritances
from activities.mailbox import Mailboxes
from activities.observation import Observation
from activities.outbox import LogOutbox, Outbox, WebhookOutbox
from activities.price import FREE, Price
from activities.project import Project
from activities.providers import Model
from activities.python_tool import BadTarget, PythonTool
from activities.queue_tool import QueueResults, QueueTool
from activities.reconcile import Reconciliations
from activities.redaction import Redaction
from activities.run import Runs
from activities.secrets import secrets_of
from activities.signal_tool import SignalTool
from activities.standing import Standings
from activities.store import Stores
from activities.tool import ToolCalls
from activities.toolkit import Tool
from activities.transcript import Transcripts
from activities.turn import Turns
from contracts.agent import ToolSchema
from contracts.tool import QueueRoute, ToolKind, ToolRoute
from mcp_tools import Offer, offer_of, offering
from models import model_of
from reconcile import reconciling
from runs import NotReachable, connect, leave, register_search_attributes
from seal import affix
from settings import (
    REHEARSAL,
    Deployment,
    HttpToolSettings,
    McpToolSettings,
    ProjectError,
    PythonToolSettings,
    QueueToolSettings,
    Settings,
    SignalToolSettings,
    load,
)
from settings.environment import on_object_store
from telemetry import NoMetrics, log_to_stderr, quiet_core, telling
from workflows.agent_run import AgentRun
from workflows.confidential import Confidential
from workflows.conversation import Conversation
from workflows.delegation import Delegation
from workflows.followup import FollowUp
from workflows.mailbox import Mailbox
from workflows.reconcile import Reconcile
from workflows.sandbox import Sandbox
from workflows.sharing import Sharing
from workflows.topic import EventTopic
from workflows.unknown import Unknown

GRACE = timedelta(seconds=30)  # SIGTERM is no cancel: what runs is finished within this
# Beyond GRACE: the SDK's core sometimes never ends its shutdown, with nothing left to do.
LEAVING = timedelta(seconds=10)
RECOVERY = timedelta(seconds=1)  # a killed worker's runs are picked up by another after this
SHOWN_WITHIN = timedelta(milliseconds=200)  # a partial answer reaches a watcher

WORKFLOWS: tuple[type, ...] = (
    AgentRun,
    Conversation,
    Delegation,
    FollowUp,
    EventTopic,
    Mailbox,
    Reconcile,
    Unknown,
)


def project_of(settings: Settings, client: httpx.AsyncClient, mcp: Offer | None = None) -> Project:
    """What a worker of this project offers; without `mcp`, for looking at only. Raises ProjectError."""
    mcp = mcp or offer_of(settings)
    tools: dict[str, Tool] = {
        tool.route.name: tool
        for tool in (FetchTool(frozenset(settings.file.fetch.allow_hosts)), ReadFile(), WriteFile(), ListFiles())
    }
    for name, described in settings.file.tools.items():
        if not isinstance(described, McpToolSettings):
            tools[name] = _tool(name, described, settings, client)
    tools.update(mcp.tools)
    return Project(
        agents=mcp.agents,
        tools=tools,
        model=settings.model,
        fallbacks=settings.fallbacks,
        providers=frozenset(settings.file.model.providers),
        max_tokens=settings.file.model.max_tokens,
        limits=settings.file.limits,
        workspaces=settings.workspaces,
        instructions="\n".join(_prompt(name) for name in ("loop", "plan", "reflect")),
        prices={
            **PRICES,
            REHEARSAL: FREE,
            **{name: Price(**price.model_dump()) for name, price in settings.file.prices.items()},
        },
        remote=on_object_store("PERDURE_STORE", settings.store, _remote) if settings.store else None,
        window=settings.file.model.window,
        summary_model=settings.file.model.summary,
        secrets=settings.secrets,
        outbox=_outbox(settings, client),
        on_delegation=_prompt("delegate"),
    )


def _outbox(settings: Settings, client: httpx.AsyncClient) -> Outbox:
    out = settings.file.outbox
    return WebhookOutbox(out.url, out.effect, out.timeout, client) if out.url else LogOutbox(settings.home)


def _prompt(name: str) -> str:
    return files("activities").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8")


def _remote(url: str) -> Stores:
    from activities.remote_store import RemoteStores

    return RemoteStores.at(url)


def _tool(
    name: str,
    described: PythonToolSettings | HttpToolSettings | QueueToolSettings | SignalToolSettings,
    settings: Settings,
    client: httpx.AsyncClient,
) -> Tool:
    route = ToolRoute(
        name=name,
        kind=ToolKind(described.kind),
        effect=described.effect,
        approval=described.approval,
        pollable=described.pollable,
        timeout=described.timeout,
        approval_timeout=described.approval_timeout,
    )
    match described:
        case PythonToolSettings():
            folder = str(settings.folder)
            if folder not in sys.path:
                sys.path.append(folder)  # last, so that a user's module never hides one of ours
            try:
                return PythonTool(route, described.target, described.description)
            except BadTarget as error:
                raise ProjectError(f"{settings.at('tools', name, 'target')}: {error}") from None
        case HttpToolSettings():
            return HttpTool(route, _schema(name, described), described.url, client)
        case QueueToolSettings():
            if described.task_queue == settings.task_queue:
                theirs = f"{described.task_queue!r} is the task queue of this project's own worker: name another one"
                raise ProjectError(f"{settings.at('tools', name, 'task_queue')}: {theirs}")
            queue = QueueRoute(**described.model_dump(include=set(QueueRoute.model_fields)))
            return QueueTool(route.model_copy(update={"queue": queue}), _schema(name, described))
        case SignalToolSettings():
            return SignalTool(route, _schema(name, described), described.url, client)


def _schema(name: str, described: HttpToolSettings | QueueToolSettings | SignalToolSettings) -> ToolSchema:
    if not isinstance(described.input_schema, dict):
        raise ProjectError(f"perdure.toml: tools.{name}.input_schema: expected a JSON Schema, or the path of one")
    return ToolSchema(name=name, description=described.description, input_schema=described.input_schema)


def build(  # noqa: PLR0913 - what a worker is made of
    client: Client,
    project: Project,
    task_queue: str,
    model: Model,
    deployment: Deployment | None = None,
    observers: Sequence[Interceptor] = (),
) -> Worker:
    """A worker with everything that a run needs. `observers` see what may be told."""
    transcripts = Transcripts(client, project.stores)
    turns = Turns(client, model, transcripts, project)
    summaries = Summaries(model, transcripts, project)
    calls = ToolCalls(client, transcripts, project, GRACE)
    runs = Runs(client, transcripts, project)
    inheritances = Inheritances(client, transcripts, project)
    conversations = Conversations(client, transcripts, project)
    follow_ups = FollowUps(client, project)
    delegations = Delegations(client, project)
    mailboxes = Mailboxes(client, task_queue)
    reconciliations = Reconciliations(client, project.stores, task_queue)
    return Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        activities=[
            turns.plan,
            turns.reflect,
            summaries.summarize,
            calls.call_tool,
            QueueResults(client, project).keep_result,
            runs.open_run,
            runs.close_segment,
            inheritances.inherit,
            conversations.join_conversation,
            conversations.answer_turn,
            conversations.open_turn,
            reconciliations.reconcile,
            Standings(client).watch_run,
            follow_ups.command_follow_up,
            follow_ups.subscribe_task,
            follow_ups.notify,
            follow_ups.resume_work,
            follow_ups.close_follow_up,
            delegations.collect,
            delegations.find_delegation,
            mailboxes.look_at_turns,
            mailboxes.dispatch_mail,
        ],
        workflow_runner=workflow_runner(client.data_converter),
        interceptors=[Observation(), *observers, Redaction(project.secrets), Sharing(transcripts), *_told(client)],
        sticky_queue_schedule_to_start_timeout=RECOVERY,
        graceful_shutdown_timeout=GRACE,
        max_heartbeat_throttle_interval=SHOWN_WITHIN,
        default_heartbeat_throttle_interval=SHOWN_WITHIN,
        deployment_config=versioned(deployment) if deployment else None,
    )


def versioned(deployment: Deployment) -> WorkerDeploymentConfig:
    """A run stays with the build that it began on, over continue-as-new too: new code never meets an old history."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment.name, deployment.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def _told(client: Client) -> list[Interceptor]:
    """What runs must know of their worker."""
    return [Confidential()] if client.data_converter.payload_codec else []


def workflow_runner(converter: DataConverter) -> Sandbox:
    """Our own modules hold constants only, so they need not be loaded anew for each run."""
    ours = ("contracts", "decisions", "activities", "workflows", "converter", "pydantic_core")
    restrictions = SandboxRestrictions.default
    return Sandbox(restrictions.with_passthrough_modules(*ours), stores=converter.external_storage is not None)


@asynccontextmanager
async def working(client: Client, settings: Settings, deployment: Deployment | None = None) -> AsyncIterator[None]:
    """A worker for as long as the block runs. Raises ProjectError before anything is started."""
    async with httpx.AsyncClient(trust_env=False) as http, offering(settings) as mcp:
        project = project_of(settings, http, mcp)
        queue = settings.task_queue
        async with (
            model_of(settings) as model,
            observing(client, settings) as observers,
            build(client, project, queue, model, deployment, observers),
            reconciling(client, queue),
        ):
            yield


@asynccontextmanager
async def observing(client: Client, settings: Settings) -> AsyncIterator[list[Interceptor]]:
    """Spans go to a collector while the block runs, where one is named. Raises ProjectError."""
    if not settings.exports_spans:
        yield []
        return
    try:
        from activities.spans import SpanEvents, Spans
    except ImportError:
        packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        raise ProjectError(f"OTEL_EXPORTER_OTLP_ENDPOINT needs OpenTelemetry: pip install {packages}") from None
    try:
        spans = Spans.exported(os.environ, client, settings.secrets)
    except ValueError as error:
        raise ProjectError(str(error)) from None
    try:
        with telling(SpanEvents(spans)):
            yield [spans]
    finally:
        await spans.close()


@asynccontextmanager
async def answering(client: Client, task_queue: str) -> AsyncIterator[None]:
    """Answers queries and takes updates while the block runs, but makes no call to a model or tool."""
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        workflow_runner=workflow_runner(client.data_converter),
        interceptors=_told(client),
        sticky_queue_schedule_to_start_timeout=RECOVERY,
    ):
        yield


async def serve(settings: Settings) -> None:
    """Works until SIGTERM or SIGINT, then finishes what is running."""
    client = await connect(codec=settings.codec, payloads=settings.payloads)
    await affix(client, settings.task_queue, settings.codec)
    await register_search_attributes(client)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with asyncio.timeout(None) as limit, working(client, settings, settings.deployment):
            address, queue = client.service_client.config.target_host, settings.task_queue
            build_of = f", {settings.deployment}" if settings.deployment else ""
            print(f"worker ready: {address}, task queue {queue}, model {settings.model}{build_of}", flush=True)
            await stop.wait()
            limit.reschedule(asyncio.get_running_loop().time() + (GRACE + LEAVING).total_seconds())
    except TimeoutError:
        if not limit.expired():
            raise
        logging.getLogger(__name__).warning("the worker leaves without an answer of Temporal's core to its stop")


def main() -> NoReturn:
    """Exit code 0 after a stop by signal, 1 where the worker could not start."""
    secrets = secrets_of(os.environ)
    log_to_stderr(secrets)
    try:
        settings = load()
        secrets = settings.secrets
        log_to_stderr(secrets)
        quiet_core(settings.metrics)
        asyncio.run(serve(settings))
    except (ProjectError, NoMetrics, NotReachable, RPCError) as error:
        print(secrets.redact(f"worker: {error}"), file=sys.stderr)
        leave(1)
    leave(0)


if __name__ == "__main__":
    if sys.argv[1:]:
        print("worker: it takes no options; perdure.toml and the environment say what it does", file=sys.stderr)
        sys.exit(2)
    main()
