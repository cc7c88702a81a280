"""One measurement each: a run, many runs at once, a replay, a parked run."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import Replayer

from bench.raw_min import RAW, RawMin, runner
from bench.side import Name, Report, Side, working
from bench.work import Work, text
from perdure.activities.model.transcript_cache import TranscriptCache, TranscriptCursor
from perdure.activities.storage.store import LocalStores
from perdure.contracts.run.transcript import Part, PartKind, TranscriptPage
from perdure.converter import data_converter
from perdure.process.workflows import workflow_runner
from perdure.workflows.agent_run.agent_run import AgentRun

PATIENCE = 120.0  # seconds until a run must have come to its question
LEFT_ALONE = 0.1  # seconds after a signal in which no query of ours gets into its way


@dataclass(frozen=True)
class Run:
    """A finished run: seconds, and the histories of its executions, one more than it continued as new."""

    work: Work
    wall: float
    report: Report
    handle: WorkflowHandle[Any, Any]
    histories: list[WorkflowHistory]
    described: int  # bytes, as the server counts the last execution's history

    @property
    def events(self) -> int:
        return sum(len(history.events) for history in self.histories)

    @property
    def size(self) -> int:
        """Bytes of all events, serialized."""
        return sum(event.ByteSize() for history in self.histories for event in history.events)

    def sizes(self) -> dict[str, float]:
        """Bytes a step by the type of event."""
        sizes: Counter[str] = Counter()
        for event in (event for history in self.histories for event in history.events):
            sizes[EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()] += event.ByteSize()
        return {name: size / self.work.steps for name, size in sizes.most_common()}

    def quarters(self) -> list[tuple[float, float]]:
        """Seconds of wall and of CPU a step, in each quarter of the run."""
        marks, quarter = self.report.tool, (len(self.report.tool) - 1) // 4
        corners = [marks[i * quarter] for i in range(5)]
        return [((t1 - t0) / quarter, (c1 - c0) / quarter) for (t0, c0), (t1, c1) in pairwise(corners)]


async def run(side: Side, work: Work, patience: float | None = None) -> Run:
    """Terminates a run that makes no progress for so many seconds, whose WorkflowFailureError is raised then."""
    await side.report()
    started = time.monotonic()
    handle = await side.start(work)
    await (handle.result() if patience is None else _result(handle, patience))
    wall, report = time.monotonic() - started, await side.report()
    info = (await handle.describe()).raw_description.workflow_execution_info
    return Run(work, wall, report, handle, await _histories(side.client, handle), info.history_size_bytes)


async def _result(handle: WorkflowHandle[Any, Any], patience: float) -> None:
    result, seen = asyncio.ensure_future(handle.result()), 0
    while not (await asyncio.wait([result], timeout=patience))[0]:
        events = (await handle.describe()).history_length
        if events == seen:
            await handle.terminate("no progress")
        seen = events
    await result


async def _histories(client: Client, handle: WorkflowHandle[Any, Any]) -> list[WorkflowHistory]:
    histories: list[WorkflowHistory] = []
    run_id = handle.first_execution_run_id
    while run_id:
        histories.append(await client.get_workflow_handle(handle.id, run_id=run_id).fetch_history())
        last = histories[-1].events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return histories


async def at_once(side: Side, work: Work, runs: int) -> float:
    """Steps a second of that many runs started together."""
    started = time.monotonic()
    handles = await asyncio.gather(*(side.start(work) for _ in range(runs)))
    await asyncio.gather(*(handle.result() for handle in handles))
    return runs * work.steps / (time.monotonic() - started)


async def replay(done: Run, times: int = 3) -> float:
    """Seconds to replay its first history from nothing: the mean, so that starting the replayer weighs little."""
    history = done.histories[0]
    is_raw = history.workflow_id.startswith(RAW)
    sandbox = runner() if is_raw else workflow_runner(data_converter)
    replayer = Replayer(
        workflows=[RawMin if is_raw else AgentRun], workflow_runner=sandbox, data_converter=data_converter
    )

    async def again() -> AsyncIterator[WorkflowHistory]:
        for _ in range(times):
            yield history

    started = time.monotonic()
    await replayer.replay_workflows(again())
    return (time.monotonic() - started) / times


@dataclass(frozen=True)
class Parked:
    """Seconds. `missed` is what a worker pays for the transcript when its cache is empty (0 for raw-min)."""

    answered: float  # from the signal until the model is called
    missed: float


async def parked(side: Side, work: Work) -> Parked:
    handle, times = await side.start(work), []
    await _until_asked(side, handle, 1)
    missed = await _miss(side, handle) if side.name == "ours" else 0.0
    for number in range(1, work.questions + 1):
        await side.report()
        sent = time.monotonic()
        await handle.signal("human_input", {"text": "Yes."})
        await asyncio.sleep(LEFT_ALONE)
        await (_until_asked(side, handle, number + 1) if number < work.questions else handle.result())
        times.append((await side.report()).model[0] - sent)
    return Parked(median(times), missed)


async def taken_over(side: Side, work: Work) -> float:
    """Seconds from a signal until the model is called, where the worker that had the run in memory was killed."""
    name: Name = "raw" if side.name == "raw" else "ours"
    queue = f"bench-{name}-{uuid4().hex[:6]}"
    async with working(name, side.client, side.workspaces, queue=queue) as first:
        handle = await first.start(work)
        await _until_asked(first, handle, 1)
        async with working(name, side.client, side.workspaces, queue=queue) as heir:
            await heir.report()  # it is there
            first.processes[0].kill()
            await first.processes[0].wait()
            sent = time.monotonic()
            await handle.signal("human_input", {"text": "Yes."})
            await handle.result()
            return (await heir.report()).model[0] - sent


async def _until_asked(side: Side, handle: WorkflowHandle[Any, Any], number: int) -> None:
    """Raises TimeoutError where the run does not come to ask."""
    async with asyncio.timeout(PATIENCE):
        while await side.asked(handle) < number:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)


async def _miss(side: Side, handle: WorkflowHandle[Any, Any]) -> float:
    """As a second worker would: the run answers from its memory, and the whole transcript comes over."""
    page = await handle.query("transcript", {"limit": 1}, result_type=TranscriptPage)
    started = time.monotonic()
    await _transcript(side, handle, page)
    return time.monotonic() - started


async def _transcript(side: Side, handle: WorkflowHandle[Any, Any], page: TranscriptPage) -> list[Part]:
    """All parts of a run, proven by its hash chain."""
    stores = LocalStores(side.workspaces)
    wanted = TranscriptCursor(handle.id, "", page.total, page.head)
    conversation = await TranscriptCache(side.client, stores).read_conversation(wanted)
    return conversation.transcript.parts


async def is_complete(side: Side, done: Run) -> bool:
    """Whether the finished run's transcript holds every tool result, whole and in order."""
    page = await done.handle.query("transcript", {"limit": 1}, result_type=TranscriptPage)
    parts = await _transcript(side, done.handle, page)
    results = [part.content[0]["content"] for part in parts if part.kind is PartKind.result]
    return results == [text(turn, done.work.size) for turn in range(done.work.steps)]
