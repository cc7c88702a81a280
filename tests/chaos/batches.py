"""Pooled batches: the worker and the server die at submit, poll and collect. Parts fail, expire, and are cut off."""

import asyncio
from collections import Counter
from dataclasses import replace

from perdure.process.supervisor import CRASH_LOOP
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import Reply, ScriptedAnswer, expires, fails
from perdure.testkit.rehearsal.sse import Json, digest_of
from tests.chaos.auditor import Audit, audit, read_replies
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import Environment, Workers, until
from tests.chaos.server_faults import Server, own_server
from tests.chaos.task import mixed, script

ENDPOINTS = ("create", "retrieve", "results")  # submit, poll, collect
PROJECT = """
[model]
pace = "batch"

[model.batch]
size = {size}
wait = "1s"
"""
PATIENCE = 300.0  # a turn may need several batches, one after the other


CUT_AT = 4  # characters of a reply that the length limit cuts off


def fail_some(request: Json) -> ScriptedAnswer:
    """As `script`, but of eight requests one is an overloaded part at first, one expires at first, and two are cut off.

    The rest of a reply, too, may be overloaded or expire.
    """
    is_rest = asks_for_rest(request)
    whole = script({**request, "messages": request["messages"][:-2]} if is_rest else request)
    assert isinstance(whole, Reply)
    if is_rest:
        whole = replace(whole, text=whole.text[CUT_AT:])
    match int(digest_of(request["messages"]), 16) % 8:
        case 0:
            return fails(529, then=whole)
        case 1:
            return expires(then=whole)
        case 2 | 3 if not is_rest:
            return Reply(text=whole.text[:CUT_AT], stop_reason="max_tokens")
        case _:
            return whole


def asks_for_rest(request: Json) -> bool:
    return "cut off by the length limit" in str(request["messages"][-1])


async def pooled(context: ScenarioContext, *, runs: int, kills: int, server_kills: int, size: int) -> Row:
    """R26: each turn is answered once and paid once. The first batch's connection is cut after it is accepted."""
    api = ScriptedBatches(seconds=2, reply_seconds=0.3, cut_creates=[0])
    async with (
        own_server(context) as (server, client),
        context.environment(client, says=fail_some, batches=api, more=PROJECT.format(size=size)) as it,
        it.person(),
    ):
        workers = it.start_workers("r26", 1)
        for number in range(runs):
            await it.start(mixed(f"r26-{number}", it.random, 6), "r26")
        killing = asyncio.create_task(_kill_at_each(it, api, workers, server, kills, server_kills))
        late = await it.all_ended(within=PATIENCE)
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        found = await audit(it, late=late)
        turns = sum(len(task.turns) + 1 for task in it.tasks.values())
        rests = sum(asks_for_rest(request["params"]) for request in api.paid)
        judge_payments(found, api, turns=turns, rests=rests, live=len(it.model.requests))
        await judge_pieces(found, it, rests)
        figures = f"{len(api.paid) - rests} turns and {rests} further pieces paid, {api.calls['create']} submits"
        return row(it, found, f"{len(api.batches)} batches, {figures}")


async def _kill_at_each(
    it: Environment, api: ScriptedBatches, workers: Workers, server: Server, kills: int, server_kills: int
) -> None:
    """Kill the worker between a request's effect and its reply, at each endpoint in turn; some times the server too."""
    every = kills // server_kills if server_kills else kills + 1
    for number in range(kills):
        endpoint = ENDPOINTS[number % len(ENDPOINTS)]
        before = api.calls[endpoint]
        await until(lambda name=endpoint, seen=before: api.calls[name] > seen, PATIENCE)  # type: ignore[misc]
        await workers.fault("kill")
        if number % every == every - 1:
            await asyncio.sleep(CRASH_LOOP + 0.5)  # one that dies younger is given up
            await server.kill()
            it.fault()


def judge_payments(found: Audit, api: ScriptedBatches, *, turns: int, rests: int, live: int) -> None:
    """Each turn, and each rest of a reply, is paid once, in a batch. `live` counts model calls outside of batches."""
    paid = Counter(digest_of(request["params"]["messages"]) for request in api.paid)
    for digest, times in paid.items():
        if times > 1:
            found.duplicates += times - 1
            found.wrong(f"the turn after {digest} was paid {times} times")
    if len(paid) != turns + rests:
        found.wrong(f"{len(paid) - rests} turns were paid in batches, and the runs have {turns}")
    if live:
        found.wrong(f"{live} model calls were made live")
    if not api.calls["list"]:
        found.wrong("the batch whose create request lost its reply was not looked for")


async def judge_pieces(found: Audit, it: Environment, rests: int) -> None:
    """Each piece is in the conversation, once and in its place."""
    pieces = 0
    for run in it.tasks:
        for text, count in await read_replies(it, run):
            pieces += count - 1
            if not (text == "All is done." or (text.startswith("Turn ") and text.endswith(f" of {run}."))):
                found.wrong(f"{run}: the pieces of a reply were joined as {text!r}")
    if pieces != rests:
        found.wrong(f"{rests} rests of replies were paid, and the conversations have {pieces}")
