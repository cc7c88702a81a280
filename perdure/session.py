"""A command's session: the configured Temporal, or an embedded server with a worker."""

import asyncio
import fcntl
import logging
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from temporalio.client import Client

from perdure.activities.security import create_private
from perdure.activities.storage.workspace import folder_name
from perdure.client.connection import configured_address, connect, refresh_api_key, register_search_attributes
from perdure.client.errors import TemporalUnavailableError
from perdure.client.guard import watching_server
from perdure.decisions import ids
from perdure.devserver import NAMESPACE, DevServer, embedded_server, is_locked, prepare_home
from perdure.extras import naming_extras
from perdure.process.queue_marker import check_marker, check_owner, name_server, set_marker
from perdure.process.streams import detach_tools
from perdure.settings import ProjectError, Settings
from perdure.telemetry import log_to

if TYPE_CHECKING:
    from temporalio.api.taskqueue.v1 import PollerInfo

WORKER_START_TIMEOUT = 15.0  # seconds to wait for a starting worker, which takes two to five
POLL_TIME = timedelta(seconds=75)  # a poll takes at most 60; the server lists a worker for minutes after it left
LOCK_POLL_INTERVAL = 0.05
TAKE_OVER_INTERVAL = 0.5  # seconds between checks whether another process's worker has gone

_log = logging.getLogger(__name__)


class Needs(Enum):
    """A command's requirement, if the server is embedded. A configured Temporal has its own workers."""

    nothing = "nothing"
    answers = "answers"  # queries and updates are answered
    work = "work"  # runs go on: by another process's worker, or by one of this process
    follow = "follow"  # as `work`; if a worker cannot start, queries and updates are answered
    worker = "worker"  # runs go on by a worker of this process

    @property
    def starts_worker(self) -> bool:
        return self in (Needs.work, Needs.follow, Needs.worker)


@dataclass(frozen=True)
class Session:
    client: Client
    settings: Settings
    ui: str | None  # of the embedded server
    is_busy: Callable[[], bool] = bool  # whether a worker in this process is making a call
    fault: ProjectError | None = None  # for which no worker of this process could start
    stands_by: bool = False  # another process has the worker, with an environment of its own

    def web_ui_page(self, run_id: str) -> str | None:
        """Return the address of the run's page in the Web UI."""
        workflow = quote(ids.run_workflow_id(run_id), safe=":")
        return f"{self.ui}/namespaces/{NAMESPACE}/workflows/{workflow}" if self.ui else None

    async def has_worker(self) -> bool:
        """Return whether the task queue has a worker; with an embedded server, wait for one that is starting."""
        if self.ui is not None:  # the server also reports pollers that left minutes ago
            return await _has_local_worker(self.settings)
        return bool(await self._list_pollers())

    async def worker_differences(self) -> str | None:
        """Return a line if workers of the task queue run different code, or other features."""
        oldest = datetime.now(UTC) - POLL_TIME
        polling = [each for each in await self._list_pollers() if each.last_access_time.ToDatetime(UTC) > oldest]
        builds = Counter(each.worker_version_capabilities.build_id for each in polling)
        if len(builds) < 2:
            return None
        counts = ", ".join(f"{count} of build {build or 'unknown'}" for build, count in builds.most_common())
        return (
            f"workers of task queue {self.settings.task_queue} differ: {counts}. If no upgrade is under way, give all "
            "of them the same version and the same [features] use"
        )

    async def _list_pollers(self) -> Sequence["PollerInfo"]:
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
        return answer.pollers

    async def missing_worker_message(self, run_id: str | None = None) -> str | None:
        """Return a message if no worker is running, with the command that starts one, for `run_id` if given."""
        if self.fault is not None:
            return "no worker starts beside these faults; once they are corrected: perdure dev"
        if await self.has_worker():
            return None
        if self.ui is None:
            return "no worker is running; start one with: perdure worker"
        if is_locked(worker_lock_path(self.settings, "starting"), fcntl.LOCK_EX):
            return "no worker is running yet; one is starting, and takes the work up then"
        command = f"watch {shlex.quote(run_id)}" if run_id and not run_id.startswith(ids.ADDRESSED_PREFIXES) else "dev"
        return f"no worker is running; start one with: perdure {command}"

    @property
    def rehearsal_message(self) -> str | None:
        """A message if no model is configured. Workers on other machines may have one."""
        if not self.settings.is_rehearsal:
            return None
        so = ", so" if self.ui and not self.stands_by else " here; if the worker has none either,"
        line = f"No model is configured{so} the rehearsal model answers, by rule."
        return f"{line} For a real one set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL."


def worker_lock_path(settings: Settings, state: Literal["worker", "starting"]) -> Path:
    """Return the path of the lock that each worker of an embedded server holds, or holds while it starts.

    `perdure dev` holds the second one while it starts again, too.
    """
    return settings.home / f"{state}-{folder_name(settings.task_queue)}.lock"


def _load_worker() -> None:
    """Import the worker. Where it is not installed, the import that needs it reports that."""
    with suppress(ImportError):
        import_module("perdure.process.worker")


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


