"""`python -m bench.scale KIND NUMBER`: what many of a kind take, from the first to the last of them.

runs           parked on a person, with 5 KiB of conversation each; `raw` are those of the hand-written workflow
conversations  lanes that are at work at once, three requests each
tasks          of follow-ups, ten each, that wait for a reply
lane           requests of one lane, handed over as fast as it takes them

One worker, which is a process of its own, and an embedded server, on the machine that this runs on. A line is
printed at each of four levels: memory, CPU at rest, and how long one more takes beside them.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, ClassVar

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from bench.side import Name, Side, working
from bench.work import Work
from perdure.client import lanes
from perdure.contracts.conversation import SubmitRequest
from perdure.converter import data_converter
from perdure.decisions.ids import run_workflow_id
from perdure.decisions.lane import MAX_QUEUED
from perdure.devserver import embedded_server
from perdure.features.follow_ups.activities import signal_event
from perdure.features.follow_ups.contract import Event

LEVELS = 4
AT_ONCE = 16  # that are begun at the same time
PROBES = 20
REST = 5.0  # seconds in which nothing is done, to see what waiting costs; as long before, nothing is measured
SOON, CHECK_EVERY = 0.02, 0.2  # seconds between two checks, for which the server has no event
MOST_WAIT = 300.0  # seconds for one of anything
MOST_TURN = 0.5  # seconds of a lane's turn, on a busy machine
TASKS = 10  # of a follow-up
TURNS = 3  # of a conversation at each level
MIB = 1024 * 1024
PARKED = Work(2, questions=1)


@dataclass(frozen=True)
class Use:
    """Of a process: bytes of memory now, and seconds of CPU since it began."""

    memory: int
    cpu: float

    @classmethod
    def of(cls, process: int) -> "Use":
        status = Path(f"/proc/{process}/statm").read_text().split()
        spent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks = int(spent[11]) + int(spent[12])
        return cls(int(status[1]) * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK"))


@dataclass
class Crowd(ABC):
    """Some of a kind. `probe` gives the seconds that one thing takes beside them."""

    least: ClassVar[int] = PROBES * LEVELS + 1

    side: Side
    number: int = 0

    @property
    def client(self) -> Client:
        return self.side.client

    @abstractmethod
    async def grow(self, to: int) -> int:
        """Until there are so many. Gives how many were made for it."""

    @abstractmethod
    async def probe(self, number: int) -> float: ...


@dataclass
class Runs(Crowd):
    """A probe is an answer, until its run has ended: one model call more."""

    parked: list[WorkflowHandle[Any, Any]] = field(default_factory=list)

    async def grow(self, to: int) -> int:
        async def park(_: int) -> None:
            self.parked.append(await self.side.start(PARKED))

        missing = to - len(self.parked)
        await self.side.report()
        await each(park, range(missing))
        calls = 0
        async with asyncio.timeout(MOST_WAIT):
            while calls < missing * (3 if self.side.name == "ours" else 2):  # the question is a reply of the model
                await asyncio.sleep(CHECK_EVERY)
                calls += len((await self.side.report()).model)
        return missing

    async def probe(self, number: int) -> float:
        run = self.parked.pop(number * 37 % len(self.parked))
        began = time.monotonic()
        await run.signal("human_input", {"text": "Yes."})
        await run.result()
        return time.monotonic() - began


@dataclass
class Conversations(Crowd):
    """A probe is a request to a lane of its own, while all the others are at work."""

    async def grow(self, to: int) -> int:
        self.number = to
        await self._talk()
        return to * TURNS

    async def _talk(self) -> None:
        async def talk(lane: int) -> None:
            for turn in range(TURNS):
                await said(self.side, f"lane-{lane}", f"{self.number}-{turn}-{time.monotonic_ns()}")

        await asyncio.gather(*(talk(lane) for lane in range(self.number)))

    async def probe(self, number: int) -> float:
        busy = asyncio.create_task(self._talk()) if number == 0 else None
        began = time.monotonic()
        await said(self.side, f"probe-{self.number}-{number}", "only")
        took = time.monotonic() - began
        if busy is not None:
            await busy
        return took


@dataclass
class Tasks(Crowd):
    """A probe is an event, until the task that waits for it is resolved."""

    least: ClassVar[int] = 1000

    async def grow(self, to: int) -> int:
        before, self.number = self.number, to
        await each(self._create, range(before // TASKS, to // TASKS))
        return to - before

    async def _create(self, follow_up: int) -> None:
        name = f"scale-{follow_up}"
        about = {"request_id": name, "session_id": name, "request_client": "bench"}
        definition = {"origin": about, "resumeTarget": {"session_id": name, "request_client": "bench"}, "summary": "-"}
        command = {"type": "cmd.workflow.create", "data": {"workflowId": name, "definition": definition}}
        run: WorkflowHandle[Any, Any] = await self.client.start_workflow(
            "FollowUp", command, id=f"wf:{name}", task_queue=self.side.queue
        )
        for task in range(TASKS):
            given = {"channelId": "c", "messageId": f"{follow_up}-{task}"}
            data = {"workflowId": name, "taskId": f"t{task}", "kind": "discord.wait_for_reply", "input": given}
            added = {"type": "cmd.workflow.task.create", "data": {**data, "description": "a reply"}}
            await run.signal("task_create", added)
        await until(lambda: self._count(run, "blocked", TASKS))

    @staticmethod
    async def _count(run: WorkflowHandle[Any, Any], state: str, number: int) -> bool:
        tasks = (await run.query("state"))["tasks"]
        return bool(sum(task["state"] == state for task in tasks) >= number)

    async def probe(self, number: int) -> float:
        follow_up = number * 37 % (self.number // TASKS)
        run = self.client.get_workflow_handle(f"wf:scale-{follow_up}")
        resolved = sum(task["state"] == "resolved" for task in (await run.query("state"))["tasks"])
        began = time.monotonic()
        said = {"channelId": "c", "messageId": f"reply-{self.number}-{number}", "userId": "u", "text": "Yes."}
        answers = {"discord": {"replyToMessageId": f"{follow_up}-{resolved}"}}
        data = {"platform": "discord", "ts": 1, **said, "raw": answers}
        event = Event.model_validate({"type": "evt.adapter.message.created", "data": data})
        await signal_event(self.client, self.side.queue, event)
        await until(lambda: self._count(run, "resolved", resolved + 1), SOON)
        return time.monotonic() - began


@dataclass
class Lane(Crowd):
    """A probe is a request to another lane."""

    async def grow(self, to: int) -> int:
        async def say(number: int) -> None:
            while True:
                body = SubmitRequest(request_id=str(number), goal="Hello.")
                try:
                    await lanes.submit_with_retry(self.client, self.side.queue, "one", body)
                except lanes.RequestRejectedError:  # it is full
                    await asyncio.sleep(1)
                else:
                    return

        before, self.number = self.number, to
        await each(say, range(before, to))
        await until(self._is_idle, most=MAX_QUEUED * MOST_TURN)
        return to - before

    async def _is_idle(self) -> bool:
        view = await lanes.query_lane(self.client, "one")
        return view is not None and not view.queued and view.active is None

    async def probe(self, number: int) -> float:
        began = time.monotonic()
        await said(self.side, f"other-{self.number}-{number}", "only")
        return time.monotonic() - began


KINDS: dict[str, tuple[type[Crowd], Name]] = {
    "runs": (Runs, "ours"),
    "raw": (Runs, "raw"),
    "conversations": (Conversations, "ours"),
    "tasks": (Tasks, "ours"),
    "lane": (Lane, "ours"),
}


async def each(begin: Callable[[int], Awaitable[None]], numbers: Iterable[int]) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with free:
            await begin(number)

    await asyncio.gather(*(one(number) for number in numbers))


async def said(side: Side, lane: str, request: str) -> None:
    """Until the turn has ended."""
    body = SubmitRequest(request_id=request, goal="Hello.")
    taken = await lanes.submit_with_retry(side.client, side.queue, lane, body)
    run = side.client.get_workflow_handle(run_workflow_id(taken.run_id))
    while True:
        try:
            await run.result()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            await asyncio.sleep(SOON)  # it is accepted, and not begun
        else:
            return


async def until(holds: Callable[[], Awaitable[bool]], every: float = CHECK_EVERY, most: float = MOST_WAIT) -> None:
    async with asyncio.timeout(most):
        while not await holds():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(every)


async def measure(kind: str, number: int, rest: float) -> None:
    make, name = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home = Path(folder) / "server"
        async with embedded_server(home) as server:
            client = await Client.connect(server.address, data_converter=data_converter)
            async with working(name, client, Path(folder)) as side:
                crowd = make(side)
                await crowd.grow(TASKS)  # what the first one pays for is no cost of each
                await climb(crowd, number, home, rest)
    await asyncio.sleep(0.2)  # the SDK's own threads must end before the interpreter goes (sdk-python#300)


async def climb(crowd: Crowd, number: int, home: Path, rest: float) -> None:
    print("  number      s   a second   ms of CPU each    MB in use       MB on disk   % CPU at rest    one more, ms")
    print("                             worker  server  worker  server               worker  server    median   95 %")
    processes = [crowd.side.processes[0].pid, json.loads((home / "server.json").read_text())["pid"]]
    reached = TASKS
    for level in range(1, LEVELS + 1):
        target = max(number * level // LEVELS, reached + 1)
        began, before = time.monotonic(), [Use.of(process) for process in processes]
        made = await crowd.grow(target)
        took, after = time.monotonic() - began, [Use.of(process) for process in processes]
        each_cpu = [(b.cpu - a.cpu) / made * 1000 for a, b in zip(before, after, strict=True)]
        await asyncio.sleep(rest)
        rested = [Use.of(process) for process in processes]
        await asyncio.sleep(rest)
        at_rest = [(Use.of(process).cpu - a.cpu) / rest * 100 for process, a in zip(processes, rested, strict=True)]
        disk = await asyncio.to_thread(_size, home) / MIB
        probes = [await crowd.probe(probe) * 1000 for probe in range(PROBES)]
        print(
            f"{target:8,} {took:6.0f} {made / took:10.1f}"
            f"   {each_cpu[0]:6.1f}  {each_cpu[1]:6.1f}  {rested[0].memory / MIB:6.0f}  {rested[1].memory / MIB:6.0f}"
            f"  {disk:11.0f}  {at_rest[0]:6.1f}  {at_rest[1]:6.1f}"
            f"    {median(probes):6.0f} {quantiles(probes, n=20)[-1]:6.0f}",
            flush=True,
        )
        reached = target


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=f"{about}\n\n{more}", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("number", type=int, nargs="?", default=1000, help="at the last level (default: %(default)s)")
    parser.add_argument("--rest", type=float, default=REST, help="seconds of rest at each level (default: %(default)s)")
    options = parser.parse_args()
    least = KINDS[options.kind][0].least
    if options.number < least:
        parser.error(f"{options.number:,} {options.kind} are too few to tell anything: {least:,} or more")
    asyncio.run(measure(options.kind, options.number, options.rest))


if __name__ == "__main__":
    main()
