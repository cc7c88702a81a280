"""Pauses, in the scenarios."""

from datetime import UTC, datetime

from perdure.activities.effects.held import find_held
from perdure.features.pauses.client import change_pauses
from perdure.features.pauses.contract import Pause, PauseChange
from perdure.features.pauses.rules import ALL, pauses_id
from tests.workflows.conftest import Run, World


async def pause_all(it: World) -> None:
    pause = Pause(name=ALL, by="maria", at=datetime.now(UTC), why="wrong prices")
    await change_pauses(it.client, it.queue, PauseChange(begin=(pause,)))


async def unpause_all(it: World) -> None:
    await change_pauses(it.client, it.queue, PauseChange(end=(ALL,)))


async def until_held(it: World, run: Run) -> None:
    async def is_held() -> bool:
        return run.id in [each.workflow_id async for each in find_held(it.client, it.queue)]

    await it.until(is_held)


async def a_held_run(it: World) -> Run:
    await pause_all(it)
    run = await it.start()
    await until_held(it, run)
    await unpause_all(it)
    return run


async def pauses_of_a_held_run(it: World) -> Run:
    await (await a_held_run(it)).result()
    return it.client.get_workflow_handle(pauses_id(it.queue))


async def pauses_that_move(it: World) -> Run:
    """They continue as new, as they are changed again and again."""
    executions: set[str] = set()
    while len(executions) < 2:
        await pause_all(it)
        executions.add((await it.client.get_workflow_handle(pauses_id(it.queue)).describe()).run_id)
    await unpause_all(it)
    return it.client.get_workflow_handle(pauses_id(it.queue))


async def is_paused_beyond_its_deadline(it: World, run: Run) -> None:
    first = (await it.until_state(run, question=True))["question"]["expires_at"]
    await pause_all(it)

    async def is_postponed() -> bool:
        return bool((await it.state(run))["question"]["expires_at"] > first)

    await it.until(is_postponed)
    await run.signal("human_input", {"decision": "deny"})
    await until_held(it, run)
    await unpause_all(it)
