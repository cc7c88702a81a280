"""Conversations under fault and load: order kept, each request once, and no lane held up by another."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import median, quantiles

from temporalio.client import WorkflowExecutionDescription, WorkflowFailureError

from perdure.client import lanes
from perdure.client.door import set_sender
from perdure.client.errors import RejectedError
from perdure.contracts.conversation import LaneView, SubmitRequest, Submitted, TurnEnd
from perdure.contracts.people import Sender
from perdure.decisions.ids import conversation_workflow_id, run_workflow_id, turn_run_id
from perdure.testkit.model_server import ScriptedAnswer, fails, says, slow
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import Audit, judge_logs
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import PATIENCE, Environment, retry_until_accepted, until, wait_for_value
from tests.workflows.script import texts

SENDERS = 8
TWICE = 0.05  # share of requests that are sent again


def reply(body: Json) -> ScriptedAnswer:
    """To what was said last: the name of the request."""
    request = texts(body)[-1]
    if request.startswith("slow"):
        return slow(says("at last"), 20)
    return fails(401, message="no") if request.startswith("poison") else says(f"done {request[:40]}")


async def fifo(context: ScenarioContext, *, requests: int, kills: int) -> Row:
    """R9: many requests in one lane that rotates every few turns, while workers die."""
    async with context.environment(context.short_history, says=reply) as it:
        workers, lane = it.start_workers("r9", 2), f"r9-{context.key}"
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
            await workers.kill_some(kills, 0.5, 1.5)
        names = [[f"{sender}-{n}" for n in range(requests // SENDERS)] for sender in range(SENDERS)]
        total = sum(map(len, names))
        await until_idle(it, lane, total, patience=PATIENCE + total)
        runs = {name: await describe_run(it, turn_run_id(lane, name)) for sender in names for name in sender}
        _judge_order(found, runs, names)
        found.runs = len(runs)
        found.duplicates += sum(not each.duplicate for each in known)
        found.rotations = await count_executions(it, lane) - 1
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


async def flood(
    context: ScenarioContext, *, requests: int, size: int, healthy: int, ratio: float | None, limited: bool = False
) -> Row:
    """R10: a lane is flooded, one is slow, one fails each time; the others notice nothing, also under all limits."""
    async with context.environment(says=reply, limited=limited) as it:
        it.start_workers(context.key, 2)
        found, flooded, poisoned = Audit(), _Flood(), f"poison-{context.key}"
        await _say(it, context.key, f"warm-{context.key}", "warm")
        alone = await time_healthy_lanes(it, context.key, "alone", healthy)
        await _say(it, context.key, f"slow-{context.key}", "slow")
        for number in range(3):
            await _say(it, context.key, poisoned, f"poison {number}")
        flooding = asyncio.create_task(_flood(it, context.key, requests, size, flooded))
        beside = await time_healthy_lanes(it, context.key, "taking", healthy)
        await asyncio.wait([flooding, asyncio.create_task(flooded.is_full.wait())], return_when="FIRST_COMPLETED")
        beside += await time_healthy_lanes(it, context.key, "refusing", healthy)
        await flooding
        view = await until_idle(it, poisoned, 3)
        if {turn.end for turn in view.recent} != {TurnEnd.failed}:
            found.wrong(f"the poisoned lane ended {[turn.end for turn in view.recent]}")
        lane = await lanes.query_lane(it.client, f"flood-{context.key}")
        if lane is None or lane.queued > lane.most_queued or flooded.refused == 0 or flooded.untyped:
            found.wrong(f"the flood: {flooded}, {lane and lane.queued} queued")
        for left in (f"flood-{context.key}", f"slow-{context.key}"):
            await stop_lane(it, left)  # others look for open runs on this server
        alone += await time_healthy_lanes(it, context.key, "again", healthy)
        first, second = _p95(alone), _p95(beside)
        if ratio is not None and second > ratio * first:
            found.wrong(f"healthy lanes: p95 {second:.2f} s beside the flood, {first:.2f} s alone")
        found.runs = len(alone) + len(beside) + 5 + flooded.accepted
        judge_logs(found, it, quiet=True)
        note = f"{flooded.accepted} taken, {flooded.refused} refused; p95 {first:.2f} s alone, {second:.2f} s beside it"
        return row(it, found, note)


async def owners(
    context: ScenarioContext,
    *,
    conversations: int,
    requests: int,
    replies: float,
    measured: int,
    ratio: float | None,
    gain: float | None,
) -> Row:
    """Fair shares: beside the conversations of one owner, a request of another one begins nearly as soon as alone.

    A reply takes `replies` seconds; with 0 the cores are full, and a request of the other waits `gain` times less.
    """
    seen = dict[str, float]()

    def answer(body: Json) -> ScriptedAnswer:
        request = texts(body)[-1]
        seen.setdefault(request, time.monotonic())
        said = says(f"done {request[:40]}")
        return slow(said, replies) if replies and request.startswith("many") else said

    async def time_request(lane: str, name: str) -> tuple[float, str]:
        """Return the seconds until its turn asks the model, and the id of its run."""
        began, request = time.monotonic(), SubmitRequest(request_id=name, goal=name)
        asked: Submitted = await retry_until_accepted(
            lambda: lanes.submit_with_retry(it.client, context.key, lane, request)
        )
        async with asyncio.timeout(PATIENCE):
            while name not in seen:  # noqa: ASYNC110 - another thread fills it
                await asyncio.sleep(0.01)
        return seen[name] - began, asked.run_id

    async def converse(lane: int) -> list[float]:
        set_sender(Sender(door="gateway", token="anna"))
        await asyncio.sleep(replies * lane / conversations)
        waits = list[float]()
        for number in range(requests):
            waited, run = await time_request(f"many-{context.key}-{lane}", f"many-{lane}-{number}")
            await wait_for_end(it, run)
            waits.append(waited)
        return waits[1:]

    async def time_others(name: str) -> float:
        set_sender(Sender(door="gateway", token="ben"))  # of this task
        names = [f"{name}-{context.key}-{number}" for number in range(measured)]
        return median([(await time_request(each, each))[0] for each in names])

    async with context.environment(says=answer) as it:
        it.start_workers(context.key, 2)
        found = Audit()
        await asyncio.create_task(time_others("warm"))
        alone = await asyncio.create_task(time_others("alone"))
        many = asyncio.gather(*(converse(lane) for lane in range(conversations)))
        await until(lambda: len(seen) > 2 * measured + conversations)
        beside = await asyncio.create_task(time_others("beside"))
        still = conversations * requests + 3 * measured - len(seen)
        own = median(chain.from_iterable(await many))
        waits = f"{beside:.2f} s beside {conversations} conversations of another owner, {alone:.2f} s alone"
        if ratio is not None and (beside > ratio * alone or not still):
            found.wrong(f"a request began after {waits}")
        if gain is not None and (own < gain * beside or not still):
            found.wrong(f"a request began after {waits}; one of the other owner after {own:.2f} s")
        found.runs = conversations * requests + 3 * measured
        judge_logs(found, it, quiet=True)
        note = f"a request begins after {waits}; one of theirs after {own:.2f} s; {still} of them were left"
        return row(it, found, note)


async def stop_lane(it: Environment, lane: str) -> None:
    handle = it.client.get_workflow_handle(conversation_workflow_id(lane))
    await handle.cancel()
    with suppress(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), PATIENCE)


async def _flood(it: Environment, queue: str, requests: int, size: int, counts: _Flood) -> None:
    at_once = asyncio.Semaphore(SENDERS)

    async def send(number: int) -> None:
        async with at_once:
            body = SubmitRequest(request_id=f"{number}", goal="x" * size)
            try:
                await lanes.submit_with_retry(it.client, queue, f"flood-{queue}", body)
                counts.accepted += 1
            except RejectedError as refused:
                counts.refused += 1
                counts.is_full.set()
                counts.untyped += "the lane is full" not in str(refused)

    await asyncio.gather(*(send(number) for number in range(requests)))


async def time_healthy_lanes(it: Environment, queue: str, name: str, number: int) -> list[float]:
    """Seconds from the request to the end of its turn, in lanes of their own, all at once."""

    async def one(lane: str) -> float:
        began = time.monotonic()
        submitted = await _say(it, queue, lane, lane)
        await wait_for_end(it, submitted.run_id)
        return time.monotonic() - began

    return await asyncio.gather(*(one(f"{name}-{queue}-{n}") for n in range(number)))


def _p95(took: list[float]) -> float:
    return quantiles(took, n=20)[-1]


async def _say(it: Environment, queue: str, lane: str, name: str) -> Submitted:
    request = SubmitRequest(request_id=name, goal=name)
    submitted: Submitted = await retry_until_accepted(lambda: lanes.submit_with_retry(it.client, queue, lane, request))
    return submitted


async def wait_for_end(it: Environment, run_id: str) -> None:
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


async def until_idle(it: Environment, lane: str, accepted: int, patience: float = PATIENCE) -> LaneView:
    def is_idle(view: LaneView | None) -> bool:
        return view is not None and view.active is None and not view.queued and view.accepted >= accepted

    view: LaneView = await wait_for_value(lambda: lanes.query_lane(it.client, lane), is_idle, patience)
    return view


async def describe_run(it: Environment, run_id: str) -> WorkflowExecutionDescription:
    return await it.client.get_workflow_handle(run_workflow_id(run_id)).describe()


async def count_executions(it: Environment, lane: str) -> int:
    query = f"WorkflowId = '{conversation_workflow_id(lane)}'"
    return len([each async for each in it.client.list_workflows(query)])
