"""The workflows of every worker, their sandbox, and a worker for queries and updates only."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
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

from perdure.client.guard import guard_of
from perdure.contracts.models import build_models
from perdure.registry import feature_tools, load, load_each, paces, used, used_packages
from perdure.settings.file import WorkerSettings
from perdure.workflows.agent_run.agent_run import AgentRun
from perdure.workflows.conversation import Conversation
from perdure.workflows.handlers import UnknownWorkflow
from perdure.workflows.interceptors import HeartbeatInterceptor, confidential_interceptor, unsearchable_interceptor
from perdure.workflows.sandbox import Sandbox
from perdure.workflows.shared_calls import SharedCalls

CORE: tuple[type, ...] = (AgentRun, Conversation, SharedCalls, UnknownWorkflow)


def all_workflows() -> tuple[type, ...]:
    """Return the workflows of every worker, with all loaded that their tasks use, so that none waits for an import."""
    for target in (*(tool.handler for tool in feature_tools().values()), *(pace.turn for pace in paces().values())):
        load(target)
    for row in ("on_question", "on_rest", "on_return", "on_end"):
        deque(load_each(row), maxlen=0)
    build_models()
    return (*CORE, *load_each("workflows"))


@asynccontextmanager
async def run_query_worker(client: Client, task_queue: str, sizes: WorkerSettings | None = None) -> AsyncIterator[None]:
    """Run a worker inside the block that handles queries and updates, but calls no model or tool."""
    sizes = sizes or WorkerSettings()
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=all_workflows(),
        workflow_runner=workflow_runner(client.data_converter, confirm=confirmation(client)),
        activities=[_elsewhere],
        no_remote_activities=True,
        max_concurrent_workflow_tasks=sizes.max_concurrent_workflow_tasks,
        interceptors=workflow_interceptors(client, sizes),
        sticky_queue_schedule_to_start_timeout=sizes.sticky_timeout,
        build_id=build_id(),
    ):
        yield


def build_id() -> str:
    """Return the build id: 8 hex digits, a hash of the workflow code and the features in use.

    History holds it six times a step. The SDK's default of 32 digits hashes all loaded modules, which takes a third of
    a second.
    """
    return _build_id(tuple(sorted(used().items())))


@cache
def _build_id(others: tuple[tuple[str, str], ...]) -> str:
    code = blake2b(digest_size=4)
    for package in ("perdure.contracts", "perdure.decisions", "perdure.workflows", "perdure.features"):
        for module in sorted(Path(str(files(package))).rglob("*.py")):
            code.update(module.read_bytes())
    code.update(repr(others).encode())
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
    converter: DataConverter,
    restrictions: SandboxRestrictions = SandboxRestrictions.default,
    confirm: Callable[[], None] | None = None,
) -> Sandbox:
    """Return the sandbox. Perdure's modules and those of features pass: they hold constants only, so runs share them.

    `confirm` fails a run's first task here if it comes from another server.
    """
    passed = restrictions.with_passthrough_modules("perdure", "pydantic_core", "cryptography", *used_packages())
    return Sandbox(passed, stores=converter.external_storage is not None, confirm=confirm)


def confirmation(client: Client) -> Callable[[], None] | None:
    """Return what `workflow_runner` takes to accept tasks of this client's server only."""
    guard = guard_of(client)
    return guard.confirm if guard else None
