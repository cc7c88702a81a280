"""A disk that takes nothing."""

import asyncio
import subprocess
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from temporalio.api.enums.v1 import EventType

from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import Environment, until, wait_for_value
from tests.chaos.task import mixed


async def full_disk(context: ScenarioContext, *, seconds: float, runs: int, mounted: bool) -> Row:
    """R20: without a record there is no effect; runs wait, say so, and go on when there is room again."""
    note = "patched store"
    async with context.environment(full_disk=True) as it, it.person(), AsyncExitStack() as held:
        flag = it.project.full_disk
        if flag is None:
            raise AssertionError("the environment was asked for a disk that can be full")
        full, room = flag.touch, flag.unlink
        if mounted and _small_disk(it.workspaces):
            held.push_async_callback(asyncio.to_thread, _unmount, it.workspaces)
            full, room, note = partial(_fill, it.workspaces), (it.workspaces / "filling").unlink, "tmpfs of 2 MB"
        it.start_workers("r20", 2)
        for number in range(runs):
            await it.start(mixed(f"r20-{number}", it.random, 6, pause=0.3, tools=("charge", "charge", "look")), "r20")
        await until(lambda: len(it.tools.effects) >= runs)
        full()
        it.fault()
        waiting = await wait_for_value(lambda: _sleeping(it), bool)
        await asyncio.sleep(1)  # calls that were claimed before have been made by now
        before = len(it.tools.effects)
        await asyncio.sleep(seconds)
        after = len(it.tools.effects)
        waiting = max(waiting, await _sleeping(it))
        room()
        it.fault(counts=False)
        late = await it.all_ended()
        found = await audit(it, late=late)
        if after != before:
            found.wrong(f"{after - before} effects while nothing could be recorded")
        return row(it, found, f"{note}; {waiting} runs waited")


async def _sleeping(it: Environment) -> int:
    """How many runs wait in a timer that says that the ledger takes no claim."""
    count = 0
    for handle in it.handles.values():
        events = [event async for event in handle.fetch_history_events()]
        timers = [e for e in events if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
        count += bool(timers) and b"ledger" in timers[-1].user_metadata.summary.data
    return count


def _small_disk(folder: Path) -> bool:
    """Mounts one of 2 MB, where this user may."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False)  # noqa: S607 - where it lies differs


def _fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
