"""Conversations under fault and load: order kept, each request once, and no lane held up by another."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import Any

from temporalio.client import WorkflowExecutionDescription, WorkflowFailureError

from activities.demo.sse import Json
from contracts.conversation import LaneView, SubmitRequest, Submitted, TurnEnd
from decisions.ids import conversation_workflow_id, run_workflow_id, turn_run_id
from perdure.client import lanes
from perdure.client.errors import RejectedError
from perdure.testkit.model_server import ScriptedAnswer, fails, says, slow
from tests.chaos.arena import PATIENCE, Arena, unfailing
from tests.chaos.auditor import Audit, judge_logs
from tests.chaos.stage import Row, Stage, row

SENDERS = 8
TWICE = 0.05  # share of requests that are sent again


def reply(body: Json) -> ScriptedAnswer:
    """To what was said last: the name of the request."""
    texts = [block["text"] for message in body["messages"] for block in message["content"] if block["type"] == "text"]
    if texts[-1].startswith("slow"):
        return slow(says("at last"), 20)
    return fails(401, message="no") if texts[-1].startswith("poison") else says(f"done {texts[-1][:40]}")


async def fifo(stage: Stage, *, requests: int, kills: int) -> Row:
    """R9: many requests in one lane that rotates every few turns, while workers die."""
    async with stage.arena(stage.short_history, says=reply) as it:
        crew, lane = it.crew("r9", 2), f"r9-{stage.seed}"
        known: list[Submitted] = []

        async def send(sender: int) -> None:
            for number in range(requests // SENDERS):
                name = f"{sender}-{number}"
                submitted = await _say(it, "r9", lane, name)
                if it.random.random() < TWICE:
                    known.append(await _say(it, "r9", lane, name))
                    if known[-1].run_id != submitted.run_id:
                        found.wrong(f"request {name} became two runs")

        found = Audit()
        async with asyncio.TaskGroup() as senders:
            for sender in range(SENDERS):
                senders.create_task(send(sender))
            for _ in range(kills):
                await asyncio.sleep(it.random.uniform(0.5, 1.5))
                await crew.fault("kill", it.random)
        names = [[f"{sender}-{n}" for n in range(requests // SENDERS)] for sender in range(SENDERS)]
        total = sum(map(len, names))
        await _until_idle(it, lane, total, patience=PATIENCE + total)
        runs = {name: await _described(it, turn_run_id(lane, name)) for sender in names for name in sender}
        _judge_order(found, runs, names)
        found.runs = len(runs)
        found.duplicates += sum(not each.duplicate for each in known)
        found.rotations = await _executions(it, lane) - 1
        judge_logs(found, it, quiet=True)
        return row(it, found, f"{total} requests, {len(known)} of them twice; {found.rotations} rotations")


def _judge_order(found: Audit, runs: dict[str, WorkflowExecutionDescription], names: Sequence[Sequence[str]]) -> None:
    """One at a time, and those of each sender in the order in which they were sent."""
    order = sorted(runs, key=lambda name: runs[name].start_time)
    for sender in names:
        if [name for name in order if name in set(sender)] != list(sender):
            found.wrong(f"the requests of sender {sender[0]} did not run in order")
    for earlier, later in pairwise(order):
        closed = runs[earlier].close_time
        if closed is None or closed > runs[later].start_time:
            found.wrong(f"{later} began before {earlier} had ended")
    for name, run in runs.items():
        if run.status is None or run.status.name != "COMPLETED":
            found.wrong(f"{name} ended {run.status}")


@dataclass
class _Flood:
    accepted: int = 0
    refused: int = 0
    untyped: int = 0
    is_full: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


async def flood(stage: Stage, *, requests: int, size: int, healthy: int, ratio: float | None) -> Row:
    """R10: a lane is flooded, one is slow, one fails each time; the others notice nothing."""
    async with stage.arena(says=reply) as it:
        it.crew("r10", 2)
        found, flooded, poisoned = Audit(), _Flood(), f"poison-{stage.seed}"
        await _say(it, "r10", f"warm-{stage.seed}", "warm")
        alone = await _healthy(it, f"alone-{stage.seed}", healthy)
        await _say(it, "r10", f"slow-{stage.seed}", "slow")
        for number in range(3):
            await _say(it, "r10", poisoned, f"poison {number}")
        flooding = asyncio.create_task(_flood(it, f"flood-{stage.seed}", requests, size, flooded))
        beside = await _healthy(it, f"taking-{stage.seed}", healthy)
        await asyncio.wait([flooding, asyncio.create_task(flooded.is_full.wait())], return_when="FIRST_COMPLETED")
        beside += await _healthy(it, f"refusing-{stage.seed}", healthy)
        await flooding
        view = await _until_idle(it, poisoned, 3)
        if {turn.end for turn in view.recent} != {TurnEnd.failed}:
            found.wrong(f"the poisoned lane ended {[turn.end for turn in view.recent]}")
        lane = await lanes.query_lane(it.client, f"flood-{stage.seed}")
        if lane is None or lane.queued > lane.most_queued or flooded.refused == 0 or flooded.untyped:
            found.wrong(f"the flood: {flooded}, {lane and lane.queued} queued")
        for left in (f"flood-{stage.seed}", f"slow-{stage.seed}"):
            await _stopped(it, left)  # others look for open runs on this server
        alone += await _healthy(it, f"again-{stage.seed}", healthy)
        first, second = _p95(alone), _p95(beside)
        if ratio is not None and second > ratio * first:
            found.wrong(f"healthy lanes: p95 {second:.2f} s beside the flood, {first:.2f} s alone")
        found.runs = len(alone) + len(beside) + 5 + flooded.accepted
        judge_logs(found, it, quiet=True)
        told = f"{flooded.accepted} taken, {flooded.refused} refused; p95 {first:.2f} s alone, {second:.2f} s beside it"
        return row(it, found, told)


async def _stopped(it: Arena, lane: str) -> None:
    handle = it.client.get_workflow_handle(conversation_workflow_id(lane))
    await handle.cancel()
    with suppress(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), PATIENCE)


async def _flood(it: Arena, lane: str, requests: int, size: int, told: _Flood) -> None:
    at_once = asyncio.Semaphore(SENDERS)

    async def send(number: int) -> None:
        async with at_once:
            body = SubmitRequest(request_id=f"{number}", goal="x" * size)
            try:
                await lanes.submit_with_retry(it.client, "r10", lane, body)
                told.accepted += 1
            except RejectedError as refused:
                told.refused += 1
                told.is_full.set()
                told.untyped += "the lane is full" not in str(refused)

    await asyncio.gather(*(send(number) for number in range(requests)))


async def _healthy(it: Arena, name: str, number: int) -> list[float]:
    """Seconds from the request to the end of its turn, in lanes of their own, all at once."""

    async def one(lane: str) -> float:
        began = time.monotonic()
        submitted = await _say(it, "r10", lane, lane)
        await _ended(it, submitted.run_id)
        return time.monotonic() - began

    return await asyncio.gather(*(one(f"{name}-{n}") for n in range(number)))


def _p95(took: list[float]) -> float:
    return quantiles(took, n=20)[-1]


async def _say(it: Arena, queue: str, lane: str, name: str) -> Submitted:
    request = SubmitRequest(request_id=name, goal=name)
    submitted: Submitted = await unfailing(lambda: lanes.submit_with_retry(it.client, queue, lane, request))
    return submitted


async def _ended(it: Arena, run_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await it.client.get_workflow_handle(run_workflow_id(run_id)).result()
            except Exception as error:
                if "not found" not in str(error):
                    raise
                await asyncio.sleep(0.02)
            else:
                return


async def _until_idle(it: Arena, lane: str, accepted: int, patience: float = PATIENCE) -> LaneView:
    async with asyncio.timeout(patience):
        while True:
            view: Any = await unfailing(lambda: lanes.query_lane(it.client, lane))
            if view and view.active is None and not view.queued and view.accepted >= accepted:
                return LaneView.model_validate(view)
            await asyncio.sleep(0.1)


async def _described(it: Arena, run_id: str) -> WorkflowExecutionDescription:
    return await it.client.get_workflow_handle(run_workflow_id(run_id)).describe()


async def _executions(it: Arena, lane: str) -> int:
    query = f"WorkflowId = '{conversation_workflow_id(lane)}'"
    return len([each async for each in it.client.list_workflows(query)])
