"""A command's session: the configured Temporal, or an embedded server with a worker."""

import asyncio
import fcntl
import logging
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from temporalio.client import Client

from activities.security.private import create_private
from activities.storage.workspace import folder_name
from decisions import ids
from devserver import NAMESPACE, DevServer, embedded_server, is_locked, prepare_home
from perdure.client.connection import configured_address, connect, refresh_api_key, register_search_attributes
from perdure.client.errors import TemporalUnavailableError
from perdure.process.encryption_marker import check_encryption, set_marker
from perdure.process.streams import detach_tools
from settings import Settings
from telemetry import log_to

WORKER_START_TIMEOUT = 15.0  # seconds to wait for a starting worker, which takes two or three
LOCK_POLL_INTERVAL = 0.05


class Needs(Enum):
    """A command's requirement, if the server is embedded. A configured Temporal has its own workers."""

    nothing = "nothing"
    answers = "answers"  # queries and updates are answered
    work = "work"  # runs go on


@dataclass(frozen=True)
class Session:
    client: Client
    settings: Settings
    ui: str | None  # of the embedded server
    is_busy: Callable[[], bool] = bool  # whether a worker in this process is making a call

    def web_ui_page(self, run_id: str) -> str | None:
        """Return the address of the run's page in the Web UI."""
        workflow = quote(ids.run_workflow_id(run_id), safe=":")
        return f"{self.ui}/namespaces/{NAMESPACE}/workflows/{workflow}" if self.ui else None

    async def has_worker(self) -> bool:
        """Return whether the task queue has a worker; with an embedded server, wait for one that is starting."""
        if self.ui is not None:  # the server also reports pollers that left minutes ago
            return await _has_local_worker(self.settings)
        from temporalio.api.enums.v1 import TaskQueueType
        from temporalio.api.taskqueue.v1 import TaskQueue
        from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

        answer = await self.client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self.client.namespace,
                task_queue=TaskQueue(name=self.settings.task_queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            ),
            retry=True,
        )
        return bool(answer.pollers)

    async def missing_worker_message(self, run_id: str | None = None) -> str | None:
        """Return a message if no worker is running, with the command that starts one, for `run_id` if given."""
        if await self.has_worker():
            return None
        if self.ui is None:
            return "no worker is running; start one with: perdure worker"
        command = f"watch {shlex.quote(run_id)}" if run_id and not run_id.startswith(ids.FOLLOW_UP_PREFIX) else "dev"
        return f"no worker is running; start one with: perdure {command}"

    @property
    def rehearsal_message(self) -> str | None:
        """A message if no model is configured. Workers on other machines may have one."""
        if not self.settings.is_rehearsal:
            return None
        so = ", so" if self.ui else " here; if the worker has none either,"
        line = f"No model is configured{so} the rehearsal model answers, by rule."
        return f"{line} For a real one set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL."


def _lock_path(settings: Settings, state: Literal["worker", "starting"]) -> Path:
    """Return the path of the lock that each worker of an embedded server holds, or holds while it starts."""
    return settings.home / f"{state}-{folder_name(settings.task_queue)}.lock"


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


async def _has_local_worker(settings: Settings) -> bool:
    deadline = asyncio.get_running_loop().time() + WORKER_START_TIMEOUT
    while not is_locked(_lock_path(settings, "worker"), fcntl.LOCK_EX):
        if (
            not is_locked(_lock_path(settings, "starting"), fcntl.LOCK_EX)
            or asyncio.get_running_loop().time() > deadline
        ):
            # Between the two checks the worker may have taken its lock and dropped the starting lock.
            return is_locked(_lock_path(settings, "worker"), fcntl.LOCK_EX)
        await asyncio.sleep(LOCK_POLL_INTERVAL)
    return True


@asynccontextmanager
async def open_session(
    settings: Settings, needs: Needs, *, port: int | None = None, ui_port: int | None = None, logs: bool = True
) -> AsyncIterator[Session]:
    """Open a session. Without `logs`, a worker in this process does not send the process's log to its own file.

    Raises TemporalUnavailableError, ProjectError, ServerStartError.
    """
    if configured_address() is not None:
        if port or ui_port:
            raise TemporalUnavailableError(
                "a Temporal server is configured by TEMPORAL_*; ports are for the embedded one"
            )
        remote = Session(await connect(codec=settings.codec, payloads=settings.payloads), settings, None)
        await check_encryption(remote.client, settings.task_queue, settings.codec, remote.has_worker)
        async with refresh_api_key(remote.client):
            yield remote
        return
    prepare_home(settings.home)
    with ExitStack() as starting:
        if needs is Needs.work:  # before the server starts: its other users then wait for this worker
            starting.enter_context(_hold_lock(_lock_path(settings, "starting")))
            # Loading a worker takes over a second, in which the server starts on another core.
            loading = asyncio.create_task(asyncio.to_thread(import_module, "worker"))
            starting.callback(loading.cancel)
        async with (
            embedded_server(settings.home, port=port, ui_port=ui_port) as server,
            _open_embedded(server, settings, needs, logs=logs) as embedded_session,
        ):
            starting.close()
            yield embedded_session


@asynccontextmanager
async def _open_embedded(server: DevServer, settings: Settings, needs: Needs, *, logs: bool) -> AsyncIterator[Session]:
    client = await connect(server.address, settings.codec, settings.payloads)
    await register_search_attributes(client)
    opened = Session(client, settings, server.ui)
    if needs is Needs.work:
        await set_marker(client, settings.task_queue, settings.codec)
    else:
        await check_encryption(client, settings.task_queue, settings.codec, opened.has_worker)
    if needs is Needs.nothing or (needs is Needs.answers and await opened.has_worker()):
        yield opened
        return
    # Loading workflows takes half a second, and a whole worker a second: only commands that need them pay for it.
    if needs is Needs.answers:
        from perdure.process.workflows import run_query_worker

        async with run_query_worker(client, settings.task_queue, settings.file.worker):
            yield opened
        return
    from worker import limit_shutdown, run_worker

    if logs:
        log_to(logging.FileHandler(create_private(settings.home / "worker.log"), encoding="utf-8"), settings.secrets)
    detach_tools()
    grace = settings.file.worker.grace
    async with limit_shutdown(grace) as begin_shutdown, run_worker(client, settings) as observed:
        with _hold_lock(_lock_path(settings, "worker")):
            try:
                yield replace(opened, is_busy=lambda: observed.attempts > 0)
            finally:
                begin_shutdown()
