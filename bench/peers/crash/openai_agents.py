"""The OpenAI Agents SDK with Temporal's plugin, as the plugin's README shows it.

Time-outs are the README's: 30 s a call of the model, 10 s a tool, no limit of attempts. Approval: a `function_tool`
with `needs_approval`, of the SDK's page "Human-in-the-loop", which runs in the workflow and calls the same activity.
"""

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from agents import Agent, OpenAIProvider, Runner, function_tool
    from openai import AsyncOpenAI
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.workflow import activity_as_tool

    from bench.crash import tools
    from bench.crash.tools import SETTINGS
    from bench.peers.crash.serving import ONE_ATTEMPT, idempotency_key, serve

MODEL_TIMEOUT = timedelta(seconds=30)
TOOL_TIMEOUT = timedelta(seconds=10)


@activity.defn
async def look_up(bill: str) -> str:
    """Looks a bill up."""
    return await asyncio.to_thread(tools.look_up, bill)


@activity.defn
async def pay(bill: str, cents: int) -> str:
    """Pays a bill."""
    return await asyncio.to_thread(tools.pay, bill, cents, idempotency_key())


@activity.defn
async def mail(bill: str, text: str) -> str:
    """Mails the customer about a bill."""
    return await asyncio.to_thread(tools.mail, bill, text)


@function_tool(name_override="pay", needs_approval=True)
async def pay_asked(bill: str, cents: int) -> str:
    """Pays a bill."""
    return str(await workflow.execute_activity(pay, args=[bill, cents], start_to_close_timeout=TOOL_TIMEOUT))


@workflow.defn
class Shop:
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
        retries = ONE_ATTEMPT if SETTINGS.is_single else None
        paying = activity_as_tool(pay, start_to_close_timeout=TOOL_TIMEOUT, retry_policy=retries)
        agent = Agent(
            name="clerk",
            instructions="You pay the bills of a small shop.",
            model="scripted",
            tools=[
                activity_as_tool(look_up, start_to_close_timeout=TOOL_TIMEOUT),
                pay_asked if SETTINGS.asks else paying,
                activity_as_tool(mail, start_to_close_timeout=TOOL_TIMEOUT),
            ],
        )
        result = await Runner.run(agent, task)
        while result.interruptions:
            self._asks = True
            await workflow.wait_condition(lambda: self._approved)
            self._asks = False
            state = result.to_state()
            for interruption in result.interruptions:
                state.approve(interruption)
            result = await Runner.run(agent, state)
        return str(result.final_output)


async def work() -> None:
    openai = AsyncOpenAI(base_url=f"{SETTINGS.model}/v1", api_key="none")
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=MODEL_TIMEOUT),
        model_provider=OpenAIProvider(openai_client=openai, use_responses=False),
    )
    client = await Client.connect(SETTINGS.address, plugins=[plugin])
    await serve(Worker(client, task_queue=SETTINGS.queue, workflows=[Shop], activities=[look_up, pay, mail]))
