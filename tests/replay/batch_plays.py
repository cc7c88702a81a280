"""Model calls in batches, and their pool, in the scenarios."""

from contextlib import suppress
from datetime import timedelta

from temporalio.client import WorkflowFailureError

from perdure.client.runs import wait_for_run_end
from perdure.contracts.model_settings import BatchSettings
from tests.replay.scenario import GOAL
from tests.workflows.conftest import Run, World

AT_ONCE = {"pooling": BatchSettings(size=1)}
LATER = {"pooling": BatchSettings(wait=timedelta(hours=1))}
PACED = {**GOAL, "payload": {"goal": "do it", "pace": "batch"}}


async def a_pool(it: World) -> Run:
    """The pool whose only run has ended."""
    run = await it.start()
    with suppress(WorkflowFailureError):
        await run.result()
    return it.pool


async def a_pool_that_is_left(it: World) -> Run:
    run = await it.start()
    await it.until_state(run, batched_at=True)
    await is_stopped(it, run)
    return it.pool


async def a_busy_pool(it: World) -> Run:
    """It continues as new with its batches open."""
    executions: set[str] = set()
    while len(executions) < 2:
        await it.start()
        await it.until(lambda: len(it.model.batches.batches) == len(it.started))
        executions.add((await it.pool.describe()).run_id)
    it.model.batches.end_batches()
    return it.pool


async def is_stopped_in_a_batch(it: World, run: Run) -> None:
    await it.until_state(run, batched_at=True)
    await is_stopped(it, run)


async def is_stopped(it: World, run: Run) -> None:
    await run.signal("cancel", {"reason": "enough"})
    await wait_for_run_end(it.client, run.id)
