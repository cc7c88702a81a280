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
from functools import partial
from itertools import chain
from typing import Any, NoReturn, ParamSpec

import httpx
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker, WorkerConfig, WorkerDeploymentConfig

from perdure.activities.conversation import Conversations
from perdure.activities.effects.attempts import BeatInterceptor, BeatPolicy
from perdure.activities.effects.holding import Holds
from perdure.activities.effects.places import LimitedPlaces
from perdure.activities.media.store import MediaFiles
from perdure.activities.model.accept import Acceptances
from perdure.activities.model.fused_turn import FusedTurns
from perdure.activities.model.summarize import Summaries
from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.model.turn import Turns
from perdure.activities.parts import WorkerParts, activities_of
from perdure.activities.policy import PolicyChecks, Reviewer, reserve_shared_calls
from perdure.activities.project import Project
from perdure.activities.providers.port import Admission, Model, SharedLimit
from perdure.activities.redaction import RedactionInterceptor
from perdure.activities.run.files import Inheritances, RunFiles
from perdure.activities.run.status import RunWatcher
from perdure.activities.security import collect_secrets, make_private
from perdure.activities.storage.watchers import WatchedRuns
from perdure.activities.telemetry.metrics import MetricsInterceptor
from perdure.activities.tools.call import ToolCalls
from perdure.activities.tools.outside import QueueResults
from perdure.activities.tools.server_tasks import ServerTasks
from perdure.client.connection import connect, refresh_api_key, register_search_attributes
from perdure.client.guard import watching_server
from perdure.decisions.errors import ReportedError
from perdure.extras import install_command
from perdure.process.guard import all_acting, guard_interceptors, hold_interceptor
from perdure.process.models import open_models
from perdure.process.project import ToolOffer, build_project, ignored_options, must_load, open_offer, unpriced_budgets
from perdure.process.queue_marker import check_owner, set_marker
from perdure.process.streams import (
    conceal_secrets,
    detach_tools,
    exit_now,
    guard_streams,
    normalize_environment,
    open_null_streams,
    set_busy_check,
)
from perdure.process.workflows import (
    all_workflows,
    build_id,
    confirmation,
    poller_behavior,
    workflow_interceptors,
    workflow_runner,
)
from perdure.registry import load_each
from perdure.settings import Deployment, ProjectError, Settings, load_settings
from perdure.settings.file import WorkerSettings
from perdure.settings.flaws import find_project_flaws
from perdure.telemetry import forward_events, log_to_stderr, quiet_core
from perdure.workflows.interceptors import sharing_interceptor

SHUTDOWN_TIMEOUT = timedelta(seconds=10)  # after the grace period: the SDK's core sometimes never shuts down
P = ParamSpec("P")

HEARTBEAT_THROTTLE = timedelta(
    milliseconds=100
)  # `perdure.activities.effects.attempts` decides when a heartbeat is due


def configure_worker(  # noqa: PLR0913 - a worker's parts
    client: Client,
    project: Project,
    task_queue: str,
    model: Model,
    deployment: Deployment | None = None,
    observers: Sequence[Interceptor] | None = None,
    sizes: WorkerSettings | None = None,
    admission: Admission | None = None,
) -> WorkerConfig:
    """Return the parts and options of a worker. `observers` see redacted data (default: `MetricsInterceptor`).

    `admission` is that of the model.
    """
    sizes = sizes or WorkerSettings()
    transcripts = TranscriptCache(client, project.stores)
    policies = PolicyChecks(transcripts, project, Reviewer(model, project), partial(reserve_shared_calls, client))
    turns = Turns(client, model, transcripts, project, policies)
    places = next(open_one(client, project, task_queue) for open_one in load_each("places"))
    calls = ToolCalls(client, transcripts, project, sizes.grace, places)
    parts = WorkerParts(client, project, task_queue, model, transcripts, turns, calls, sizes.grace)
    return WorkerConfig(
        client=client,
        task_queue=task_queue,
        workflows=all_workflows(),
        activities=_all_activities(parts, admission, places),
        workflow_runner=workflow_runner(client.data_converter, confirm=confirmation(client)),
        interceptors=_interceptors(parts, observers or [MetricsInterceptor()], sizes),
        max_concurrent_activities=sizes.max_concurrent_activities,
        max_concurrent_workflow_tasks=sizes.max_concurrent_workflow_tasks,
        max_cached_workflows=sizes.max_cached_workflows,
        workflow_task_poller_behavior=poller_behavior(sizes),
        activity_task_poller_behavior=poller_behavior(sizes),
        sticky_queue_schedule_to_start_timeout=sizes.sticky_timeout,
        graceful_shutdown_timeout=sizes.grace,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        build_id=None if deployment else build_id(),
        # A run stays on its build, also across continue-as-new. `perdure.workflows.rotation` moves what never ends.
        deployment_config=WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployment.name, deployment.build_id),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        )
        if deployment
        else None,
    )


def _interceptors(parts: WorkerParts, observers: Sequence[Interceptor], sizes: WorkerSettings) -> list[Interceptor]:
    """Return a worker's interceptors, the outermost first."""
    client, project = parts.client, parts.project
    return [
        *guard_interceptors(client),
        hold_interceptor(client, parts.task_queue, all_acting()),
        *observers,
        RedactionInterceptor(project.secrets),
        BeatInterceptor(BeatPolicy(WatchedRuns(project.workspaces))),
        sharing_interceptor(parts.transcripts.share_live),
        *workflow_interceptors(client, sizes),
    ]


def _as_worker(configure: Callable[P, WorkerConfig]) -> Callable[P, Worker]:
    return lambda *args, **options: Worker(**configure(*args, **options))


