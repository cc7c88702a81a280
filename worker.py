"""The worker: runs agent workflows and their activities on one task queue. `python worker.py` starts one."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn, ParamSpec

import httpx
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker, WorkerConfig, WorkerDeploymentConfig

from activities.conversation import Conversations
from activities.delegation import Delegations
from activities.effects.beats import BeatInterceptor, BeatPolicy
from activities.followup.followup import FollowUps
from activities.mailbox.client import Mailboxes
from activities.media.attach import MediaFiles
from activities.model.accept import Acceptances
from activities.model.batches import BatchTurns
from activities.model.fused_turn import FusedTurns
from activities.model.summarize import Summaries
from activities.model.transcript_cache import TranscriptCache
from activities.model.turn import Turns
from activities.people.inbound import InboundStarts
from activities.people.notices import Notices
from activities.policy import PolicyChecks
from activities.project import Project
from activities.providers.port import Model
from activities.reconcile.reconcile import Reconciler
from activities.review import Reviewer
from activities.run.files import RunFiles
from activities.run.fork import Inheritances
from activities.run.status import RunWatcher
from activities.security.private import make_private
from activities.security.redaction import RedactionInterceptor
from activities.security.secrets import collect_secrets
from activities.storage.watchers import WatchedRuns
from activities.telemetry.metrics import MetricsInterceptor
from activities.tools.call import ToolCalls
from activities.tools.queue import QueueResults
from decisions.errors import ReportedError
from perdure.client.connection import connect, has_worker_commands, refresh_api_key, register_search_attributes
from perdure.process.encryption_marker import set_marker
from perdure.process.environment import conceal_secrets, normalize_environment
from perdure.process.mcp_tools import ToolOffer, offered_tools
from perdure.process.models import open_models
from perdure.process.project import build_project, ignored_options, unpriced_budgets
from perdure.process.reconcile_schedule import maintain_schedule
from perdure.process.shutdown import exit_now
from perdure.process.streams import detach_tools, guard_streams, open_null_streams, set_busy_check
from perdure.process.workflows import WORKFLOWS, build_id, poller_behavior, workflow_interceptors, workflow_runner
from settings import Deployment, ProjectError, Settings, load_settings
from settings.file import WorkerSettings
from telemetry import forward_events, log_to_stderr, quiet_core
from workflows.interceptors import sharing_interceptor

SHUTDOWN_TIMEOUT = timedelta(seconds=10)  # after the grace period: the SDK's core sometimes never shuts down
P = ParamSpec("P")

HEARTBEAT_THROTTLE = timedelta(milliseconds=100)  # `activities.effects.beats` decides when a heartbeat is due


def configure_worker(  # noqa: PLR0913 - a worker's parts
    client: Client,
    project: Project,
    task_queue: str,
    model: Model,
    deployment: Deployment | None = None,
    observers: Sequence[Interceptor] | None = None,
    sizes: WorkerSettings | None = None,
    *,
    hears_cancels: bool = False,
) -> WorkerConfig:
    """Return the parts and options of a worker. `observers` see redacted data (default: `MetricsInterceptor`).

    `hears_cancels`: see `BeatPolicy`.
    """
    sizes = sizes or WorkerSettings()
    transcripts = TranscriptCache(client, project.stores)
    return WorkerConfig(
        client=client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        activities=_all_activities(client, project, task_queue, model, transcripts, sizes.grace),
        workflow_runner=workflow_runner(client.data_converter),
        interceptors=[
            *(observers or [MetricsInterceptor()]),
            RedactionInterceptor(project.secrets),
            BeatInterceptor(BeatPolicy(WatchedRuns(project.workspaces), hears_cancels)),
            sharing_interceptor(transcripts),
            *workflow_interceptors(client, sizes),
        ],
        max_concurrent_activities=sizes.max_concurrent_activities,
        max_cached_workflows=sizes.max_cached_workflows,
        workflow_task_poller_behavior=poller_behavior(sizes),
        activity_task_poller_behavior=poller_behavior(sizes),
        sticky_queue_schedule_to_start_timeout=sizes.sticky_timeout,
        graceful_shutdown_timeout=sizes.grace,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        build_id=None if deployment else build_id(),
        # A run stays on its build, also across continue-as-new. `workflows.rotation` moves what never ends.
        deployment_config=WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployment.name, deployment.build_id),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        )
        if deployment
        else None,
    )


def _as_worker(configure: Callable[P, WorkerConfig]) -> Callable[P, Worker]:
    return lambda *args, **options: Worker(**configure(*args, **options))


build_worker = _as_worker(configure_worker)  # a worker with all workflows and activities


def _all_activities(  # noqa: PLR0913 - what they share
    client: Client, project: Project, task_queue: str, model: Model, transcripts: TranscriptCache, grace: timedelta
) -> list[Callable[..., Any]]:
    policies = PolicyChecks(transcripts, project, Reviewer(model, project))
    turns = Turns(client, model, transcripts, project, policies)
    batches = BatchTurns(client, model, turns, project, task_queue)
    tools = ToolCalls(client, transcripts, project, grace)
    runs = RunFiles(client, transcripts, project)
    conversations = Conversations(client, transcripts, project)
    follow_ups = FollowUps(client, project)
    delegations = Delegations(client, project)
    mailboxes = Mailboxes(client, task_queue)
    return [
        MediaFiles(project).take_attachments,
        turns.plan,
        turns.reflect,
        policies.check_policy,
        policies.find_policy,
        FusedTurns(tools, turns, transcripts, project).read_and_reflect,
        batches.write_batch_request,
        batches.open_pool,
        batches.create_batch,
        batches.look_at_batch,
        batches.deliver_batch,
        batches.fail_turns,
        Summaries(model, transcripts, project).summarize,
        Acceptances(client, model, project).accept_outcome,
        tools.call_tool,
        tools.check_change,
        QueueResults(client, project).keep_result,
        runs.open_run,
        runs.close_segment,
        Inheritances(client, transcripts, project).inherit,
        conversations.join_conversation,
        conversations.answer_turn,
        conversations.open_turn,
        Reconciler(client, project.stores, task_queue, channels=project.channels).reconcile,
        RunWatcher(client).watch_run,
        follow_ups.command_follow_up,
        follow_ups.subscribe_task,
        follow_ups.notify,
        follow_ups.resume_work,
        follow_ups.close_follow_up,
        delegations.collect,
        delegations.find_delegation,
        mailboxes.look_at_turns,
        mailboxes.dispatch_mail,
        *_outside_activities(client, project),
    ]


def _outside_activities(client: Client, project: Project) -> list[Callable[..., Any]]:
    """Return the activities of starts from outside and of notices to people."""
    inbound, notices = InboundStarts(client, project), Notices(client, project)
    return [inbound.prepare_start, inbound.submit_start, notices.send_notice, notices.is_question_open]


@asynccontextmanager
async def run_worker(
    client: Client, settings: Settings, deployment: Deployment | None = None
) -> AsyncIterator[MetricsInterceptor]:
    """Run a worker inside the block. Raises ProjectError before it starts."""
    observation = MetricsInterceptor()
    with conceal_secrets(os.environ):
        async with AsyncExitStack() as closing:
            mcp = await closing.enter_async_context(offered_tools(settings))
            hears_cancels = await has_worker_commands(client)
            config = open_worker(client, settings, mcp, observation, closing, deployment, hears_cancels=hears_cancels)
            async with Worker(**config), maintain_schedule(client, settings.task_queue):
                set_busy_check(lambda: observation.attempts > 0)
                gc.freeze()  # loaded modules stay: a full collection blocked all runs for 0.15 s
                yield observation


def open_worker(  # noqa: PLR0913 - what a worker is made of
    client: Client,
    settings: Settings,
    mcp: ToolOffer,
    observation: MetricsInterceptor,
    closing: AsyncExitStack,
    deployment: Deployment | None = None,
    *,
    hears_cancels: bool = False,
) -> WorkerConfig:
    """Return the configuration of a project's worker. `closing` closes its clients. Raises ProjectError."""
    for folder in (settings.home, settings.workspaces):
        if folder.is_dir():
            make_private(folder)
    settings.check_headers()
    settings.check_notify()
    connections = httpx.Limits(max_connections=settings.file.worker.max_concurrent_activities)
    http = httpx.AsyncClient(trust_env=False, limits=connections)
    closing.push_async_callback(http.aclose)
    project = build_project(settings, http, mcp)
    for line in (*unpriced_budgets(project), *ignored_options(project)):
        logging.getLogger(__name__).warning(line)
    model = open_models(settings, closing)
    observers = [observation, *export_spans(client, settings, closing)]
    return configure_worker(
        client,
        project,
        settings.task_queue,
        model,
        deployment,
        observers,
        settings.file.worker,
        hears_cancels=hears_cancels,
    )


