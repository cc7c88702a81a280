"""Temporal Agent Kit (as Temporal Agent Harness 0.8.0) on Pydantic AI, as its README and its example of it show it.

Time-outs are the README's 30 s a tool, and Pydantic AI's 60 s a call of the model, with a heartbeat of 30 s; no limit
of attempts. Approval: its own policy, which here asks about each tool that is not declared inherently safe.
"""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.workflow_streams import WorkflowStream
from temporalio.worker import Worker
from temporalio.workflow import ActivityConfig

with workflow.unsafe.imports_passed_through():
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from temporal_agent_harness.ai_sdks.pydantic_ai_harness import (
        HarnessDeps,
        build_harness_toolset,
        harness_event_stream_handler,
    )
    from temporal_agent_harness.harness import AgentWorkflowRunner, agent
    from temporal_agent_harness.harness.agent_protocol import AgentConfig, TextMessage, TextReply, ToolApprovalPolicy
    from temporal_agent_harness.plugin import AgentHarnessPlugin

    from bench.crash import tools
    from bench.crash.tools import SETTINGS
    from bench.peers.crash.serving import ONE_ATTEMPT, idempotency_key, serve

TIMEOUT = timedelta(seconds=30)
USUAL = ActivityConfig(start_to_close_timeout=TIMEOUT)
PAYING = ActivityConfig(start_to_close_timeout=TIMEOUT, retry_policy=ONE_ATTEMPT) if SETTINGS.is_single else USUAL
POLICY = ToolApprovalPolicy.allow_inherently_safe() if SETTINGS.asks else ToolApprovalPolicy.dangerously_skip_all()


@agent.activity_tool_defn(inherently_safe=True, activity_config=USUAL)
async def look_up(bill: str) -> str:
    """Looks a bill up."""
    return await asyncio.to_thread(tools.look_up, bill)


@agent.activity_tool_defn(activity_config=PAYING)
async def pay(bill: str, cents: int) -> str:
    """Pays a bill."""
    return await asyncio.to_thread(tools.pay, bill, cents, idempotency_key())


@agent.activity_tool_defn(inherently_safe=True, activity_config=USUAL)
async def mail(bill: str, text: str) -> str:
    """Mails the customer about a bill."""
    return await asyncio.to_thread(tools.mail, bill, text)


TOOLSET, TOOL_CONFIG = build_harness_toolset([look_up, pay, mail], id="shop-tools")
openai = AsyncOpenAI(base_url=f"{SETTINGS.model}/v1", api_key="none", max_retries=0)
AGENT = TemporalAgent(
    Agent(
        OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=openai)),
        instructions="You pay the bills of a small shop.",
        deps_type=HarnessDeps,
        toolsets=[TOOLSET],
    ),
    name="clerk",
    event_stream_handler=harness_event_stream_handler,
    tool_activity_config=TOOL_CONFIG,
)


@agent.defn
class Shop:
    """An agent of the harness goes on until it is closed: `replies` tells when its turn is over."""

    @agent.init
    def __init__(self, config: AgentConfig) -> None:
        self._runner = AgentWorkflowRunner(config, stream=WorkflowStream(), approval_policy_default=POLICY)
        self._replies = 0

    @workflow.query
    def replies(self) -> int:
        return self._replies

    @agent.accepts
    async def ask(self, message: TextMessage) -> TextReply:
        """Does what the message says."""
        result = await AGENT.run(message.text, deps=HarnessDeps(runner=self._runner))
        self._replies += 1
        return TextReply(text=str(result.output))


async def work() -> None:
    plugins = [PydanticAIPlugin(), AgentHarnessPlugin(tools=[look_up, pay, mail])]
    client = await Client.connect(SETTINGS.address, plugins=plugins)
    await serve(Worker(client, task_queue=SETTINGS.queue, workflows=[Shop], plugins=[AgentPlugin(AGENT)]))
