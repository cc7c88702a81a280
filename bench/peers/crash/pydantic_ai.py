"""Pydantic AI with its `TemporalDurability`, as its page "Durable Execution with Temporal" shows it.

Retries and time-outs are the defaults: 60 s an activity, no limit of attempts. The client of the model makes no
retries of its own, as the page advises. Approval: a tool with `requires_approval`, of its page "Deferred Tools".
"""

import asyncio

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.workflow import ActivityConfig

with workflow.unsafe.imports_passed_through():
    from openai import AsyncOpenAI
    from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from bench.crash import tools
    from bench.crash.tools import SETTINGS
    from bench.peers.crash.serving import ONE_ATTEMPT, idempotency_key, serve


async def look_up(bill: str) -> str:
    """Looks a bill up."""
    return await asyncio.to_thread(tools.look_up, bill)


async def pay(bill: str, cents: int) -> str:
    """Pays a bill."""
    return await asyncio.to_thread(tools.pay, bill, cents, idempotency_key())


async def mail(bill: str, text: str) -> str:
    """Mails the customer about a bill."""
    return await asyncio.to_thread(tools.mail, bill, text)


def payment() -> Tool:
    metadata = {"temporal": ActivityConfig(retry_policy=ONE_ATTEMPT)} if SETTINGS.is_single else None
    return Tool(pay, requires_approval=SETTINGS.asks, metadata=metadata)


openai = AsyncOpenAI(base_url=f"{SETTINGS.model}/v1", api_key="none", max_retries=0)
agent = Agent(
    OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=openai)),
    name="clerk",
    instructions="You pay the bills of a small shop.",
    output_type=[str, DeferredToolRequests],
    tools=[look_up, payment(), mail],
    capabilities=[TemporalDurability()],
)


@workflow.defn
class Shop(PydanticAIWorkflow):
    __pydantic_ai_agents__ = [agent]  # noqa: RUF012 - as the plugin reads it

    def __init__(self) -> None:
        self._asks = False
        self._approved = False

    @workflow.query
    def asks(self) -> bool:
        return self._asks

    @workflow.signal
    def approve(self) -> None:
        self._approved = True

    @workflow.run
    async def run(self, task: str) -> str:
        result = await agent.run(task)
        while isinstance(result.output, DeferredToolRequests):
            self._asks = True
            await workflow.wait_condition(lambda: self._approved)
            self._asks = False
            approvals = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=approvals)
        return str(result.output)


async def work() -> None:
    client = await Client.connect(SETTINGS.address, plugins=[PydanticAIPlugin()])
    await serve(Worker(client, task_queue=SETTINGS.queue, workflows=[Shop]))
