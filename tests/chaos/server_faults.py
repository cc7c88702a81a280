"""A server that is killed, frozen and stopped: workers and clients come back to it by themselves."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from temporalio.client import Client

from perdure.client.connection import connect, register_search_attributes
from perdure.devserver import embedded_server
from perdure.process.supervisor import CRASH_LOOP
from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, expect_no_doubt, row
from tests.chaos.environment import pid_of, until
from tests.chaos.messages import converse
from tests.chaos.task import Task, Use, mixed


class Server:
    """An embedded server of its own, to be killed, frozen and stopped."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._held = AsyncExitStack()

    async def up(self) -> str:
        """Its address, the same each time."""
        return (await self._held.enter_async_context(embedded_server(self._home))).address

    async def down(self) -> None:
        await self._held.aclose()

    @property
    def pid(self) -> int:
        return int(json.loads((self._home / "server.json").read_text())["pid"])

    async def kill(self) -> None:
        """Returns when it has been started again."""
        old = self.pid
        os.kill(old, signal.SIGKILL)
        await until(lambda: self.pid != old)

    async def freeze(self, seconds: float) -> None:
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def own_server(context: ScenarioContext) -> AsyncIterator[tuple[Server, Client]]:
    server = Server(context.folder / "server")
    try:
        client = await connect(await server.up())
        await register_search_attributes(client)
        yield server, client
    finally:
        await server.down()


def _conversing(run: str, random: Random) -> Task:
    """Waits for a signal, has an effect, asks a person."""
    turns: list[tuple[Use, ...]] = [
        (("hear", {}),),
        (("charge", {}),),
        (("ask_human", {"question": "go on?"}),),
        (("reserve", {}), ("look", {})),
    ]
    random.shuffle(turns)
    return Task(run, tuple(turns), pause=0.2)


async def server_killed(context: ScenarioContext, *, kills: int, runs: int) -> Row:
    """R3: what the server has acknowledged is never lost, and workers come back to it by themselves."""
    async with own_server(context) as (server, client), context.environment(client) as it, it.person():
        workers = it.start_workers("r3", 2)
        pids = [pid_of(worker) for worker in workers.processes]
        async with asyncio.TaskGroup() as talks:
            for number in range(kills):
                await asyncio.sleep(CRASH_LOOP + 0.5)  # one that dies younger is given up
                for nr in range(runs):
                    task = _conversing(f"r3-{number}-{nr}", it.random)
                    await it.start(task, "r3")
                    talks.create_task(converse(it, task.run))
                await asyncio.sleep(it.random.uniform(0, 2))
                await server.kill()
                it.fault()
        late = await it.all_ended()
        found = await audit(it, late=late)
        if not all(worker.is_alive() for worker in workers.processes):
            found.wrong(f"of the workers {pids} some did not outlive the server")
        expect_no_doubt(it, found)
        return row(it, found, "starts, signals and updates while it dies")


async def server_away(context: ScenarioContext, *, freezes: int, frozen: float, stopped: float, runs: int) -> Row:
    """R4: the server stands still, or is not there; no run fails, and no timer is later than that."""
    async with own_server(context) as (server, client), context.environment(client) as it, it.person():
        it.start_workers("r4", 2)

        async def started(when: str) -> None:
            for nr in range(runs):
                await it.start(mixed(f"r4-{when}-{nr}", it.random, 8, pause=0.2), "r4")
            await it.start(Task(f"r4-{when}-timer", ((("miss", {}),), (("charge", {}),))), "r4")
            await asyncio.sleep(it.random.uniform(0.5, 2))

        for number in range(freezes):
            await started(str(number))
            await server.freeze(frozen)
            it.fault()
        if stopped:
            await started("stopped")
            await server.freeze(stopped)
            it.fault()
            await started("down")
            await server.down()
            await asyncio.sleep(stopped)
            await server.up()
            it.fault()
        late = await it.all_ended()
        found = await audit(it, late=late)
        most = max(frozen, stopped) + 5
        if found.lateness > most:
            found.wrong(f"a timer was {found.lateness:.1f} s late, and {most:g} s is the most")
        expect_no_doubt(it, found)
        return row(it, found, f"latest timer {found.lateness:.1f} s")
