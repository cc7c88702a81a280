"""Three hundred turns, three compactions, many executions: what turn 2 found is still known at the end (B4)."""

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from perdure.contracts.tool import ToolKind
from perdure.testkit.model_server import ScriptedAnswer, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.conftest import server
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import trace_events
from tests.workflows.script import is_summary, same_prefix, without_cache_marks

TURNS = 300
WINDOW = 18_500  # tokens: a compaction every 90 turns or so
FACT = "FACT-7319-QX"
LONG = 300  # events, after which the server suggests to continue as new
MAX_EVENTS = LONG + 40  # it is looked at between turns, and the last one adds some


def script(body: dict[str, Any]) -> ScriptedAnswer:
    """Reads on from the last result that it is shown; a summary keeps what facts it sees; the end tells them."""
    shown = json.dumps(body["messages"])
    facts = sorted(set(re.findall(r"FACT-[0-9A-Z-]+", shown)))
    if is_summary(body):
        return says(f"Read so far without a finding, except: {', '.join(facts) or 'none'}.")
    number = max((int(n) for n in re.findall(r"result (\d+):", shown)), default=0) + 1
    if number > TURNS:
        return calls(("finish", {"outcome": ", ".join(facts) or "forgotten"}))
    return calls(("read", {"n": number}), text=f"Turn {number}: on with it.")


def reader() -> ScriptedTool:
    def read(arguments: dict[str, Any], _: Any) -> str:
        number = arguments["n"]
        found = f" The code is {FACT}." if number == 2 else ""
        return f"result {number}:{found} " + "lorem ipsum " * 17

    return ScriptedTool("read", read, kind=ToolKind.native)


async def histories(it: World, run: Run) -> list[Any]:
    """Every execution's history, in order."""
    found, execution = [], run.first_execution_run_id
    while execution:
        history = await it.client.get_workflow_handle(run.id, run_id=execution).fetch_history()
        found.append(history)
        last = history.events[-1]
        execution = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


async def test_a_fact_of_turn_two_is_known_after_three_compactions_and_many_executions(
    world: MakeWorld, tmp_path: Path
) -> None:
    tool = reader()
    limits = {"max_steps": TURNS + 10, "max_turns": TURNS + 10, "window": WINDOW}
    environment = await server(**{"limit.historyCount.suggestContinueAsNew": LONG})
    async with environment, world(script, tool, server=environment.client, **limits) as it:
        run = await it.start("find the code", run_id="long")
        event = await asyncio.wait_for(run.result(), 300)
        requests = it.model.requests
        executions = await histories(it, run)
    assert (event["type"], event["payload"]["outcome"]) == ("agent.completed", FACT)
    assert [arguments["n"] for arguments, _ in tool.calls] == list(range(1, TURNS + 1))
    assert len(requests) == TURNS + 1 + 3, "one call for each turn, the last one, and a summary for each compaction"
    assert json.dumps(requests[-1]["messages"]).count(FACT) == 1, "it is known from the summary alone"

    assert len(executions) >= 10
    assert max(len(history.events) for history in executions) <= MAX_EVENTS
    assert max(sum(e.ByteSize() for e in history.events) for history in executions) < 256 * 1024

    pairs = [(a, b) for a, b in pairwise(requests) if not is_summary(a) and not is_summary(b)]
    shares = [same_prefix(a, b) for a, b in pairs]
    assert min(shares) >= 0.95
    for a, b in pairs:  # what differs is the mark for the provider's cache, which moves on
        assert without_cache_marks(b["messages"])[: len(a["messages"])] == without_cache_marks(a["messages"])
        assert (a["tools"], a["system"]) == (b["tools"], b["system"])

    compactions = trace_events(tmp_path / "long", "agent.compaction.run")
    assert trace_events(tmp_path / "long", "agent.recovery.fired") == []
    assert len(compactions) == 3
    for each in compactions:
        assert each["before_tokens"] > 0.7 * WINDOW > 0.2 * WINDOW > each["after_tokens"]
        assert each["before_messages"] > 150
        assert each["after_messages"] <= 16
