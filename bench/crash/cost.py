"""The cost of a step of the same run without a kill: billable actions, bytes of record, seconds. One run at a time."""

from statistics import median
from uuid import uuid4

from bench.actions import Actions
from bench.crash.results import CostOfSteps
from bench.crash.server import Bill
from bench.crash.sides import Side, open_run
from bench.crash.trial import Bench
from bench.crash.workers import Nursery

RUNS = 3
STEPS = 3  # of a run: look up, pay, mail


async def measure(bench: Bench, side: Side, nursery: Nursery, actions: Actions) -> CostOfSteps:
    """The median of some runs, each with a worker of its own. A step goes from one call of the model to the next."""
    found = [await _measure_run(bench, side, nursery, actions) for _ in range(RUNS)]
    counts, sizes, walls = zip(*found, strict=True)
    of_step = [round(median(values) / STEPS, 3) for values in (counts, sizes, walls)]
    return CostOfSteps(side.name, *of_step)


async def _measure_run(bench: Bench, side: Side, nursery: Nursery, actions: Actions) -> tuple[float, int, float]:
    bill = bench.server.open(Bill(f"B-{uuid4().hex[:8]}", None))
    run = open_run(side, bench.client, nursery, bench.settings_of(bill.name), bench.server.reports)
    worker = await run.start_worker()
    size = 0

    async def whole() -> None:
        nonlocal size
        await run.start()
        size = await run.finish()

    try:
        count = await actions.of(whole())
    finally:
        await worker.kill()
        await run.close()
    times = bench.model.times[bill.name]
    return count, size, times[-1] - times[0]
