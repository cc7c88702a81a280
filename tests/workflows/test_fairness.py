"""Plans share the workers evenly: a flood of one does not hold up another, down to the model calls (C3)."""

import asyncio
import time
from typing import Any

from activities.conversation import submit
from activities.messages_sse import Json
from contracts.conversation import SubmitRequest, Submitted
from testkit.model_server import Reply, says
from tests.workflows.lane import begun, new_id, texts

MANY, FEW = 60, 5


async def test_a_few_tasks_of_one_plan_do_not_wait_for_the_many_of_another(world: Any) -> None:
    served: list[str] = []

    def reply(body: Json) -> Reply:
        served.append(texts(body)[-1])
        time.sleep(0.02)  # the model takes its time: there is something to share
        return says("ok")

    async with world(reply, works=False) as it:

        async def ask(plan: str) -> Submitted:
            request = SubmitRequest(request_id="r", goal=plan)
            return await submit(it.client, it.queue, new_id(), request, closes=True, fairness_key=plan)

        async with it.worker(slots=2):
            asked = await asyncio.gather(*(ask("many") for _ in range(MANY)))
            asked += await asyncio.gather(*(ask("few") for _ in range(FEW)))
            for each in asked:
                await asyncio.wait_for((await begun(it, each)).result(), 60)
    assert len(served) == MANY + FEW
    # Without the key the last of the few is served at the end: at 55, 62 and 64 of 65, in three runs; with it at 33.
    assert max(place for place, plan in enumerate(served) if plan == "few") < 0.8 * MANY
