"""Many questions at once, which several gateways list, and which people answer at once in different ways."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle

from temporalio.client import Client

from bench.actions import Actions
from perdure.client.connection import connect, register_search_attributes
from perdure.devserver import embedded_server
from tests.chaos.approvals import GROUPS, Plan, judge_decisions, read_facts, write_project
from tests.chaos.auditor import Audit, audit
from tests.chaos.context import Row, ScenarioContext, expect_no_doubt, row
from tests.chaos.doors import PAUSE, Door, Questions, Sent, people
from tests.chaos.environment import PATIENCE, Environment
from tests.chaos.task import Task
from tests.ports import free_port

STICKY = "30s"  # no worker dies here, and a busy one may answer a query late, see `approvals.STICKY`

SIZES = (1, 1, 1, 4)  # calls of a run's turn, which are asked about together
AT_ONCE = 60  # answers on their way
AGAIN = 0.5  # seconds until a gateway that could not answer is asked again


@dataclass
class Crowd:
    """Runs that wait, and the answers to their questions."""

    it: Environment
    doors: list[Door]
    plans: dict[str, list[Plan]] = field(default_factory=dict)  # by run: its calls as they are proposed
    sent: list[Sent] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(map(len, self.plans.values()))

    async def start(self, questions: int) -> None:
        sizes = _sizes(questions)
        for nr, size in enumerate(sizes):
            plans = [Plan(n, "pay", {"n": n, "cents": self.it.random.randrange(10**6)}) for n in range(1, size + 1)]
            self.plans[f"r28-{nr}"] = plans
            await self.it.start(Task(f"r28-{nr}", (tuple(plan.use for plan in plans),)), "r28")

    async def list_all(self, door: Door) -> tuple[Questions, float]:
        """The questions once this gateway lists all, and how many seconds after the last was asked."""
        async with asyncio.timeout(PATIENCE):
            while True:
                page = await door.get("/v1/questions?limit=200")
                listed: Questions = [row for row in page["questions"] if row["question"] is not None]
                if len(listed) >= self.size:
                    last = max(datetime.fromisoformat(row["question"]["asked_at"]) for row in listed)
                    return listed, (datetime.now(UTC) - last).total_seconds()
                await asyncio.sleep(PAUSE)

    async def answer_all(self, listed: Questions) -> None:
        """Two people answer each question through all gateways at once: approve, deny, approve with a change."""
        turn, doors = asyncio.Semaphore(AT_ONCE), cycle(self.doors)

        async def answer(door: Door, sent: Sent, call: str) -> None:
            async with turn:
                while (await door.answer(sent, call)).accepted is None:  # noqa: ASYNC110 - the gateway's 503
                    await asyncio.sleep(AGAIN)

        async with asyncio.TaskGroup() as answering:
            for asked in listed:
                question = asked["question"]
                number = question["arguments"]["n"]
                changed = {"n": number, "cents": question["arguments"]["cents"] + 1}
                contents = [("ann", "approve", None), ("bob", "deny", None), ("ann", "approve", changed)]
                self.it.random.shuffle(contents)
                for person, decision, arguments in contents:
                    sent = Sent(asked["run_id"], question["id"], number, person, decision, arguments=arguments)
                    self.sent.append(sent)
                    answering.create_task(answer(next(doors), sent, question["call"]))


def _sizes(questions: int) -> Iterator[int]:
    sizes = cycle(SIZES)
    while questions > 0:
        yield (size := min(next(sizes), questions))
        questions -= size


@asynccontextmanager
async def metered_server(context: ScenarioContext) -> AsyncIterator[tuple[Actions, Client]]:
    port = free_port()
    async with embedded_server(context.folder / "server", metrics_port=port) as server:
        client = await connect(server.address)
        await register_search_attributes(client)
        yield Actions(port), client


async def answered_at_once(context: ScenarioContext, *, questions: int, gateways: int) -> Row:
    """R28: each question has one decision, all other answers are rejected with a reason, and each run ends."""
    async with (
        metered_server(context) as (actions, client),
        context.environment(client, more=GROUPS, sticky=STICKY) as it,
        people(it) as open_door,
    ):
        write_project(it)
        it.start_workers("r28", 2)
        crowd = Crowd(it, [open_door() for _ in range(gateways)])
        await crowd.start(questions)
        lists = await asyncio.gather(*(crowd.list_all(door) for door in crowd.doors))
        listed, listed_after = lists[0][0], max(seconds for _, seconds in lists)
        fresh = open_door()
        await fresh.get("/healthz")
        first, again = [await actions.of(crowd.list_all(fresh)) for _ in range(2)]
        began = time.monotonic()
        await crowd.answer_all(listed)
        decided_after = time.monotonic() - began
        it.fault(counts=False)  # from now on each run has a minute
        late = await it.all_ended()
        found = await audit(it, late=late)
        expect_no_doubt(it, found)
        await judge_crowd(found, crowd)
        costs = f"{first:.0f} actions for a gateway's first list, {again:.0f} for its next"
        note = f"{len(listed)} questions on {gateways} gateways: all listed after {listed_after:.1f} s, "
        return row(it, found, note + f"{len(crowd.sent)} answers in {decided_after:.1f} s; {costs}")


async def judge_crowd(found: Audit, crowd: Crowd) -> None:
    """One answer to each question is accepted, and its decision holds; each of the others has a 409 and a reason."""
    for run, plans in crowd.plans.items():
        sent = [each for each in crowd.sent if each.run == run]
        decided = []
        for plan in plans:
            accepted = [each for each in sent if each.number == plan.number and each.accepted]
            if len(accepted) != 1:
                found.wrong(f"{run}: {len(accepted)} answers about call {plan.number} were accepted")
                continue
            won = accepted[0]
            decided.append(Plan(plan.number, plan.tool, plan.proposed, won.decision, (won.person,), won.arguments))
        for each in sent:
            if not each.accepted and each.status != 409:
                found.wrong(f"{run}: an answer that was too late got {each.status}: {each.reason}")
        judge_decisions(found, crowd.it, run, decided, sent, await read_facts(crowd.it, run))
