"""A stop for all under load: no call begins, whoever dies meanwhile, and everything goes on afterwards."""

import asyncio
import time
from datetime import UTC, datetime

from perdure.activities.effects.held import held_query
from perdure.features.pauses.client import KNOWN_AFTER, change_pauses, count_held
from perdure.features.pauses.contract import Pause, PauseChange
from perdure.features.pauses.rules import ALL
from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import Environment, until
from tests.chaos.task import mixed
from tests.waiting import until as until_true

QUEUE = "r32"
STARTS_AT_ONCE = 20
HELD_FOR = 8.0  # seconds, with kills


async def paused(context: ScenarioContext, *, runs: int, size: int, kills: int, pause: float) -> Row:
    """R32: pause while runs work, kill workers and start others, and unpause. `pause` is the model's, in seconds."""
    async with context.environment() as it, it.person():
        workers = it.start_workers(QUEUE, size)
        tasks = [mixed(f"{QUEUE}-{number}", it.random, 6, pause=pause) for number in range(runs)]
        for at in range(0, runs, STARTS_AT_ONCE):
            await asyncio.gather(*(it.start(task, QUEUE) for task in tasks[at : at + STARTS_AT_ONCE]))
        await until(lambda: calls_of(it) > runs)
        began, before = time.monotonic(), calls_of(it)
        stop = Pause(name=ALL, by="maria", at=datetime.now(UTC))
        await change_pauses(it.client, QUEUE, PauseChange(begin=(stop,)))
        last = await watch_calls(it, KNOWN_AFTER)
        stopped, heard = calls_of(it), last - began
        for _ in range(kills):
            await workers.fault("kill")
            await asyncio.sleep(HELD_FOR / kills)
        between = calls_of(it) - stopped
        held = await held_soon(it)
        ended = time.monotonic()
        await change_pauses(it.client, QUEUE, PauseChange(end=(ALL,)))
        await until(lambda: calls_of(it) > stopped)
        first = time.monotonic() - ended
        await until_true(lambda: none_held(it))
        all_went_on = time.monotonic() - ended
        it.fault(counts=False)
        late = await it.all_ended()
        found = await audit(it, late=late)
        if between:
            found.violations.append(f"{between} calls began while everything was paused")
        return row(
            it,
            found,
            f"paused after {before} calls, the last began {heard:.2f} s later; {held} held, {between} calls between; "
            f"unpaused: first call after {first:.1f} s, none held after {all_went_on:.1f} s",
        )


def calls_of(it: Environment) -> int:
    """Requests that began, to the model and to the tools."""
    return len(it.model.requests) + sum(it.tools.requests.values())


async def watch_calls(it: Environment, seconds: float) -> float:
    """Return when the last call of this time began."""
    deadline, last, count = time.monotonic() + seconds, time.monotonic(), calls_of(it)
    while time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        if calls_of(it) != count:
            last, count = time.monotonic(), calls_of(it)
    return last


async def none_held(it: Environment) -> bool:
    return not (await it.client.count_workflows(held_query(QUEUE))).count


async def held_soon(it: Environment) -> int:
    """Return how many are held; the server's list is a moment behind."""
    await asyncio.sleep(1.5)
    return (await count_held(it.client, QUEUE)).total()
