"""Runs of an agent with a limit of runs at work, and the entity of the places, in the scenarios."""

from dataclasses import replace
from typing import Any

from perdure.features.places.contract import LeavePlace, Seat, TakePlace
from tests.workflows.conftest import Run, World

KEY = "agent:default"


async def begins_placed(it: World) -> Run:
    """A run that leaves its place while it waits for a person, on a task queue of its own."""
    agent = it.project.agents["default"].evolve(max_running=1)
    project = replace(it.project, agents={**it.project.agents, "default": agent})
    other = replace(it, queue=f"{it.queue}-placed", project=project, started=it.started)
    async with other.worker():
        run = await other.start()
        await other.until_state(run, question=True)
        await other.answer(run, text="a")
        await run.result()
    await other.clear()
    return run


async def begins_places(it: World) -> Run:
    """The entity: one has a place, another one waits and gets it."""
    entity = await it.start_raw(workflow_type="Places", id=f"perdure-places:{it.queue}")

    async def take(name: str) -> Any:
        seat = Seat(workflow_id=name)
        return await entity.execute_update("take", TakePlace(key=KEY, holder=name, most=1, seat=seat))

    await take("run:a")
    await take("run:b")
    await entity.signal("leave", LeavePlace(key=KEY, holder="run:a"))
    await it.until(lambda: _is_woken(entity))
    await entity.cancel()
    return entity


async def _is_woken(entity: Run) -> bool:
    return not (await entity.describe()).raw_description.pending_activities and "run:b" in str(
        (await entity.query("state"))["held"]
    )
