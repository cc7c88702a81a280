"""The worker: runs agent workflows and their activities on one task queue. `python worker.py` starts one."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn

import httpx
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker, WorkerDeploymentConfig

from activities.conversation import Conversations
from activities.delegation import Delegations
from activities.followup.followup import FollowUps
from activities.mailbox.client import Mailboxes
from activities.model.port import Model
from activities.model.summarize import Summaries
from activities.model.transcript_cache import Transcripts
from activities.model.turn import Turns
from activities.project import Project
from activities.reconcile.reconcile import Reconciliations
from activities.run.files import Runs
from activities.run.fork import Inheritances
from activities.run.status import Standings
from activities.security.private import make_private
from activities.security.redaction import Redaction
from activities.security.secrets import secrets_of
from activities.telemetry.metrics import Observation
from activities.tools.call import ToolCalls
from activities.tools.queue import QueueResults
from perdure.client.connection import connect, register_search_attributes
from perdure.client.errors import NotReachable
from perdure.process.concealing import concealed
from perdure.process.encryption_marker import affix
from perdure.process.mcp_tools import offering
from perdure.process.models import model_of
from perdure.process.project import project_of, unpriced_budgets
from perdure.process.reconcile_schedule import reconciling
from perdure.process.shutdown import leave
from perdure.process.streams import count_as_busy, detach_tools, guard_streams, open_closed
from perdure.process.variables import normalize
from perdure.process.workflows import RECOVERY, WORKFLOWS, build_id, of_runs, workflow_runner
from settings import Deployment, ProjectError, Settings, WorkerSettings, load
from telemetry import NoMetrics, log_to_stderr, quiet_core, telling
from workflows.sharing import Sharing

GRACE = timedelta(seconds=30)  # for active calls to complete after SIGTERM, which does not cancel them
LEAVING = timedelta(seconds=10)  # after GRACE: the SDK's core sometimes never shuts down
SHOWN_WITHIN = timedelta(milliseconds=200)  # until partial text reaches a watcher


def build(  # noqa: PLR0913 - a worker's parts
    client: Client,
    project: Project,
    task_queue: str,
    model: Model,
    deployment: Deployment | None = None,
    observers: Sequence[Interceptor] | None = None,
    sizes: WorkerSettings | None = None,
) -> Worker:
    """Return a worker with all workflows and activities. `observers` see redacted data (default: `Observation`)."""
    sizes = sizes or WorkerSettings()
    transcripts = Transcripts(client, project.stores)
    return Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        activities=_activities(client, project, task_queue, model, transcripts),
        workflow_runner=workflow_runner(client.data_converter),
        interceptors=[
            *(observers or [Observation()]),
            Redaction(project.secrets),
            Sharing(transcripts),
            *of_runs(client),
        ],
        max_concurrent_activities=sizes.max_concurrent_activities,
        max_cached_workflows=sizes.max_cached_workflows,
        sticky_queue_schedule_to_start_timeout=RECOVERY,
        graceful_shutdown_timeout=GRACE,
        max_heartbeat_throttle_interval=SHOWN_WITHIN,
        default_heartbeat_throttle_interval=SHOWN_WITHIN,
        build_id=None if deployment else build_id(),
        deployment_config=versioned(deployment) if deployment else None,
    )


def _activities(
    client: Client, project: Project, task_queue: str, model: Model, transcripts: Transcripts
) -> list[Callable[..., Any]]:
    turns = Turns(client, model, transcripts, project)
    runs = Runs(client, transcripts, project)
    conversations = Conversations(client, transcripts, project)
    follow_ups = FollowUps(client, project)
    delegations = Delegations(client, project)
    mailboxes = Mailboxes(client, task_queue)
    return [
        turns.plan,
        turns.reflect,
        Summaries(model, transcripts, project).summarize,
        ToolCalls(client, transcripts, project, GRACE).call_tool,
        QueueResults(client, project).keep_result,
        runs.open_run,
        runs.close_segment,
        Inheritances(client, transcripts, project).inherit,
        conversations.join_conversation,
        conversations.answer_turn,
        conversations.open_turn,
        Reconciliations(client, project.stores, task_queue).reconcile,
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
    ]


def versioned(deployment: Deployment) -> WorkerDeploymentConfig:
    """Return a versioned deployment: a run stays on its build, also across continue-as-new."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment.name, deployment.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


@asynccontextmanager
async def working(
    client: Client, settings: Settings, deployment: Deployment | None = None
) -> AsyncIterator[Observation]:
    """Run a worker inside the block. Raises ProjectError before it starts."""
    for folder in (settings.home, settings.workspaces):
        if folder.is_dir():
            make_private(folder)
    settings.check_headers()
    with concealed(os.environ):
        async with httpx.AsyncClient(trust_env=False) as http, offering(settings) as mcp:
            project = project_of(settings, http, mcp)
            for line in unpriced_budgets(project):
                logging.getLogger(__name__).warning(line)
            queue, observation = settings.task_queue, Observation()
            async with (
                model_of(settings) as model,
                observing(client, settings) as observers,
                build(client, project, queue, model, deployment, [observation, *observers], settings.file.worker),
                reconciling(client, queue),
            ):
                count_as_busy(lambda: observation.attempts > 0)
                gc.freeze()  # loaded modules stay: a full collection blocked all runs for 0.15 s
                yield observation


@asynccontextmanager
async def observing(client: Client, settings: Settings) -> AsyncIterator[list[Interceptor]]:
    """Export spans inside the block, if a collector is configured. Raises ProjectError."""
    if not settings.exports_spans:
        yield []
        return
    try:
        from activities.telemetry.spans import SpanEvents, Spans
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


async def serve(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT, then complete active calls."""
    detach_tools()
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
        logging.getLogger(__name__).warning("worker shutdown timed out; exiting")


def main() -> NoReturn:
    """Exit with 0 after a stop by signal, with 1 if the worker cannot start."""
    open_closed()
    guard_streams()
    normalize(os.environ)
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
        print("worker: no options are accepted; configure it with perdure.toml and the environment", file=sys.stderr)
        sys.exit(2)
    main()
