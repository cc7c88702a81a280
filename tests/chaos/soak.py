"""Runs and faults without end."""

import asyncio
import os
import time
from pathlib import Path

from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import pid_of
from tests.chaos.task import mixed

MEGABYTE = 1_000_000


async def soak(context: ScenarioContext, *, minutes: float, rate: float, steps: int = 4) -> Row:
    """R22: runs and faults without end; memory and descriptors stay where they are."""
    async with context.environment() as it, it.person():
        workers, steady = it.start_workers("r22", 2), it.start_workers("r22", 1)
        pid, samples = pid_of(steady.processes[0]), []
        began, number = time.monotonic(), 0
        next_fault = began + it.random.uniform(20, 40)
        while (now := time.monotonic()) < began + minutes * 60:
            await it.start(mixed(f"r22-{number}", it.random, steps), "r22")
            number += 1
            if now > next_fault:
                await workers.fault(it.random.choice(("kill", "kill", "freeze", "drain")))
                next_fault = now + it.random.uniform(20, 40)
            samples.append(_held(pid))
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        late = await it.all_ended()
        middle, last = samples[len(samples) // 2], _held(pid)
        found = await audit(it, late=late)
        if last[1] > middle[1] + 20:
            found.wrong(f"open descriptors grew from {middle[1]} to {last[1]}")
        if last[0] > 1.5 * middle[0]:
            found.wrong(f"memory grew from {middle[0]} to {last[0]} MB in the second half")
        return row(it, found, f"memory {middle[0]} → {last[0]} MB, descriptors {middle[1]} → {last[1]}")


def _held(pid: int) -> tuple[int, int]:
    """Resident megabytes and open descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // MEGABYTE, len(list(Path(f"/proc/{pid}/fd").iterdir()))
