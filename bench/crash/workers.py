"""The workers of a side: a nursery, which forks them, and each one's life."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from uuid import uuid4

from bench.crash.server import PaymentServer
from bench.crash.tools import Settings
from bench.peer import ENVIRONMENTS, environment
from bench.side import ROOT
from perdure.devserver import PASSED_ENVIRONMENT

READY_TIMEOUT = 300.0  # seconds for a worker to be there, on a machine with other work
DEAD_TIMEOUT = 30.0
CHECK_PAUSE = 0.05  # seconds between looks at what tells nobody


@dataclass(frozen=True)
class Worker:
    name: str
    pid: int

    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        end = time.monotonic() + DEAD_TIMEOUT
        while self.is_alive() and time.monotonic() < end:  # noqa: ASYNC110 - the dead tell nobody
            await asyncio.sleep(0.01)


class Nursery:
    """Starts workers of one side."""

    def __init__(self, server: PaymentServer, process: asyncio.subprocess.Process) -> None:
        self._server = server
        self._process = process
        self._one_at_a_time = asyncio.Lock()

    async def start(self, settings: Settings) -> Worker:
        """Start a worker, and wait until it says that it is there. Raises TimeoutError, RuntimeError."""
        settings.worker = uuid4().hex[:8]
        async with self._one_at_a_time:
            if self._process.stdin is None or self._process.stdout is None:
                raise AssertionError("a nursery is started with pipes")
            self._process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("a nursery has died; its log is in .bench")
        worker = Worker(settings.worker, int(line))
        async with asyncio.timeout(READY_TIMEOUT):
            while not self._server.reports.get(worker.name, {}).get("ready"):
                if not worker.is_alive():
                    raise RuntimeError("a worker died as it started; its log is in .bench")
                await asyncio.sleep(CHECK_PAUSE)
        return worker


@asynccontextmanager
async def nursery(
    name: str, module: str, preloaded: tuple[str, ...], server: PaymentServer, *, peer: str | None
) -> AsyncIterator[Nursery]:
    """The nursery of a side; without a `peer`, in this environment. A peer gets none of the caller's keys."""
    python = sys.executable if peer is None else str(environment(peer))
    env = {key: os.environ[key] for key in PASSED_ENVIRONMENT if key in os.environ}
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / f"crash-{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(python, "-W", "ignore", "-m", "bench.crash.nursery", module, ",".join(preloaded)),
            cwd=ROOT,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is the driver's
        )
        try:
            if process.stdout is None or not await process.stdout.readline():
                raise RuntimeError(f"{name} does not load; its log is .bench/crash-{name}.log")
            yield Nursery(server, process)
        finally:
            if process.returncode is None:
                process.kill()  # its workers notice, and end
            await process.wait()
