"""A command that is forked, beside the same one from nothing."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.preloaded import ROOT, program
from tests.waiting import PATIENCE

FROM_NOTHING = [sys.executable, "-Pm", "perdure.cli"]


def run_command(command: list[str], folder: Path, typed: bytes = b"", **env: str) -> tuple[int, bytes, bytes]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    environment = {**plain, "TEMPORAL_CONFIG_FILE": str(folder / "none.toml"), **env}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=typed, capture_output=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("args", "typed", "env"),
    [
        (("--version",), b"", {}),
        (("agents",), b"", {}),
        (("agents", "--json"), b"", {"PERDURE_HOME": "else where"}),
        (("nonsense",), b"", {}),
        (("run", "-"), b"caf\xe9", {"PYTHONIOENCODING": "utf-8:strict"}),
        (("agents",), b"", {"COLUMNS": "60", "PERDURE_CONFIG": "there is none.toml"}),
        (("list",), b"", {"TEMPORAL_ADDRESS": "127.0.0.1:1"}),
    ],
    ids=str,
)
def test_a_forked_command_prints_and_exits_as_a_fresh_one(
    args: tuple[str, ...], typed: bytes, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "perdure.toml").touch()
    assert run_command([program("cli"), *args], tmp_path, typed, **env) == run_command(
        [*FROM_NOTHING, *args], tmp_path, typed, **env
    )


@contextmanager
def connecting(*command: str) -> Iterator[tuple["subprocess.Popen[bytes]", socket.socket]]:
    """A worker, and its connection to what it takes for Temporal."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(PATIENCE)
        environment = {**os.environ, "TEMPORAL_ADDRESS": f"127.0.0.1:{door.getsockname()[1]}"}
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as worker:
            try:
                connection, _ = door.accept()
                connection.settimeout(PATIENCE)
                with connection:
                    yield worker, connection
            finally:
                worker.kill()


def until_it_is_gone(connection: socket.socket) -> None:
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_stand_in_and_the_command(number: signal.Signals) -> None:
    with connecting(program("worker")) as (worker, connection):
        worker.send_signal(number)
        assert worker.wait(PATIENCE) == -number
        until_it_is_gone(connection)


def test_signals_that_the_parent_ignores_stay_ignored() -> None:
    """As the background jobs of a script do."""
    with connecting("/bin/sh", "-c", 'trap "" HUP; exec "$0"', program("worker")) as (worker, _):
        worker.send_signal(signal.SIGHUP)
        worker.terminate()
        assert worker.wait(PATIENCE) == -signal.SIGTERM


def test_concurrent_threads_share_one_program() -> None:
    asks = "from concurrent.futures import ThreadPoolExecutor as T; from tests.preloaded import program"
    shows = "print(len(set(T(8).map(lambda _: program('cli'), range(8)))))"
    done = subprocess.run([sys.executable, "-c", f"{asks}; {shows}"], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"1\n"


def test_a_variable_read_at_startup_starts_a_new_python(tmp_path: Path) -> None:
    assert b"import 'click'" in run_command([program("cli"), "--version"], tmp_path, PYTHONVERBOSE="1")[2]