def export_spans(client: Client, settings: Settings, closing: AsyncExitStack) -> list[Interceptor]:
    """Export spans until `closing` closes, if a collector is configured. Raises ProjectError."""
    if not settings.exports_spans:
        return []
    try:
        from activities.telemetry.spans import SpanEventHandler, SpanInterceptor
    except ImportError:
        packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        raise ProjectError(f"OTEL_EXPORTER_OTLP_ENDPOINT needs OpenTelemetry: pip install {packages}") from None
    try:
        spans = SpanInterceptor.from_environment(os.environ, client, settings.secrets)
    except ValueError as error:
        raise ProjectError(str(error)) from None
    closing.push_async_callback(spans.close)
    closing.enter_context(forward_events(SpanEventHandler(spans)))
    return [spans]


async def serve_worker(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT, then complete active calls."""
    detach_tools()
    client = await connect(codec=settings.codec, payloads=settings.payloads)
    await set_marker(client, settings.task_queue, settings.codec)
    sizes = settings.file.worker
    if sizes.search_attributes and (warning := await register_search_attributes(client)):
        logging.getLogger(__name__).warning(warning)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with (
        refresh_api_key(client),
        limit_shutdown(sizes.grace) as begin_shutdown,
        run_worker(client, settings, settings.deployment),
    ):
        address, queue = client.service_client.config.target_host, settings.task_queue
        build_of = f", {settings.deployment}" if settings.deployment else ""
        print(f"worker ready: {address}, task queue {queue}, model {settings.model}{build_of}", flush=True)
        await stop.wait()
        begin_shutdown()


@asynccontextmanager
async def limit_shutdown(grace: timedelta) -> AsyncIterator[Callable[[], None]]:
    """Limit the shutdown time, counted from the yielded call: the SDK's core sometimes never shuts down."""
    cause: BaseException | None = None
    try:
        async with asyncio.timeout(None) as limit:

            def begin_shutdown() -> None:
                nonlocal cause
                cause = sys.exc_info()[1]
                limit.reschedule(asyncio.get_running_loop().time() + (grace + SHUTDOWN_TIMEOUT).total_seconds())

            yield begin_shutdown
    except TimeoutError:
        if not limit.expired():
            raise
        logging.getLogger(__name__).warning("worker shutdown timed out; exiting")
        if cause is not None:
            raise cause from None


def run_worker_process() -> NoReturn:
    """Exit with 0 after a stop by signal, with 1 if the worker cannot start."""
    open_null_streams()
    guard_streams()
    normalize_environment(os.environ)
    secrets = collect_secrets(os.environ)
    log_to_stderr(secrets)
    try:
        settings = load_settings()
        secrets = settings.secrets
        log_to_stderr(secrets)
        quiet_core(settings.metrics)
        asyncio.run(serve_worker(settings))
    except (ReportedError, RPCError) as error:
        print(secrets.redact(f"worker: {error}"), file=sys.stderr)
        exit_now(1)
    exit_now(0)


if __name__ == "__main__":
    if sys.argv[1:]:
        print("worker: no options are accepted; configure it with perdure.toml and the environment", file=sys.stderr)
        sys.exit(2)
    run_worker_process()
