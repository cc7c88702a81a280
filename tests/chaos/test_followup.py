"""R17: 200 tasks, and events that come early, late, twice, from the wrong person, at the deadline, after a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from temporalio.client import Client

from tests.chaos.__main__ import new_seed
from tests.workflows.conftest import Run, worlds
from tests.workflows.following import Followed, followings

FOLLOW_UPS, TASKS = 8, 25
WAYS = ("early", "late", "twice", "wrong", "deadline", "restart", "never")
DEADLINE = 3000  # milliseconds, for those that may be resolved by it


@dataclass
class Restart:
    """When all workers have gone, and how many tasks wait for that."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0


@asynccontextmanager
async def place(client: Client, folder: Path) -> AsyncIterator[Followed]:
    async with followings(worlds(client, folder))(works=False) as here:
        yield here


async def one(here: Followed, run: Run, number: int, way: str, restart: Restart) -> None:
    """A task, and what comes for it."""
    message, name = f"{here.message}-{run.id}-{number}", f"t{number}"
    right, wrong = here.reply(to=message), here.reply(to=message, userId="C")
    given = {"timeoutMs": DEADLINE} if way in ("deadline", "never") else {}
    if way == "early":
        await here.publish(right)
    wanted = {"channelId": "dm-b", "messageId": message, "fromUserId": "B", **given}
    await run.signal("task_create", here.task(run, "discord.wait_for_reply", name, **wanted))
    if way == "wrong":
        await here.publish(wrong)
    if way == "deadline":
        await asyncio.sleep(DEADLINE / 1000)  # as near to it as can be: either may win
    if way == "restart":
        restart.waiting += 1
        await restart.done.wait()
    if way not in ("early", "never"):
        for _ in range(3 if way == "twice" else 1):
            await here.publish(right)
    if way == "late":
        await here.until_task(run, name, "resolved")
        await here.publish(here.reply("a second one", to=message))


async def test_each_of_200_tasks_is_resolved_once(client: Client, tmp_path: Path) -> None:
    seed = new_seed()
    random = Random(seed)
    async with place(client, tmp_path) as here:
        restart, ways = Restart(), {}
        async with here.it.worker():
            runs = [await here.create() for _ in range(FOLLOW_UPS)]
            for run in runs:  # keeps it open until all its tasks are there
                await here.add(run, "prompt", "hold", text="All there?")
            for run in runs:
                ways[run.id] = ["restart", *random.choices(WAYS, k=TASKS - 2)]
            plays = [
                (way, asyncio.create_task(one(here, run, number, way, restart)))
                for run in runs
                for number, way in enumerate(ways[run.id])
            ]
            await asyncio.wait_for(asyncio.gather(*(play for way, play in plays if way != "restart")), 60)
            await here.it.until(lambda: restart.waiting == sum(way == "restart" for way, _ in plays))
        restart.done.set()  # what comes now finds no worker at all
        await asyncio.wait_for(asyncio.gather(*(play for _, play in plays)), 60)
        async with here.it.worker():
            for run in runs:
                await run.execute_update("answer", {"text": "yes"})
            await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)
            requests = [each["request_id"] for each in await here.requests()]
            states = [await here.it.state(run) for run in runs]
    assert sorted(requests) == sorted(f"{run.id}:1" for run in runs), f"PERDURE_CHAOS_SEED={seed}"
    for run, state in zip(runs, states, strict=True):
        told = [e for e in state["events"] if e["type"] == "evt.workflow.task.resolved"]
        assert len({e["data"]["taskId"] for e in told}) == len(told)
        for number, way in enumerate(ways[run.id]):
            assert_once(here.task_in(state, f"t{number}"), way, seed)


def assert_once(task: dict[str, Any], way: str, seed: int) -> None:
    by = task["resolvedBy"]
    said = f"{way}: {task}, PERDURE_CHAOS_SEED={seed}"
    assert task["state"] == "resolved", said
    if way == "never":
        assert by == "timeout", said
    elif way == "deadline":
        assert by == "timeout" or task["result"]["replyUserId"] == "B", said
    else:
        assert (task["result"]["replyUserId"], task["result"]["text"]) == ("B", "Friday"), said
