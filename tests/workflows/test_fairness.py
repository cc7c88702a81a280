"""Plans share the workers evenly: a flood of one does not hold up another, down to the model calls (C3)."""

import asyncio
import threading
from functools import partial

from perdure.activities.temporal import fair_priority, submit_to_lane
from perdure.client.door import set_sender
from perdure.client.runs import start_or_get_run
from perdure.contracts.conversation import SubmitRequest, Submitted
from perdure.contracts.people import Sender
from perdure.contracts.run.events import StartEvent, StartPayload
from perdure.testkit.model_server import Reply, says
from perdure.testkit.rehearsal.sse import Json
from tests.conftest import server
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.lane import new_id, wait_for_run
from tests.workflows.script import texts

MANY, FEW = 60, 5
# The server has one partition of a queue. Of several, each is fair for itself: who comes late depends on luck.


async def test_a_run_of_one_owner_does_not_wait_for_the_many_conversations_of_another(world: MakeWorld) -> None:
    served: list[str] = []
    all_asked = threading.Event()

    def reply(body: Json) -> Reply:
        all_asked.wait()
        served.append(texts(body)[-1])
        return says("ok")

    async with await server() as environment, world(reply, works=False, server=environment.client) as it:

        async def ask() -> Submitted:
            request = SubmitRequest(request_id="r", goal="many", sender=Sender(door="gateway", token="anna"))
            return await submit_to_lane(it.client, it.queue, new_id(), request, closes=True)

        async def start(goal: str, priority: int) -> Run:
            set_sender(Sender(door="gateway", token="ben"))
            payload = StartPayload(goal=goal, priority=priority)
            return await start_or_get_run(it.client, it.queue, StartEvent(type="agentic.start", payload=payload))

        async with it.worker(slots=2):
            asked = await asyncio.gather(*(ask() for _ in range(MANY)))
            runs = [await wait_for_run(it, each) for each in asked]
            others = [await asyncio.create_task(start(f"ben {number}", 3)) for number in range(FEW)]
            for run in (*runs, *others):
                await it.until(partial(asks, run))
            all_asked.set()
            for run in (*runs, *others):
                await asyncio.wait_for(run.result(), 60)
        described = (await others[0].describe()).raw_description.workflow_execution_info
    assert described.priority.fairness_key == "ben"
    assert max(place for place, goal in enumerate(served) if "ben" in goal) < MANY / 2


def test_a_priority_is_a_weight_and_a_long_name_a_digest() -> None:
    assert fair_priority("anna").fairness_weight == 1.0
    weights = [fair_priority("anna", priority).fairness_weight or 0 for priority in range(1, 6)]
    assert weights == sorted(weights, reverse=True)
    assert fair_priority("").fairness_key is None
    assert len(fair_priority("ä" * 40).fairness_key or "") == 32


async def asks(run: Run) -> bool:
    return bool((await run.describe()).raw_description.pending_activities)


async def test_a_few_tasks_of_one_plan_do_not_wait_for_the_many_of_another(world: MakeWorld) -> None:
    served: list[str] = []
    all_asked = threading.Event()

    def reply(body: Json) -> Reply:
        all_asked.wait()  # until then two calls hold the worker, and the others queue
        served.append(texts(body)[-1])
        return says("ok")

    async with await server() as environment, world(reply, works=False, server=environment.client) as it:

        async def ask(plan: str) -> Submitted:
            request = SubmitRequest(request_id="r", goal=plan)
            return await submit_to_lane(it.client, it.queue, new_id(), request, closes=True, shares_as=plan)

        async with it.worker(slots=2):
            asked = await asyncio.gather(*(ask("many") for _ in range(MANY)))
            asked += await asyncio.gather(*(ask("few") for _ in range(FEW)))
            runs = [await wait_for_run(it, each) for each in asked]
            for run in runs:
                await it.until(partial(asks, run))
            all_asked.set()
            for run in runs:
                await asyncio.wait_for(run.result(), 60)
    assert len(served) == MANY + FEW
    # As 3rd to 11th of 65, in turns with the others; without the key as 57th to 64th.
    assert max(place for place, plan in enumerate(served) if plan == "few") < MANY / 2
