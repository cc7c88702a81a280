"""A peer, seen from the client: its environment, its worker's process, and the runs on it."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from bench.measure import Run, run
from bench.side import ROOT, Side, process
from bench.work import Work
from perdure.devserver import PASSED_ENVIRONMENT

LOCKS = ROOT / "bench" / "peers"
ENVIRONMENTS = ROOT / ".bench"
NAMES = tuple(sorted(lock.stem for lock in LOCKS.glob("*.lock")))
STALLED = 30.0  # seconds without a new event after which a run is given up
HARNESS = "agent_harness"


@dataclass(frozen=True)
class Dead:
    """A run that came no further than so many steps."""

    steps: int

    def __str__(self) -> str:
        return f"dies at {self.steps}"


class PeerSide(Side):
    async def start(self, work: Work) -> WorkflowHandle[Any, Any]:
        workflow_id, given = f"{self.name}:{uuid4().hex[:12]}", asdict(work)
        if self.name != HARNESS:
            return await self.client.start_workflow("Peer", given, id=workflow_id, task_queue=self.queue)
        # Its agents are started without work, which a message brings; they end when they are closed.
        handle = await self.client.start_workflow("Peer", {}, id=workflow_id, task_queue=self.queue)
        message = {"type": "ask", "payload": {"text": json.dumps(given)}}
        await handle.execute_update("send_agent_message", message)
        await handle.signal("close")
        return handle


@asynccontextmanager
async def peering(name: str, address: str, home: Path) -> AsyncIterator[PeerSide]:
    """Its worker gets none of the caller's keys: a framework with a key tells its maker of each run."""
    queue, env = f"bench-{name}", {key: os.environ[key] for key in PASSED_ENVIRONMENT if key in os.environ}
    with (ENVIRONMENTS / f"{name}.log").open("wb") as log:  # for a person to look at, where a worker dies
        command = (str(environment(name)), "-W", "ignore", "-m", "bench.peers", name, address, queue)
        async with process(*command, env=env, stderr=log) as worker:
            yield PeerSide(name, await Client.connect(address), queue, home, [worker])


def environment(name: str) -> Path:
    """Its interpreter. The environment is made on first use, and again when the lock has changed.

    Raises SystemExit where that fails; what pip said stands above.
    """
    folder, lock = ENVIRONMENTS / name, LOCKS / f"{name}.lock"
    ready, python = folder / "ready", folder / "bin" / "python"
    if not ready.is_file() or ready.read_bytes() != lock.read_bytes():
        print(f"setting up .bench/{name} (once, about a minute) ...", file=sys.stderr)
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes")
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([*install, "-r", lock], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"bench: .bench/{name} could not be made; leave it out with --peer") from error
        ready.write_bytes(lock.read_bytes())
    return python


async def attempt(side: Side, work: Work) -> Run | Dead:
    """A run; or how far it came, where it fails, stalls, or ends without all of its steps."""
    try:
        done = await run(side, work, STALLED)
    except WorkflowFailureError:
        return Dead(len((await side.report()).tool))
    steps = len(done.report.tool)
    return done if steps >= work.steps else Dead(steps)
