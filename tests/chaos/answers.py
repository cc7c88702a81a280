"""What comes back from tools and models: too much, too often refused, too late."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from starlette.responses import Response
from temporalio.client import WorkflowFailureError

from perdure.client.runs import request_cancel
from perdure.contracts.run.signals import CancelRequest
from perdure.testkit.model_server import Reply, ScriptedAnswer, cut, fails
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import Audit, audit, memory_peak
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import pid_of, until
from tests.chaos.task import Task, Use, mixed, script
from tests.chaos.tool_server import ToolServer

MEGABYTE = 1_000_000
MAX_MEMORY = 500 * MEGABYTE


async def large_results(context: ScenarioContext) -> Row:
    """R13: whatever a tool returns, its effect happens once, the run ends, and the worker lives."""
    sizes = [int(size * MEGABYTE) for size in (1.9, 2.1, 3, 50)]
    async with context.environment(tools=ToolServer(context.seed, takes=0)) as it:
        workers = it.start_workers("r13", 1)
        for size in sizes:
            await it.start(Task(f"r13-{size}", ((("charge", {"bytes": size}),),)), "r13")
        await it.start(Task("r13-error", ((("charge", {"bytes": 5 * MEGABYTE, "status": 422}),),)), "r13")
        many: tuple[Use, ...] = tuple(("look", {"bytes": 300_000, "nr": number}) for number in range(12))
        await it.start(Task("r13-many", (many,)), "r13")
        late = await it.all_ended()
        peak = memory_peak(pid_of(workers.processes[0]))
        found = await audit(it, late=late)
        if peak > MAX_MEMORY:
            found.wrong(f"the worker held {peak / MEGABYTE:.0f} MB")
        return row(it, found, f"peak memory {peak / MEGABYTE:.0f} MB")


UNKNOWN_LIMIT_REFUSALS = 8  # calls that are refused until two workers know a limit that only the refusals tell


class FlakyModel:
    """A model with a rate limit, which fails at the first request of some turns: a tenth for each kind of fault."""

    KINDS: tuple[Callable[[Reply], ScriptedAnswer], ...] = (
        lambda _: fails(529),
        lambda _: fails(500),
        cut,
        lambda reply: cut(reply, error="overloaded_error"),
    )

    def __init__(self, seed: int, per_second: float) -> None:
        self._seed = seed
        self._seen: set[str] = set()
        self._rate = self._left = per_second
        self._at = time.monotonic()
        self.given = self.refused = 0

    def __call__(self, request: Json) -> ScriptedAnswer:
        if not self._takes():
            self.refused += 1
            return fails(429, retry_after=1)
        reply = script(request)
        key = json.dumps(request["messages"], sort_keys=True)
        kind = Random(f"{self._seed} {key}").randrange(10)
        if key in self._seen or kind >= len(self.KINDS):
            return reply
        self._seen.add(key)
        self.given += 1
        if not isinstance(reply, Reply):
            raise TypeError(reply)
        return self.KINDS[kind](reply)

    def _takes(self) -> bool:
        """A bucket that holds a second's calls, and fills as fast as they may come."""
        now = time.monotonic()
        self._left, self._at = min(self._rate, self._left + (now - self._at) * self._rate), now
        takes = self._left >= 1
        self._left -= takes
        return takes


async def storm(context: ScenarioContext, *, runs: int, limited: bool = False) -> Row:
    """R14: rate limits of tools and model, and faults of the model, answered with patience and nothing more.

    `limited`: all limits are on.
    """

    def refuses(effect: str, key: str, earlier: int) -> Response | None:
        if earlier >= Random(f"{context.seed} {key}").choice((0, 0, 1, 2)):
            return None
        return Response("slow down", status_code=429, headers={"retry-after": "1"})

    model = FlakyModel(context.seed, max(10.0, runs / 8))
    tools = ToolServer(context.seed, refuses=refuses)
    async with context.environment(tools=tools, says=model, limited=limited) as it:
        it.start_workers(context.key, 2)
        for number in range(runs):
            await it.start(mixed(f"{context.key}-{number}", it.random, 8), context.key)
        late = await it.all_ended(within=120)
        found = await audit(it, late=late)
        turns = sum(len(task.turns) + 1 for task in it.tasks.values())
        it.fault(counts=False)
        it.faults = model.given + model.refused + sum(tools.refused.values())
        _must_be_few(found, "model calls", len(it.model.requests) - UNKNOWN_LIMIT_REFUSALS, turns + model.given)
        steps = sum(len(task.tools) for task in it.tasks.values())
        refused_once = sum(n for place, n in tools.refused.items() if it.tasks[place[0]].tools[place[1]] == "charge")
        allowed = steps + sum(tools.refused.values()) - refused_once
        _must_be_few(found, "tool calls", sum(tools.requests.values()), allowed)
        return row(it, found, f"{len(it.model.requests)} model calls for {turns} turns and {model.given} faults")


def _must_be_few(found: Audit, what: str, made: int, allowed: int) -> None:
    if made > 1.1 * allowed:
        found.wrong(f"{made} {what}, and {allowed} were called for")


async def long_call(context: ScenarioContext, *, seconds: float) -> Row:
    """R15: a long answer is neither cut off nor waited for in vain."""
    async with context.environment() as it:
        task = {name: Task(f"r15-{name}", (), pause=seconds) for name in ("whole", "killed", "cancelled")}
        workers = {name: it.start_workers(f"r15-{name}", 1) for name in task}
        for name, each in task.items():
            await it.start(each, f"r15-{name}")
        await until(lambda: len(it.model.requests) == 3)
        await asyncio.sleep(2)
        began = time.monotonic()
        await workers["killed"].fault("kill")
        await request_cancel(it.client, "r15-cancelled", CancelRequest(reason="enough"))
        with suppress(WorkflowFailureError):
            await it.handles["r15-cancelled"].result()
        cancelled = time.monotonic() - began
        await until(lambda: len(it.model.requests) == 4)
        seen = time.monotonic() - began
        late = await it.all_ended(within=2 * seconds + 60)
        found = await audit(it, late=late, status=None)
        if seen > 15:
            found.wrong(f"the death of a worker was seen after {seen:.1f} s")
        if cancelled > 12:
            found.wrong(f"a cancel took {cancelled:.1f} s")
        if len(it.model.requests) != 4:
            found.wrong(f"{len(it.model.requests)} model calls, and 4 were called for")
        return row(it, found, f"death seen {seen:.1f} s, cancelled {cancelled:.1f} s")
