"""T(n, s) with LangGraph and Temporal's plugin for it: the plugin's sample of a ReAct agent, each node an activity.

As in the sample, a node stands for the model. One default is not kept: the graph's limit of steps.
"""

import operator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from langgraph.graph import END, START, StateGraph
    from temporalio.langgraph import LangGraphPlugin, graph

    from bench.work import Marks, Work, text

MARKS = Marks()
OPTIONS = {"execute_in": "activity", "start_to_close_timeout": timedelta(seconds=60)}


class State(TypedDict):
    """`messages` as models take them: each node appends to them."""

    steps: int
    size: int
    messages: Annotated[list[dict[str, Any]], operator.add]


async def model(state: State) -> dict[str, Any]:
    MARKS.model_called()
    turn = sum(message["role"] == "tool" for message in state["messages"])
    if turn == state["steps"]:
        return {"messages": [{"role": "assistant", "content": "done"}]}
    call = {"id": f"call_{turn}", "name": "bulk", "args": {"turn": turn, "size": state["size"]}}
    return {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}


async def tools(state: State) -> dict[str, Any]:
    MARKS.tool_called()
    (call,) = state["messages"][-1]["tool_calls"]
    return {"messages": [{"role": "tool", "tool_call_id": call["id"], "content": text(**call["args"])}]}


async def following(state: State) -> str:
    return "tools" if "tool_calls" in state["messages"][-1] else END


def agent() -> StateGraph:
    nodes = StateGraph(State)
    nodes.add_node("model", model, metadata=OPTIONS)
    nodes.add_node("tools", tools, metadata=OPTIONS)
    nodes.add_edge(START, "model")
    nodes.add_conditional_edges("model", following)
    nodes.add_edge("tools", "model")
    return nodes


@workflow.defn
class Peer:
    @workflow.run
    async def run(self, work: Work) -> str:
        begin = State(steps=work.steps, size=work.size, messages=[{"role": "user", "content": "Begin."}])
        ended = await graph("agent").compile().ainvoke(begin, {"recursion_limit": 2 * work.steps + 2})
        return ended["messages"][-1]["content"]


async def connect(address: str) -> Client:
    return await Client.connect(address)


def build(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Peer], plugins=[LangGraphPlugin(graphs={"agent": agent()})])
