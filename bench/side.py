"""One side of the comparison, seen from the client: its workers' processes, and the runs on it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle

from bench.ours import start_event
from bench.raw_min import RAW, RawMin
from bench.work import Marks, Work
from perdure.client.runs import start_or_get_run

ROOT = Path(__file__).parent.parent
MOST_REPORT = 64 * 1024 * 1024  # bytes of one line from a worker
LAST = 10.0  # seconds for a worker to end: one that lost a run may wait for it for ever
Name = Literal["raw", "ours", "fused"]


@dataclass
class Report(Marks):
    """What the workers of a side did since the last report; `cpu` in seconds."""

    cpu: float = 0.0

    @classmethod
    def joined(cls, reports: Sequence["Report"]) -> "Report":
        """As one worker's: in the order of time, and beside each call of a tool the CPU that all had used by then."""
        used = [report.tool[0][1] if report.tool else 0.0 for report in reports]
        tool: list[tuple[float, float]] = []
        for at, cpu, worker in sorted((at, cpu, i) for i, report in enumerate(reports) for at, cpu in report.tool):
            used[worker] = cpu
            tool.append((at, sum(used)))
        model = sorted(at for report in reports for at in report.model)
        return cls(model=model, tool=tool, cpu=sum(report.cpu for report in reports))


@dataclass
class Side:
    """`workspaces` is the folder of the runs' files, `processes` its workers."""

    name: str
    client: Client
    queue: str
    workspaces: Path
    processes: Sequence[asyncio.subprocess.Process]

    async def start(self, work: Work) -> WorkflowHandle[Any, Any]:
        run_id = uuid4().hex[:12]
        if self.name in ("ours", "fused"):
            return await start_or_get_run(self.client, self.queue, start_event(work), run_id)
        return await self.client.start_workflow(RawMin.run, work, id=RAW + run_id, task_queue=self.queue)

    async def report(self) -> Report:
        """Of all workers together. Raises RuntimeError where one has died."""
        return Report.joined([await self._read_report(worker) for worker in self.processes])

    async def _read_report(self, worker: asyncio.subprocess.Process) -> Report:
        if worker.stdin is None or worker.stdout is None:
            raise AssertionError("a worker is started with pipes")
        worker.stdin.write(b"\n")
        line = await worker.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker of {self.name} has died")
        return Report(**json.loads(line))

    async def asked(self, handle: WorkflowHandle[Any, Any]) -> int:
        """The number of the question that a parked run waits with; 0 where there is none."""
        if self.name == "raw":
            return int(await handle.query(RawMin.asked))
        question = (await handle.query("state"))["question"]
        return int(question["id"].removeprefix("q")) if question else 0


@asynccontextmanager
async def working(
    name: Name, client: Client, workspaces: Path, workers: int = 1, queue: str | None = None
) -> AsyncIterator[Side]:
    """A side with so many workers, on a task queue of its own."""
    queue = queue or f"bench-{name}"
    arguments = (name, client.service_client.config.target_host, queue, str(workspaces))
    command = (sys.executable, "-m", "bench.worker", *arguments)
    async with AsyncExitStack() as held:
        processes = [await held.enter_async_context(process(*command)) for _ in range(workers)]
        yield Side(name, client, queue, workspaces, processes)


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
