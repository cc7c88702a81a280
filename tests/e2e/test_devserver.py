"""The embedded server, with real servers and real processes that use it and die."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeNamespaceResponse
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from perdure import devserver
from perdure.devserver import DevServer, ServerStartError, embedded_server
from perdure.process import supervisor
from tests.waiting import until

ROOT = Path(devserver.__file__).parents[1]
USER = """
import asyncio, os, sys
from pathlib import Path
from perdure.devserver import embedded_server

async def main():
    async with embedded_server(Path(sys.argv[1])) as server:
        print(server.address, server.started, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    os._exit(0)

asyncio.run(main())
"""


class User:
    """Another process that uses the server until its stdin ends."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-c", USER, str(home)]
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    async def connect(self) -> tuple[str, bool]:
        assert self.process.stdout
        address, started = (await asyncio.to_thread(self.process.stdout.readline)).split()
        return address, started == "True"

    async def leave(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        assert await asyncio.to_thread(self.process.wait, 15) == 0


@contextmanager
def use_server(home: Path) -> Iterator[User]:
    user = User(home)
    with user.process:
        try:
            yield user
        finally:
            user.process.kill()


def server_file(home: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((home / "server.json").read_text())
    return read


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_locked(path: Path, against: int) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, against | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_down(home: Path) -> bool:
    """No supervisor and no server: each of them would hold the lock."""
    return not is_locked(home / "server.lock", fcntl.LOCK_EX)


def is_open(server: DevServer) -> bool:
    host, _, port = server.address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0])


def listeners(pid: int) -> list[str]:
    """The addresses a process listens at, as the kernel writes them (hexadecimal)."""
    owned = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in owned]


