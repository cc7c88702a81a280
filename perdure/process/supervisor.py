"""The process that supervises an embedded server and ends it with its last user; `devserver` holds the locks.

It runs in the server's home, isolated and without site packages: it may import the standard library only.
"""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HOME = "perdure.home"  # the key of the namespace's data under which the server names the folder of its state
STOP_TIMEOUT = 5.0  # seconds from SIGTERM to SIGKILL; a healthy server takes about one
CRASH_LOOP = 2.0  # seconds; a server that dies sooner has not started
RESTARTS, PAUSE = 40, 0.5  # attempts, and seconds between them: another process may hold the port for a while


@dataclass
class Supervisor:
    """Supervises one server: `lock` and `reserved` are inherited descriptors, `address` and `ui` its addresses."""

    command: list[str]
    address: str
    ui: str
    lock: int
    reserved: list[int]
    server: subprocess.Popen[bytes] | None = None
    ending: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)  # serializes end and restart

    def run(self) -> None:
        """Run the server until it has no users, is stopped, or does not start; restart it after crashes.

        One that has never run is not started again: the command that waits for it then reports the reason at once.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: _in_background(self.stop_server))
        _in_background(self.stop_without_users)
        attempts = 1
        while attempts and (server := self.start_server()):
            since = time.monotonic()
            if server.wait() == 0:
                break
            if time.monotonic() - since >= CRASH_LOOP:
                attempts = RESTARTS
            elif attempts := attempts - 1:
                time.sleep(PAUSE)
        Path("server.json").unlink(missing_ok=True)
        for port in self.reserved:  # before the locks, so that the next server finds its ports free
            os.close(port)

    def start_server(self) -> subprocess.Popen[bytes] | None:
        with self.turn:
            if self.ending:
                return None
            self.server = subprocess.Popen(
                self.command,
                pass_fds=[self.lock],
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it only calls prctl
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"pid": self.server.pid, "address": self.address, "ui": self.ui, "started_at": now}
        write_json(Path("server.json"), about)
        return self.server

    def stop_without_users(self) -> None:
        users = os.open("users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_EX)  # held until this process exits, which a new user waits for
        self.stop_server()

    def stop_server(self) -> None:
        with self.turn:
            self.ending = True
        if self.server is None:
            return
        self.server.terminate()
        try:
            self.server.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.server.kill()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    draft = path.with_name(f"{path.name}.new")
    with open(draft, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(json.dumps(value) + "\n")
    draft.replace(path)


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def die_with_parent() -> None:
    """Kill the server with its supervisor (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG


if __name__ == "__main__":
    os.umask(0o077)  # the server's database, logs and addresses are for this user alone; uvloop sets none for a child
    if os.fork():  # detached: no user must reap it, and it outlives a user's process tree
        os._exit(0)
    Supervisor(**json.loads(sys.argv[1])).run()
