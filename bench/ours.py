"""T(n, s) as an agent run: the product's own worker with a model and a tool that answer at once."""

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from bench.work import Marks, Work, text
from perdure.activities.project import Project
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.tools.interface import CallContext
from perdure.contracts.agent import Agent, ToolSchema
from perdure.contracts.model_settings import ModelOptions
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.run.turn import Usage
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute
from perdure.process.worker import build_worker

BULK = "bulk"
PIECE = 0.1  # seconds between two pieces of a streamed text


class InstantModel:
    """Stateless: what it asks for follows from the goal, which is the work, and from the number of its replies.

    Any other message ends its run at once.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    async def reply(self, call: ModelCall) -> ModelReply:
        self._marks.model_called()
        work, turn = _work(call.messages[0]["content"][0]["text"]), len(call.messages) // 2
        await _think(work, call)
        content: list[dict[str, Any]] = [{"type": "text", "text": "done"}]
        if turn < work.steps:
            content = [_tool_use(turn, BULK, {"turn": turn, "size": work.size})]
        elif turn < work.steps + work.questions:
            content = [_tool_use(turn, "ask_human", {"question": "Go on?"})]
        stop_reason = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
        usage = Usage(input=20, output=40, cache_read=800 * turn)
        return ModelReply(content=content, stop_reason=stop_reason, model="instant", usage=usage)


async def _think(work: Work, call: ModelCall) -> None:
    text, end = "", time.monotonic() + work.thinks
    while time.monotonic() < end:
        await asyncio.sleep(PIECE)
        text += "word "
        if work.streams:
            call.on_text(text)


def _work(goal: str) -> Work:
    return Work(**json.loads(goal)) if goal.startswith("{") else Work(0)


def _tool_use(turn: int, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{turn:06}", "name": tool, "input": arguments}


class BulkTool:
    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self.route = ToolRoute(name=BULK, kind=ToolKind.native, effect=Effect.read, timeout=timedelta(seconds=30))
        number = {"type": "integer"}
        arguments = {"type": "object", "properties": {"turn": number, "size": number}, "required": ["turn", "size"]}
        self.schema = ToolSchema(name=BULK, description="Returns noise.", input_schema=arguments)

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:  # noqa: ARG002 - a Tool
        self._marks.tool_called()
        return ToolOutcome(result=text(arguments["turn"], arguments["size"]))


def project(workspaces: Path, marks: Marks, *, fuses: bool = False) -> Project:
    return Project(
        agents={"default": Agent(name="default", tools=(BULK,))},
        tools={BULK: BulkTool(marks)},
        model="instant",
        options=ModelOptions(max_tokens=1024),
        limits=LimitOverrides(),
        workspaces=workspaces,
        instructions="You are measured.",
        fuse_reads=fuses,
        window=1_000_000_000,  # every call sees the whole conversation
    )


def build(client: Client, queue: str, marks: Marks, workspaces: Path, *, fuses: bool = False) -> Worker:
    parts = project(workspaces, marks, fuses=fuses)
    return build_worker(client, parts, queue, InstantModel(marks))


def start_event(work: Work) -> StartEvent:
    limits = {"max_steps": work.steps + work.questions + 1, "max_turns": work.steps + work.questions + 2}
    goal = json.dumps(vars(work))
    return StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": goal, "limits": limits}})
