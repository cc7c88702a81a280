"""A worker that answers for runs and makes no call: what every worker has of workflows, and the sandbox they run in."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NoReturn

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import Interceptor, Worker
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from workflows.agent_run.agent_run import AgentRun
from workflows.conversation.conversation import Conversation
from workflows.delegation import Delegation
from workflows.encryption import Confidential
from workflows.followup.followup import FollowUp
from workflows.followup.topic import EventTopic
from workflows.mailbox import Mailbox
from workflows.reconcile import Reconcile
from workflows.sandbox import Sandbox
from workflows.unknown import Unknown

RECOVERY = timedelta(seconds=1)  # a killed worker's runs are picked up by another after this

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


@asynccontextmanager
async def answering(client: Client, task_queue: str) -> AsyncIterator[None]:
    """Answers queries and takes updates while the block runs, but makes no call to a model or tool."""
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=WORKFLOWS,
        workflow_runner=workflow_runner(client.data_converter),
        activities=[_elsewhere],
        no_remote_activities=True,
        interceptors=of_runs(client),
        sticky_queue_schedule_to_start_timeout=RECOVERY,
        build_id=build_id(),
    ):
        yield


@cache
def build_id() -> str:
    """The code that decides, as Temporal is told of it: 8 hex digits, as history holds them six times a step.

    The SDK's own, of 32, is made of all that is loaded, and takes a third of a second of a process's start.
    """
    code = blake2b(digest_size=4)
    for package in ("contracts", "decisions", "workflows"):
        for module in _modules(files(package)):
            code.update(module.read_bytes())
    return code.hexdigest()


def _modules(package: Traversable) -> Iterator[Traversable]:
    """The modules of a package and of those in it, in the order of their names."""
    for entry in sorted(package.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _modules(entry)
        elif entry.name.endswith(".py"):
            yield entry


@activity.defn(dynamic=True)
async def _elsewhere(_: Sequence[RawValue]) -> NoReturn:
    """A run's own files: it asks whichever worker it is with, and then as an activity, which only a real one takes."""
    raise ApplicationError("this process only answers; a worker does it", category=ApplicationErrorCategory.BENIGN)


def of_runs(client: Client) -> list[Interceptor]:
    """The interceptors by which runs know what they must know of their worker."""
    return [Confidential()] if client.data_converter.payload_codec else []


def workflow_runner(converter: DataConverter) -> Sandbox:
    """Our own modules hold constants only, so they need not be loaded anew for each run."""
    ours = ("contracts", "decisions", "activities", "workflows", "perdure", "pydantic_core", "cryptography")
    restrictions = SandboxRestrictions.default
    return Sandbox(restrictions.with_passthrough_modules(*ours), stores=converter.external_storage is not None)
