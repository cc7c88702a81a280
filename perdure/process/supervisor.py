"""The process beside one embedded server, which it ends with its last user; the locks are those of `devserver`.

It runs in the server's home, isolated and without site packages: the standard library is all there is.
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

STOP_TIMEOUT = 5.0  # seconds from SIGTERM to SIGKILL; a healthy server takes about one
CRASH_LOOP = 2.0  # a server that dies sooner than this after its start, in seconds, is not started again


@dataclass
class Supervisor:
    """Of one server: `lock` and `reserved` are inherited descriptors, `address` and `ui` what users are told."""

    command: list[str]
    address: str
    ui: str
    lock: int
    reserved: list[int]
    server: subprocess.Popen[bytes] | None = None
    ending: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)  # an end and a restart never cross

    def run(self) -> None:
        """Until nobody uses the server, or somebody ended it, or it cannot live; a crashed one starts again."""
        for asked in (signal.SIGTERM, signal.SIGINT):
            signal.signal(asked, lambda *_: _in_background(self.end))
        _in_background(self.end_without_users)
        code, lived = -1, CRASH_LOOP
        while code != 0 and lived >= CRASH_LOOP and (server := self.started()):
            since = time.monotonic()
            code = server.wait()
            lived = time.monotonic() - since
        Path("server.json").unlink(missing_ok=True)
        for port in self.reserved:  # before the locks, so that the next server finds its ports free
            os.close(port)

    def started(self) -> subprocess.Popen[bytes] | None:
        with self.turn:
            if self.ending:
                return None
            self.server = subprocess.Popen(
                self.command,
                pass_fds=[self.lock],
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - it only calls prctl
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"pid": self.server.pid, "address": self.address, "ui": self.ui, "started_at": now}
        write_json(Path("server.json"), about)
        return self.server

    def end_without_users(self) -> None:
        users = os.open("users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_EX)  # kept until this process is gone: a new user waits for that
        self.end()

    def end(self) -> None:
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
    """Atomically: a reader sees the old file or the new one."""
    draft = path.with_name(f"{path.name}.new")
    with open(draft, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(json.dumps(value) + "\n")
    draft.replace(path)


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _die_with_parent() -> None:
    """A killed supervisor takes its server along, where the kernel knows how (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG


if __name__ == "__main__":
    if os.fork():  # nobody's child: no user has to reap it, and it does not end with a user's process tree
        os._exit(0)
    Supervisor(**json.loads(sys.argv[1])).run()
