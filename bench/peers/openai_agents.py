"""T(n, s) with the OpenAI Agents SDK and Temporal's plugin for it; the model is a `Model` of the plugin's test kit.

One default is not kept: a run stops after 10 turns.
"""

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from agents import Agent, ModelResponse, Runner, TResponseInputItem
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

    from bench.work import Marks, Work, text

MARKS = Marks()
TIMEOUT = timedelta(seconds=60)


class Instant(TestModel):
    def __init__(self) -> None:
        """Nothing is scripted: what it asks for follows from the conversation."""

    async def get_response(
        self,
        system_instructions: str | None,  # noqa: ARG002 - a Model's
        input: str | list[TResponseInputItem],  # noqa: A002 - as it is called
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        MARKS.model_called()
        items = [{"content": input}] if isinstance(input, str) else input
        work = Work(**json.loads(items[0]["content"]))
        turn = sum(item.get("type") == "function_call_output" for item in items)
        if turn == work.steps:
            return ResponseBuilders.output_message("done")
        arguments = json.dumps({"turn": turn, "size": work.size})
        return ResponseBuilders.tool_call(arguments, "bulk", call_id=f"call_{turn}")


@activity.defn
async def bulk(turn: int, size: int) -> str:
    """Returns noise."""
    MARKS.tool_called()
    return text(turn, size)


@workflow.defn
class Peer:
    @workflow.run
    async def run(self, work: Work) -> str:
        tool = activity_as_tool(bulk, start_to_close_timeout=TIMEOUT)
        agent = Agent(name="peer", instructions="You are measured.", tools=[tool])
        result = await Runner.run(agent, json.dumps(asdict(work)), max_turns=work.steps + 1)
        return str(result.final_output)


async def connect(address: str) -> Client:
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=TIMEOUT),
        model_provider=TestModelProvider(Instant()),
    )
    return await Client.connect(address, plugins=[plugin])


def build(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Peer], activities=[bulk])
