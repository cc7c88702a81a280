"""The workflows of every worker, their sandbox, and a worker for queries and updates only."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import (
    Interceptor,
    PollerBehavior,
    PollerBehaviorAutoscaling,
    PollerBehaviorSimpleMaximum,
    Worker,
)
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from settings.file import WorkerSettings
from workflows.agent_run.agent_run import AgentRun
from workflows.conversation.conversation import Conversation
from workflows.delegation import Delegation
from workflows.followup import FollowUp
from workflows.handlers import UnknownWorkflow
from workflows.interceptors import HeartbeatInterceptor, confidential_interceptor, unsearchable_interceptor
from workflows.mailbox import Mailbox
from workflows.model_batches.pool import ModelBatches
from workflows.people.inbound import Inbound
from workflows.people.notify import Notify
from workflows.reconcile import Reconcile
from workflows.sandbox import Sandbox
from workflows.topic import EventTopic

WORKFLOWS: tuple[type, ...] = (
    AgentRun,
    Conversation,
    Delegation,
    FollowUp,
    EventTopic,
    Mailbox,
    Inbound,
    Notify,
    ModelBatches,
    Reconcile,
    UnknownWorkflow,
)


@asynccontextmanager
async def run_query_worker(client: Client, task_queue: str, sizes: WorkerSettings | None = None) -> AsyncIterator[None]:
    """Run a worker inside the block that handles queries and updates, but calls no model or tool."""
    sizes = sizes or WorkerSettings()
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        workflow_runner=workflow_runner(client.data_converter),
        activities=[_elsewhere],
        no_remote_activities=True,
        interceptors=workflow_interceptors(client, sizes),
        sticky_queue_schedule_to_start_timeout=sizes.sticky_timeout,
        build_id=build_id(),
    ):
        yield


@cache
def build_id() -> str:
    """Return the build id: 8 hex digits, a hash of the workflow code. History holds it six times a step.

    The SDK's default of 32 digits hashes all loaded modules, which takes a third of a second.
    """
    code = blake2b(digest_size=4)
    for package in ("contracts", "decisions", "workflows"):
        for module in sorted(Path(str(files(package))).rglob("*.py")):
            code.update(module.read_bytes())
    return code.hexdigest()


@activity.defn(dynamic=True)
async def _elsewhere(_: Sequence[RawValue]) -> NoReturn:
    """Reject a run's local activity; the run then schedules it as an activity for a full worker."""
    raise ApplicationError("this process only answers; a worker does it", category=ApplicationErrorCategory.BENIGN)


def workflow_interceptors(client: Client, sizes: WorkerSettings) -> list[Interceptor]:
    """Return the interceptors that inform workflows about the worker's heartbeat, the encryption and the namespace."""
    confidential = [confidential_interceptor()] if client.data_converter.payload_codec else []
    unsearchable = [] if sizes.search_attributes else [unsearchable_interceptor()]
    return [HeartbeatInterceptor(sizes.heartbeat), *confidential, *unsearchable]


def poller_behavior(sizes: WorkerSettings) -> PollerBehavior:
    """Return a fixed number of pollers if one is set; by default it follows the load, which the server reports."""
    return PollerBehaviorSimpleMaximum(sizes.pollers) if sizes.pollers else PollerBehaviorAutoscaling()


def workflow_runner(
    converter: DataConverter, restrictions: SandboxRestrictions = SandboxRestrictions.default
) -> Sandbox:
    """Return the sandbox. Perdure's modules pass through: they hold constants only, so runs can share them."""
    passthrough = ("contracts", "decisions", "activities", "workflows", "perdure", "pydantic_core", "cryptography")
    return Sandbox(restrictions.with_passthrough_modules(*passthrough), stores=converter.external_storage is not None)
