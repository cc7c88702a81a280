"""T(n, s) with Pydantic AI: an agent with the `TemporalDurability` capability, its `FunctionModel` as the model.

One default is not kept: an agent stops at 50 model requests. The model states its usage, as a real one does; the fake
would otherwise count the words of the whole conversation at each call.
"""

import json
from dataclasses import asdict

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import RequestUsage, UsageLimits

    from bench.work import Marks, Work, text

MARKS = Marks()


async def instant(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:  # noqa: ARG001 - a FunctionModel's
    MARKS.model_called()
    parts = [part for message in messages for part in message.parts]
    work = Work(**json.loads(next(part.content for part in parts if isinstance(part, UserPromptPart))))
    turn = sum(isinstance(part, ToolReturnPart) for part in parts)
    call = ToolCallPart("bulk", {"turn": turn, "size": work.size})
    return ModelResponse(
        [call if turn < work.steps else TextPart("done")], usage=RequestUsage(input_tokens=20, output_tokens=40)
    )


async def bulk(turn: int, size: int) -> str:
    """Returns noise."""
    MARKS.tool_called()
    return text(turn, size)


agent = Agent(
    FunctionModel(instant),
    name="peer",
    instructions="You are measured.",
    tools=[bulk],
    capabilities=[TemporalDurability()],
)


@workflow.defn
class Peer(PydanticAIWorkflow):
    __pydantic_ai_agents__ = [agent]  # noqa: RUF012 - as the plugin reads it

    @workflow.run
    async def run(self, work: Work) -> str:
        result = await agent.run(json.dumps(asdict(work)), usage_limits=UsageLimits(request_limit=None))
        return result.output


async def connect(address: str) -> Client:
    return await Client.connect(address, plugins=[PydanticAIPlugin()])


def build(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Peer])