async def _has_local_worker(settings: Settings) -> bool:
    deadline = asyncio.get_running_loop().time() + WORKER_START_TIMEOUT
    while not is_locked(worker_lock_path(settings, "worker"), fcntl.LOCK_EX):
        if (
            not is_locked(worker_lock_path(settings, "starting"), fcntl.LOCK_EX)
            or asyncio.get_running_loop().time() > deadline
        ):
            # Between the two checks the worker may have taken its lock and dropped the starting lock.
            return is_locked(worker_lock_path(settings, "worker"), fcntl.LOCK_EX)
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
        await check_owner(remote.client, settings.home, settings.name)
        await check_marker(remote.client, settings.task_queue, settings.codec, remote.has_worker, settings.name)
        async with watching_server(remote.client), refresh_api_key(remote.client):
            yield remote
        return
    prepare_home(settings.home)
    with ExitStack() as starting:
        if needs.starts_worker:  # before the server starts: its other users then wait for this worker
            starting.enter_context(_hold_lock(worker_lock_path(settings, "starting")))
            # Loading a worker takes over a second, in which the server starts on another core.
            loading = asyncio.create_task(asyncio.to_thread(_load_worker))
            starting.callback(loading.cancel)
        async with (
            embedded_server(settings.home, port=port, ui_port=ui_port) as server,
            _open_embedded(server, settings, needs, logs=logs) as embedded_session,
            watching_server(embedded_session.client),
        ):
            starting.close()
            yield embedded_session


@asynccontextmanager
async def _open_embedded(server: DevServer, settings: Settings, needs: Needs, *, logs: bool) -> AsyncIterator[Session]:
    client = await connect(server.address, settings.codec, settings.payloads)
    await name_server(client, settings.name)
    await register_search_attributes(client)
    opened = Session(client, settings, server.ui)
    if needs.starts_worker:
        await set_marker(client, settings.task_queue, settings.codec)
    else:
        await check_marker(client, settings.task_queue, settings.codec, opened.has_worker)
    if needs is Needs.nothing or (needs is Needs.answers and await opened.has_worker()):
        yield opened
        return
    async with AsyncExitStack() as stack:
        yield await _with_worker(opened, needs, stack, logs=logs)


async def _with_worker(opened: Session, needs: Needs, stack: AsyncExitStack, *, logs: bool) -> Session:
    """Return the session with the worker that the command needs, which `stack` ends. Raises ProjectError."""
    client, settings = opened.client, opened.settings
    # Loading workflows takes half a second, and a whole worker a second: only commands that need them pay for it.
    if needs is Needs.answers:
        with naming_extras():
            from perdure.process.workflows import run_query_worker

        await stack.enter_async_context(run_query_worker(client, settings.task_queue, settings.file.worker))
        return opened
    detach_tools()
    if needs in (Needs.work, Needs.follow) and is_locked(worker_lock_path(settings, "worker"), fcntl.LOCK_EX):
        is_busy = await stack.enter_async_context(_standing_by(client, settings, logs=logs))
        return replace(opened, is_busy=is_busy, stands_by=True)
    try:
        is_busy = await stack.enter_async_context(_own_worker(client, settings, logs=logs))
    except ProjectError as error:
        if needs is not Needs.follow:
            raise
        without = await _with_worker(opened, Needs.answers, stack, logs=logs)
        return replace(without, fault=error)
    return replace(opened, is_busy=is_busy)


@asynccontextmanager
async def _own_worker(client: Client, settings: Settings, *, logs: bool) -> AsyncIterator[Callable[[], bool]]:
    """Run a worker in the block. Yields whether it is making a call."""
    with naming_extras():
        from perdure.process.worker import limit_shutdown, run_worker

    if logs:
        log_to(logging.FileHandler(create_private(settings.home / "worker.log"), encoding="utf-8"), settings.secrets)
    grace = settings.file.worker.grace
    async with limit_shutdown(grace) as begin_shutdown, run_worker(client, settings) as observed:
        with _hold_lock(worker_lock_path(settings, "worker")):
            try:
                yield lambda: observed.attempts > 0
            finally:
                begin_shutdown()


@asynccontextmanager
async def _standing_by(client: Client, settings: Settings, *, logs: bool) -> AsyncIterator[Callable[[], bool]]:
    """Leave the work to another process, whose worker may be younger than the files that this one has read, and take
    it over when the last one has gone.
    """
    busy = list[Callable[[], bool]]()

    async def stand_by() -> None:
        while is_locked(worker_lock_path(settings, "worker"), fcntl.LOCK_EX):  # noqa: ASYNC110 - another process's
            await asyncio.sleep(TAKE_OVER_INTERVAL)
        async with _own_worker(client, settings, logs=logs) as is_busy:
            busy.append(is_busy)
            await asyncio.Event().wait()

    task = asyncio.create_task(stand_by())
    try:
        yield lambda: any(is_busy() for is_busy in busy)
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()):
            _log.warning("no worker could take over: %s", error)
