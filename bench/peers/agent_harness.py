"""T(n, s) with the Temporal Agent Harness, whose turn is a Pydantic AI agent, as in its example of one.

The turn is begun by a message, as its clients send it. As in the example: each model call streams to whoever watches,
and no tool waits for an approval. One default is not kept: Pydantic AI's limit of 50 model requests.
"""

import json
from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.workflow_streams import WorkflowStream
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
    from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
    from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
    from pydantic_ai.usage import UsageLimits
    from temporal_agent_harness.ai_sdks.pydantic_ai_harness import (
        HarnessDeps,
        build_harness_toolset,
        harness_event_stream_handler,
    )
    from temporal_agent_harness.harness import AgentWorkflowRunner, agent
    from temporal_agent_harness.harness.agent_protocol import AgentConfig, TextMessage, TextReply, ToolApprovalPolicy
    from temporal_agent_harness.plugin import AgentHarnessPlugin

    from bench.work import Marks, Work, text

MARKS = Marks()


async def instant(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:  # noqa: ARG001
    MARKS.model_called()
    parts = [part for message in messages for part in message.parts]
    work = Work(**json.loads(next(part.content for part in parts if isinstance(part, UserPromptPart))))
    turn = sum(isinstance(part, ToolReturnPart) for part in parts)
    if turn == work.steps:
        yield "done"
    else:
        arguments = json.dumps({"turn": turn, "size": work.size})
        yield {0: DeltaToolCall("bulk", arguments, tool_call_id=f"call_{turn}")}


@agent.activity_tool_defn(inherently_safe=True, activity_config={"start_to_close_timeout": timedelta(seconds=60)})
async def bulk(turn: int, size: int) -> str:
    """Returns noise."""
    MARKS.tool_called()
    return text(turn, size)


TOOLSET, TOOL_CONFIG = build_harness_toolset([bulk], id="peer-tools")
AGENT = TemporalAgent(
    Agent(
        FunctionModel(stream_function=instant),
        instructions="You are measured.",
        deps_type=HarnessDeps,
        toolsets=[TOOLSET],
    ),
    name="peer",
    event_stream_handler=harness_event_stream_handler,
    tool_activity_config=TOOL_CONFIG,
)


@agent.defn
class Peer:
    @agent.init
    def __init__(self, config: AgentConfig) -> None:
        self._runner = AgentWorkflowRunner(
            config, stream=WorkflowStream(), approval_policy_default=ToolApprovalPolicy.dangerously_skip_all()
        )

    @agent.accepts
    async def ask(self, message: TextMessage) -> TextReply:
        """Does the work that the message tells of."""
        limits = UsageLimits(request_limit=None)
        result = await AGENT.run(message.text, deps=HarnessDeps(runner=self._runner), usage_limits=limits)
        return TextReply(text=result.output)


async def connect(address: str) -> Client:
    return await Client.connect(address, plugins=[PydanticAIPlugin(), AgentHarnessPlugin(tools=[bulk])])


def build(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Peer], plugins=[AgentPlugin(AGENT)])
