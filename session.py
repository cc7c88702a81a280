"""Where a command runs: the configured Temporal, or an embedded server with a worker of its own."""

import fcntl
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from temporalio.client import Client

from activities.workspace import folder_name
from decisions import ids
from devserver import NAMESPACE, embedded
from runs import NotReachable, configured_address, connect, register_search_attributes
from seal import affix, check
from settings import Settings
from telemetry import log_to


class Needs(Enum):
    """What a command needs beside the server. With a configured Temporal, workers are somebody else's."""

    nothing = "nothing"
    answers = "answers"  # queries and updates are answered
    work = "work"  # runs go on


@dataclass(frozen=True)
class Session:
    client: Client
    settings: Settings
    ui: str | None  # of the embedded server

    def page_of(self, run_id: str) -> str | None:
        """The run's page in the Web UI."""
        workflow = quote(ids.run_workflow_id(run_id), safe=":")
        return f"{self.ui}/namespaces/{NAMESPACE}/workflows/{workflow}" if self.ui else None

    async def has_worker(self) -> bool:
        """Whether anybody works on the task queue."""
        if self.ui is not None:  # the server itself would tell of pollers that left minutes ago, too
            return _is_locked(_worker_lock(self.settings))
        from temporalio.api.enums.v1 import TaskQueueType
        from temporalio.api.taskqueue.v1 import TaskQueue
        from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

        answer = await self.client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self.client.namespace,
                task_queue=TaskQueue(name=self.settings.task_queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
        )
        return bool(answer.pollers)


def _worker_lock(settings: Settings) -> Path:
    """Held by each worker beside an embedded server: the kernel drops it with its owner."""
    return settings.home / f"worker-{folder_name(settings.task_queue)}.lock"


def _is_locked(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@asynccontextmanager
async def session(
    settings: Settings, needs: Needs, *, port: int | None = None, ui_port: int | None = None
) -> AsyncIterator[Session]:
    """Raises NotReachable, ProjectError, devserver.ServerDidNotStart."""
    if configured_address() is not None:
        if port or ui_port:
            raise NotReachable("a Temporal server is configured by TEMPORAL_*; ports are for the embedded one")
        there = Session(await connect(codec=settings.codec, payloads=settings.payloads), settings, None)
        await check(there.client, settings.task_queue, settings.codec, there.has_worker)
        yield there
        return
    async with embedded(settings.home, port=port, ui_port=ui_port) as server:
        client = await connect(server.address, settings.codec, settings.payloads)
        await register_search_attributes(client)
        found = Session(client, settings, server.ui)
        if needs is Needs.work:
            await affix(client, settings.task_queue, settings.codec)
        else:
            await check(client, settings.task_queue, settings.codec, found.has_worker)
        if needs is Needs.nothing or (needs is Needs.answers and await found.has_worker()):
            yield found
            return
        # Loading workflows takes half a second, and a whole worker a second: only commands that need them pay for it.
        if needs is Needs.answers:
            from answering import answering

            async with answering(client, settings.task_queue):
                yield found
            return
        from worker import working

        log_to(logging.FileHandler(settings.home / "worker.log", encoding="utf-8"), settings.secrets)
        async with working(client, settings):
            with _worker_lock(settings).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH)
                yield found
