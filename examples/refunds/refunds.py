"""A worker of another program, with Perdure in it: an agent judges each claim, and the program's own activity pays.

Start it in this folder, beside `temporal server start-dev`: `python refunds.py`.
"""

import asyncio
import os
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ChildWorkflowError, is_cancelled_exception
from temporalio.worker import Worker

from perdure import PerdurePlugin
from perdure.stubs import AgentRun, CancelRequest, CompletedEvent, StartEvent, StartPayload, run_workflow_id


@activity.defn
async def pay(claim: str) -> str:
    return f"paid: {claim}"


@workflow.defn
class Refund:
    def __init__(self) -> None:
        self._withdrawn: CancelRequest | None = None

    @workflow.run
    async def run(self, claim: str) -> str:
        start = StartEvent(type="agentic.start", payload=StartPayload(goal=f"Judge the claim: {claim}", agent="clerk"))
        run_id = run_workflow_id(f"claim-{workflow.info().workflow_id}")
        judgement = await workflow.start_child_workflow(AgentRun.run, start, id=run_id)
        await workflow.wait_condition(lambda: judgement.done() or self._withdrawn is not None)
        if self._withdrawn is not None:
            await judgement.signal(AgentRun.cancel, self._withdrawn)
        try:
            end = await judgement
        except ChildWorkflowError as error:
            if self._withdrawn is not None and is_cancelled_exception(error):
                return "withdrawn"
            raise
        if not isinstance(end, CompletedEvent):
            return f"a person decides: {end.payload.detail}"
        paid = await workflow.execute_activity(pay, claim, start_to_close_timeout=timedelta(seconds=10))
        return f"{paid}; {end.payload.outcome}"

    @workflow.signal
    def withdraw(self, reason: str) -> None:
        self._withdrawn = CancelRequest(reason=reason, by="customer")


async def main() -> None:
    address = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
    client = await Client.connect(address, plugins=[PerdurePlugin()])
    async with Worker(client, task_queue="perdure", workflows=[Refund], activities=[pay]):
        print("refunds are open", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
