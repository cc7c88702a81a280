"""One side of the comparison, seen from the client: its worker's process, and the runs on it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle

from bench.ours import start_event
from bench.raw_min import RAW, RawMin
from bench.work import Marks, Work
from runs import start

ROOT = Path(__file__).parent.parent
MOST_REPORT = 64 * 1024 * 1024  # bytes of one line from a worker
LAST = 10.0  # seconds for a worker to end: one that lost a run may wait for it for ever
Name = Literal["raw", "ours"]


@dataclass
class Report(Marks):
    """What a worker did since the last report; `cpu` in seconds."""

    cpu: float = 0.0


@dataclass
class Side:
    """`workspaces` is the folder of the runs' files."""

    name: str
    client: Client
    queue: str
    workspaces: Path
    process: asyncio.subprocess.Process

    async def start(self, work: Work) -> WorkflowHandle[Any, Any]:
        run_id = uuid4().hex[:12]
        if self.name == "ours":
            return await start(self.client, self.queue, start_event(work), run_id)
        return await self.client.start_workflow(RawMin.run, work, id=RAW + run_id, task_queue=self.queue)

    async def report(self) -> Report:
        """Raises RuntimeError where the worker has died."""
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("the worker was started with pipes")
        self.process.stdin.write(b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of {self.name} has died")
        return Report(**json.loads(line))

    async def asked(self, handle: WorkflowHandle[Any, Any]) -> int:
        """The number of the question that a parked run waits with; 0 where there is none."""
        if self.name == "raw":
            return int(await handle.query(RawMin.asked))
        question = (await handle.query("state"))["question"]
        return int(question["id"].removeprefix("q")) if question else 0


@asynccontextmanager
async def working(name: Name, client: Client, workspaces: Path) -> AsyncIterator[Side]:
    queue = f"bench-{name}"
    arguments = (name, client.service_client.config.target_host, queue, str(workspaces))
    async with process(sys.executable, "-m", "bench.worker", *arguments) as worker:
        yield Side(name, client, queue, workspaces, worker)


@asynccontextmanager
async def process(*command: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker's process; `options` as of `subprocess.Popen`."""
    pipe = asyncio.subprocess.PIPE
    worker = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=pipe, stdout=pipe, limit=MOST_REPORT, **options
    )
    try:
        yield worker
    finally:
        if worker.stdin is not None:
            worker.stdin.close()  # ends the worker
        try:
            await asyncio.wait_for(worker.wait(), LAST)
        except TimeoutError:
            worker.kill()
            await worker.wait()
