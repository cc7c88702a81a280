"""LangGraph with its own checkpointer and no Temporal, as its pages "Persistence" and "Durable execution" show it.

The agent is LangChain's `create_agent`. Started again after a crash, the program invokes the graph with the same
`thread_id` and no input, as the pages say. Approval: the page's middleware for human-in-the-loop.
"""

import asyncio

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import ToolRuntime, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from bench.crash import tools
from bench.crash.tools import SETTINGS, report


@tool
async def look_up(bill: str) -> str:
    """Looks a bill up."""
    return await asyncio.to_thread(tools.look_up, bill)


@tool
async def pay(bill: str, cents: int, runtime: ToolRuntime) -> str:
    """Pays a bill."""
    key = f"{SETTINGS.queue}-{runtime.tool_call_id}" if SETTINGS.is_keyed else None
    return await asyncio.to_thread(tools.pay, bill, cents, key)


@tool
async def mail(bill: str, text: str) -> str:
    """Mails the customer about a bill."""
    return await asyncio.to_thread(tools.mail, bill, text)


async def work() -> None:
    """Runs the thread to its end, or to its question."""
    asking = [HumanInTheLoopMiddleware(interrupt_on={"pay": True})] if SETTINGS.asks else []
    async with AsyncSqliteSaver.from_conn_string(f"{SETTINGS.home}/{SETTINGS.queue}.sqlite") as checkpointer:
        agent = create_agent(
            ChatOpenAI(model="scripted", base_url=f"{SETTINGS.model}/v1", api_key="none"),
            tools=[look_up, pay, mail],
            system_prompt="You pay the bills of a small shop.",
            middleware=asking,
            checkpointer=checkpointer,
        )
        config = {"configurable": {"thread_id": SETTINGS.queue}}
        state = await agent.aget_state(config)
        await asyncio.to_thread(report, ready=True)
        if SETTINGS.is_approved:
            await agent.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
        elif not state.values:
            await agent.ainvoke({"messages": [{"role": "user", "content": SETTINGS.task}]}, config)
        elif not state.interrupts:
            await agent.ainvoke(None, config)
        state = await agent.aget_state(config)
        await asyncio.to_thread(report, asks=bool(state.interrupts), ended=not state.next)