build_worker = _as_worker(configure_worker)  # a worker with all workflows and activities


def _all_activities(
    parts: WorkerParts, admission: Admission | None, places: LimitedPlaces | None
) -> list[Callable[..., Any]]:
    """Return the activities of the core and of the features."""
    client, project, model, transcripts, turns, tools = (
        parts.client,
        parts.project,
        parts.model,
        parts.transcripts,
        parts.turns,
        parts.calls,
    )
    core = (
        turns,
        turns.policies,
        tools,
        ServerTasks(tools),
        MediaFiles(project),
        FusedTurns(tools, turns, transcripts, project),
        Summaries(model, transcripts, project),
        Acceptances(client, model, project),
        QueueResults(client, project),
        RunFiles(client, transcripts, project, admission, places),
        Inheritances(client, transcripts, project),
        Conversations(client, transcripts, project),
        RunWatcher(client),
        Holds(),
    )
    added = (kind.of(parts) for kind in load_each("activities"))
    return [method for owner in (*core, *added) for method in activities_of(owner)]


@asynccontextmanager
async def run_worker(
    client: Client, settings: Settings, deployment: Deployment | None = None
) -> AsyncIterator[MetricsInterceptor]:
    """Run a worker inside the block. Raises ProjectError before it starts."""
    observation = MetricsInterceptor()
    with conceal_secrets(os.environ):
        async with AsyncExitStack() as closing:
            await must_load(settings)
            offer = await closing.enter_async_context(open_offer(settings))
            await check_owner(client, settings.home, settings.name)
            config = open_worker(client, settings, offer, observation, closing, deployment)
            async with Worker(**config), beside_worker(client, settings.task_queue):
                set_busy_check(lambda: observation.attempts > 0)
                gc.freeze()  # loaded modules stay: a full collection blocked all runs for 0.15 s
                yield observation


def open_worker(  # noqa: PLR0913 - what a worker is made of
    client: Client,
    settings: Settings,
    offer: ToolOffer,
    observation: MetricsInterceptor,
    closing: AsyncExitStack,
    deployment: Deployment | None = None,
) -> WorkerConfig:
    """Return the configuration of a project's worker. `closing` closes its clients. Raises ProjectError."""
    for folder in (settings.home, settings.workspaces):
        if folder.is_dir():
            make_private(folder)
    connections = httpx.Limits(max_connections=settings.file.worker.max_concurrent_activities)
    http = httpx.AsyncClient(trust_env=False, limits=connections)
    closing.push_async_callback(http.aclose)
    project = build_project(settings, http, offer, is_worker=True)
    faults = "\n".join(dict.fromkeys(project.faulty.values())).splitlines()
    warnings = unpriced_budgets(project), ignored_options(project), find_project_flaws(project, settings)
    for line in chain(faults, *warnings):
        logging.getLogger(__name__).warning(line)
    admission = open_admission(client, settings, project, closing)
    model = open_models(settings, closing, admission, open_limits(client, settings, closing))
    observers = [observation, *export_spans(client, settings, closing)]
    return configure_worker(
        client,
        project,
        settings.task_queue,
        model,
        deployment,
        observers,
        settings.file.worker,
        admission,
    )


def open_admission(client: Client, settings: Settings, project: Project, closing: AsyncExitStack) -> Admission | None:
    """Return what admits the worker's runs and calls, if the project limits them. Raises ProjectError."""
    opened = (open_one(client, settings, project, closing) for open_one in load_each("admission"))
    return next((admission for admission in opened if admission is not None), None)


def open_limits(client: Client, settings: Settings, closing: AsyncExitStack) -> dict[str, SharedLimit]:
    """Return the limits of providers that the project's workers share, by provider."""
    return {
        name: limit
        for open_shared in load_each("provider_limits")
        for name, limit in open_shared(client, settings, closing).items()
    }


@asynccontextmanager
async def beside_worker(client: Client, task_queue: str) -> AsyncIterator[None]:
    """Keep open what features have beside a worker."""
    async with AsyncExitStack() as stack:
        for open_beside in load_each("beside_worker"):
            await stack.enter_async_context(open_beside(client, task_queue))
        yield


def export_spans(client: Client, settings: Settings, closing: AsyncExitStack) -> list[Interceptor]:
    """Export spans until `closing` closes, if a collector is configured. Raises ProjectError."""
    if not settings.exports_spans:
        return []
    try:
        from perdure.activities.telemetry.spans import SpanEventHandler, SpanInterceptor
    except ImportError:
        needed = f"OTEL_EXPORTER_OTLP_ENDPOINT needs OpenTelemetry: {install_command('telemetry')}"
        raise ProjectError(needed) from None
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
    await set_marker(client, settings.task_queue, settings.codec, settings.name)
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
        watching_server(client),
    ):
        address, queue = client.service_client.config.target_host, settings.task_queue
        build_of = f", {settings.deployment}" if settings.deployment else ""
        print(f"worker ready: {address}, task queue {queue}, model {settings.model}{build_of}", flush=True)
        try:
            await stop.wait()
        finally:
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
        settings = load_settings(strict=False)  # the other faults are reported with those of tools and policy
        secrets = settings.secrets
        log_to_stderr(secrets)
        quiet_core(settings.metrics)
        asyncio.run(serve_worker(settings))
    except (ReportedError, RPCError) as error:
        for line in str(error).splitlines():
            print(secrets.redact(f"worker: {line}"), file=sys.stderr)
        exit_now(1)
    exit_now(0)


def run_worker_program() -> NoReturn:
    """`python worker.py`."""
    if sys.argv[1:]:
        print("worker: no options are accepted; configure it with perdure.toml and the environment", file=sys.stderr)
        sys.exit(2)
    run_worker_process()
