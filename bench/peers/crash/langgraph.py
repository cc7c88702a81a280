"""LangGraph with Temporal's plugin for it, as the plugin's samples `react_agent` and `human_in_the_loop` show it.

Each node is an activity with the samples' time-out of 30 s, and no limit of attempts. Approval: a node that interrupts
before a payment; a signal answers it.
"""

import asyncio
import json
import operator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from langchain_core.messages import convert_to_openai_messages
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command, interrupt
    from temporalio.langgraph import LangGraphPlugin, graph

    from bench.crash import tools
    from bench.crash.tools import SETTINGS
    from bench.peers.crash.serving import ONE_ATTEMPT, idempotency_key, serve

OPTIONS = {"execute_in": "activity", "start_to_close_timeout": timedelta(seconds=30)}


class State(TypedDict):
    """`messages` as models take them: each node appends to them."""

    messages: Annotated[list[dict[str, Any]], operator.add]


@tool
async def look_up(bill: str) -> str:
    """Looks a bill up."""
    return await asyncio.to_thread(tools.look_up, bill)


@tool
async def pay(bill: str, cents: int) -> str:
    """Pays a bill."""
    return await asyncio.to_thread(tools.pay, bill, cents, idempotency_key())


@tool
async def mail(bill: str, text: str) -> str:
    """Mails the customer about a bill."""
    return await asyncio.to_thread(tools.mail, bill, text)


TOOLS = {each.name: each for each in (look_up, pay, mail)}


async def call_model(state: State) -> dict[str, Any]:
    model = ChatOpenAI(model="scripted", base_url=f"{SETTINGS.model}/v1", api_key="none")
    reply = await model.bind_tools(list(TOOLS.values())).ainvoke(state["messages"])
    return {"messages": [convert_to_openai_messages(reply)]}


async def review(state: State) -> dict[str, Any]:
    """Asks a person about a payment."""
    if names(state) == ["pay"]:
        interrupt("Is this payment approved?")
    return {"messages": []}


async def call_tools(state: State) -> dict[str, Any]:
    results = []
    for call in state["messages"][-1]["tool_calls"]:
        text = await TOOLS[call["function"]["name"]].ainvoke(json.loads(call["function"]["arguments"]))
        results.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return {"messages": results}


def names(state: State) -> list[str]:
    return [call["function"]["name"] for call in state["messages"][-1].get("tool_calls") or ()]


async def following(state: State) -> str:
    return ("review" if SETTINGS.asks else "tools") if names(state) else END


def agent() -> StateGraph:
    nodes = StateGraph(State)
    nodes.add_node("model", call_model, metadata=OPTIONS)
    nodes.add_node("review", review, metadata=OPTIONS)
    retries = {"retry_policy": ONE_ATTEMPT} if SETTINGS.is_single else {}
    nodes.add_node("tools", call_tools, metadata=OPTIONS | retries)
    nodes.add_edge(START, "model")
    nodes.add_conditional_edges("model", following)
    nodes.add_edge("review", "tools")
    nodes.add_edge("tools", "model")
    return nodes


@workflow.defn
class Shop:
    def __init__(self) -> None:
        self._asks = False
        self._approved = False

    @workflow.query
    def asks(self) -> bool:
        return self._asks

    @workflow.signal
    async def approve(self) -> None:
        self._approved = True

    @workflow.run
    async def run(self, task: str) -> str:
        app = graph("agent").compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": workflow.info().workflow_id}}
        begin = State(messages=[{"role": "user", "content": task}])
        result = await app.ainvoke(begin, config, version="v2")
        while result.interrupts:
            self._asks = True
            await workflow.wait_condition(lambda: self._approved)
            self._asks = False
            result = await app.ainvoke(Command(resume="approve"), config, version="v2")
        return str(result.value["messages"][-1]["content"])


async def work() -> None:
    client = await Client.connect(SETTINGS.address)
    plugin = LangGraphPlugin(graphs={"agent": agent()})
    await serve(Worker(client, task_queue=SETTINGS.queue, workflows=[Shop], plugins=[plugin]))
