"""Workers that are killed, frozen and stopped: at random moments, and at named ones."""

import asyncio
import os
import signal
from pathlib import Path
from random import Random

from perdure.client.runs import request_cancel
from perdure.contracts.run.signals import CancelRequest
from perdure.contracts.run.state import RunStatus
from perdure.decisions.ids import request_key
from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, expect_no_doubt, row
from tests.chaos.crash_points import FUSED_POINTS, RUN_POINTS, Point, Trap
from tests.chaos.environment import BEAT, Environment, pid_of, until
from tests.chaos.task import MIX, READS, Task, Use, mixed
from tests.chaos.tool_server import ToolServer

LOOKS: tuple[Use, ...] = (("look", {}),)
AT_A_TIME = 16  # runs whose worker just died wait for its heartbeat, in which nobody computes


async def random_faults(
    context: ScenarioContext,
    *,
    runs: int,
    kills: int,
    freezes: int = 0,
    drains: int = 0,
    size: int = 4,
    every: float = 1.2,
    fuses: bool = False,
) -> Row:
    """R1: faults at random moments while runs begin, work and end."""
    async with context.environment(fuses=fuses) as it, it.person():
        queue = "r1f" if fuses else "r1"  # both shapes may play on one server
        workers = it.start_workers(queue, size)
        kinds = ["kill"] * kills + ["freeze"] * freezes + ["drain"] * drains
        it.random.shuffle(kinds)
        for number in range(max(runs, len(kinds))):
            if number < runs:
                task = mixed(f"{queue}-{number}", it.random, 8, pause=0.3, tools=READS if fuses else MIX)
                await it.start(task, queue)
            await asyncio.sleep(it.random.uniform(0.5, 1.5) * every)
            if number < len(kinds):
                await workers.fault(kinds[number])
        late = await it.all_ended()
        return row(it, await audit(it, late=late), f"{freezes} frozen, {drains} drained")


async def crash_points(context: ScenarioContext, *, runs: int, fuses: bool = False) -> Row:
    """R2: a worker dies at each named point, in each of so many runs.

    Reads are not fused where the history is soon long.
    """
    points, server = (FUSED_POINTS, context.client) if fuses else (RUN_POINTS, context.short_history)
    turn = asyncio.Semaphore(AT_A_TIME)
    async with context.environment(server, fuses=fuses) as it, it.person():

        async def killed_at(point: Point, number: int) -> None:
            queue = f"{point.name}-{number}{'-fused' if fuses else ''}"
            random = Random(f"{context.seed} {queue}")
            async with turn:
                if point in (Point.archived, Point.rotation):
                    task = mixed(queue, random, 24, tools=("look", "reserve"))  # long enough to rotate
                else:
                    task = Task(queue, (LOOKS, (("charge", {}),), (("reserve", {}), ("charge", {}))))
                if point is Point.inherit:
                    await _origin(it, queue, task)
                workers = it.start_workers(queue, 1, Trap(point))
                if point is Point.inherit:
                    await _fork(it, queue)
                else:
                    await it.start(task, queue)
                await until(lambda: not workers.processes[0].is_alive())
                it.fault()
                it.kills += 1
                it.in_window += it.doubtful(pid_of(workers.processes[0])) > 0
                workers.add()
                await it.handles[queue].result()

        await asyncio.gather(*(killed_at(point, number) for point in points for number in range(runs)))
        late = await it.all_ended()
        found = await audit(it, late=late)
        return row(it, found, f"{len(points)} points; {found.rotations} rotations")


async def _origin(it: Environment, queue: str, task: Task) -> None:
    """A run that has ended, to be forked after its second step."""
    workers = it.start_workers(queue, 1)
    origin = Task(f"{queue}-origin", task.turns)
    handle = await it.start(origin, queue)
    await handle.result()
    workers.processes[0].kill()


async def _fork(it: Environment, queue: str) -> None:
    event = {"type": "agentic.resume", "payload": {"run_id": f"{queue}-origin", "step": 2}}
    it.handles[queue] = await it.client.start_workflow("AgentRun", event, id=f"run:{queue}", task_queue=queue)


async def zombies(context: ScenarioContext, *, runs: int, fuses: bool = False) -> Row:
    """R5: a worker stands still for longer than its heartbeat, another takes over, and then it comes back."""
    places = (*FUSED_POINTS, None) if fuses else (Point.after_claim, Point.after_effect, Point.after_record, None)
    first: tuple[Use, ...] = LOOKS if fuses else (("charge", {}),)
    tools = ToolServer(context.seed, takes=0.5)  # long enough to be frozen in
    async with context.environment(tools=tools, fuses=fuses) as it, it.person():

        async def frozen(number: int) -> None:
            queue, place = f"r5{'f' if fuses else ''}-{number}", places[number % len(places)]
            random = Random(f"{context.seed} {queue}")
            others = mixed(queue, random, 3, tools=("charge", "charge", "reserve")).turns
            task = Task(queue, (first, *others), pause=0.2)
            workers = it.start_workers(queue, 1, Trap(place, signal.SIGSTOP) if place else None)
            pid = pid_of(workers.processes[0])
            await it.start(task, queue)
            if place is None:  # in the middle of an effect
                await until(lambda: any(it.tools.requests[request_key(queue, step)] for step in task.tools))
                os.kill(pid, signal.SIGSTOP)
            await until(lambda: _is_stopped(pid))
            it.fault()
            workers.add()
            await asyncio.sleep(BEAT + 4)  # the fault itself
            os.kill(pid, signal.SIGCONT)
            it.fault(counts=False)
            await it.handles[queue].result()

        await asyncio.gather(*(frozen(number) for number in range(runs)))
        late = await it.all_ended()
        return row(it, await audit(it, late=late))


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def rolling_restart(context: ScenarioContext, *, restarts: int, size: int = 3, fuses: bool = False) -> Row:
    """R6: SIGTERM drains a worker, whatever it is doing."""
    async with context.environment(fuses=fuses) as it, it.person():
        queue = "r6f" if fuses else "r6"
        workers = it.start_workers(queue, size)
        for number in range(restarts):
            for nr in range(3):
                task = mixed(f"{queue}-{number}-{nr}", it.random, 8, pause=0.2, tools=READS if fuses else MIX)
                await it.start(task, queue)
            await asyncio.sleep(it.random.uniform(0.5, 2))
            await workers.fault("drain")
        late = await it.all_ended()
        found = await audit(it, late=late)
        expect_no_doubt(it, found)
        return row(it, found)


async def window(context: ScenarioContext, *, kills: int, size: int = 4) -> Row:
    """What share of random kills leaves a call in doubt: an effect of 50 ms in a step of about a second."""
    tools = ToolServer(context.seed, takes=0.05)
    async with context.environment(tools=tools) as it, it.person():
        workers = it.start_workers("window", size)
        for number in range(size):  # on average one on each worker
            charges: tuple[tuple[Use, ...], ...] = ((("charge", {}),),) * 90
            await it.start(Task(f"window-{number}", charges, pause=0.9), "window")
        await workers.kill_some(kills, 0.5, 2.5)
        for run in it.handles:
            await request_cancel(it.client, run, CancelRequest(reason="measured"))
        late = await it.all_ended()
        found = await audit(it, late=late, status=RunStatus.cancelled)
        return row(it, found, "effect 50 ms, step 1 s, one run a worker")