async def describe_namespace(server: DevServer) -> DescribeNamespaceResponse:
    client = await Client.connect(server.address)
    return await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"), retry=True)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    """Nothing runs any more when a test has ended."""
    home = tmp_path / "state"
    home.mkdir()
    yield home
    await until(lambda: all(is_down(lock.parent) for lock in home.rglob("server.lock")))


async def test_processes_that_start_at_once_share_one_server_until_the_last_leaves(home: Path) -> None:
    with use_server(home) as first, use_server(home) as second:
        seen = [await first.connect(), await second.connect()]
        assert seen[0][0] == seen[1][0]
        assert sorted(started for _, started in seen) == [False, True]
        server = server_file(home)["pid"]
        starter, other = (first, second) if seen[0][1] else (second, first)
        await starter.leave()
        async with embedded_server(home) as joined:
            assert not joined.started
            assert server_file(home)["pid"] == server
        await other.leave()
        await until(lambda: not is_alive(server))


async def test_sigkill_of_the_only_user_ends_the_server(home: Path) -> None:
    with use_server(home) as user:
        await user.connect()
        server = server_file(home)["pid"]
        user.process.kill()
        await until(lambda: not is_alive(server))
        await until(lambda: not (home / "server.json").exists())


async def test_sigkill_of_a_user_that_is_still_starting_the_server_leaves_nothing(home: Path) -> None:
    with use_server(home) as user:
        await until((home / "server.json").exists)
        user.process.kill()
        await until(lambda: is_down(home))


async def test_a_run_with_search_attributes_survives_a_restart_in_a_folder_with_an_odd_name(home: Path) -> None:
    odd = home / "my project? #1 100%20 'sure' & so on"
    waiting = SearchAttributePair(SearchAttributeKey.for_keyword("WaitingFor"), "human: approve charge")
    async with embedded_server(odd) as first:
        await (await Client.connect(first.address)).start_workflow(
            "AgentRun",
            id="run:r1",
            task_queue="nobody",
            search_attributes=TypedSearchAttributes([waiting]),
        )
    await until(lambda: is_down(odd))
    async with embedded_server(odd) as second:
        assert second == first  # on the same ports, and started again
        run = await (await Client.connect(second.address)).get_workflow_handle("run:r1").describe()
        assert run.status is WorkflowExecutionStatus.RUNNING
        assert run.typed_search_attributes[waiting.key] == waiting.value


async def test_a_user_that_comes_while_the_server_is_being_ended_gets_a_new_one(home: Path) -> None:
    async with embedded_server(home) as first:
        ended = server_file(home)["pid"]
    await until(lambda: is_locked(home / "users.lock", fcntl.LOCK_SH))
    assert is_alive(ended)
    async with embedded_server(home) as second:
        assert second == first
        assert not is_alive(ended)


async def test_a_server_that_was_killed_comes_back_with_what_it_knew(home: Path) -> None:
    async with embedded_server(home) as server:
        client = await Client.connect(server.address)
        await client.start_workflow("AgentRun", id="run:r1", task_queue="nobody")
        born, first = time.monotonic(), server_file(home)["pid"]
        await until(lambda: time.monotonic() - born > supervisor.CRASH_LOOP)
        os.kill(first, signal.SIGKILL)
        await until(lambda: server_file(home)["pid"] != first)
        async with embedded_server(home) as joined:
            assert joined == DevServer(server.address, server.ui, started=False)
        run = await client.get_workflow_handle("run:r1").describe()  # the old connection works again
        assert run.status is WorkflowExecutionStatus.RUNNING


@pytest.mark.skipif(sys.platform != "linux", reason="it reads who the supervisor is from /proc")
async def test_a_killed_server_comes_back_when_its_port_is_free_again(home: Path) -> None:
    async with embedded_server(home) as server:
        born, first = time.monotonic(), server_file(home)["pid"]
        await until(lambda: time.monotonic() - born > supervisor.CRASH_LOOP)
        parent = parent_of(first)
        os.kill(parent, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not is_open(server))
        host, _, port = server.address.rpartition(":")
        with socket.create_server((host, int(port))):
            os.kill(parent, signal.SIGCONT)
            await until(lambda: server_file(home)["pid"] != first)
            failed = server_file(home)["pid"]
            await until(lambda: server_file(home)["pid"] != failed)
        await until(lambda: is_open(server))
        async with embedded_server(home) as joined:
            assert joined == DevServer(server.address, server.ui, started=False)


async def test_after_a_server_that_died_young_the_next_user_gets_a_new_one(home: Path) -> None:
    with use_server(home) as user:
        await user.connect()
        first = server_file(home)["pid"]

        def is_down_by_now() -> bool:
            """On a busy machine the first one may be too old to die young; then the next one does."""
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(server_file(home)["pid"], signal.SIGKILL)
            return is_down(home)

        await until(is_down_by_now)
        async with embedded_server(home) as server:
            assert server.started
            assert server_file(home)["pid"] != first


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has to help")
async def test_a_killed_supervisor_takes_its_server_along(home: Path) -> None:
    async with embedded_server(home):
        os.kill(parent_of(server_file(home)["pid"]), signal.SIGKILL)
        await until(lambda: is_down(home))
        async with embedded_server(home) as server:
            assert server.started


async def test_a_file_left_by_a_machine_that_went_down_is_not_believed(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        left = {"pid": os.getpid(), "address": address, "ui": "http://127.0.0.1:1", "started_at": ""}
        (home / "server.json").write_text(json.dumps(left))
        async with embedded_server(home) as server:
            assert server.started
            assert server.address != address


async def test_projects_that_start_at_once_get_a_server_each(home: Path) -> None:
    together = asyncio.Barrier(3)

    async def start(project: str) -> tuple[DevServer, str]:
        async with embedded_server(home / project) as server:
            await together.wait()
            return server, (await describe_namespace(server)).namespace_info.id

    seen = await asyncio.gather(*map(start, "abc"))
    assert len({server.address for server, _ in seen} | {server.ui for server, _ in seen}) == 6
    assert len({own for _, own in seen}) == 3


@pytest.mark.parametrize("which", ["port", "ui_port"])
async def test_a_given_port_in_use_is_one_clear_error(home: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(ServerStartError) as refused:
            async with embedded_server(home, **{which: port}):
                pass
    assert str(refused.value) == f"port {port} cannot be used (Address already in use): choose another port, or omit it"


async def test_a_broken_database_is_one_line_with_its_cause(home: Path) -> None:
    (home / "temporal.db").write_text("no database " * 1000)
    with pytest.raises(ServerStartError, match="file is not a database") as failed:
        async with embedded_server(home):
            pass
    assert "\n" not in str(failed.value)


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Path, DevServer]]:
    home = tmp_path_factory.mktemp("running")
    async with embedded_server(home, dynamic_config={"limit.blobSize.error": 1_000_000}) as server:
        yield home, server
    await until(lambda: is_down(home))


async def test_ended_runs_are_kept_for_a_week(running: tuple[Path, DevServer]) -> None:
    kept = (await describe_namespace(running[1])).config.workflow_execution_retention_ttl
    assert kept.ToTimedelta() == timedelta(days=7)


async def test_a_setting_given_by_the_caller_reaches_the_server(running: tuple[Path, DevServer]) -> None:
    assert (await describe_namespace(running[1])).namespace_info.limits.blob_size_limit_error == 1_000_000


async def test_a_port_given_while_the_server_runs_on_another_is_refused(running: tuple[Path, DevServer]) -> None:
    home, server = running
    with pytest.raises(ServerStartError, match=f"running at {server.address}"):
        async with embedded_server(home, port=1):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_socket_is_bound_to_loopback(running: tuple[Path, DevServer]) -> None:
    listening = listeners(server_file(running[0])["pid"])
    assert len(listening) >= 2
    assert all(address.startswith("0100007F:") for address in listening)
