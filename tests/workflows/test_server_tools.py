"""Tools that the provider runs: their blocks pass through a run unchanged, and are no calls of the run."""

from typing import Any

import pytest

from perdure.activities.providers.prices import Price
from perdure.contracts.agent import Agent
from perdure.testkit.model_server import Reply, ScriptedAnswer, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import id_of, printed_run, result_of, trace_events
from tests.workflows.script import FINISH, count_replies, is_summary, message_blocks

TOOL = {"name": "web_search", "type": "web_search_20250305", "max_uses": 3}
SEARCHER = Agent(name="searcher", tools=(), server_tools=(TOOL,))
USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "durable agents"}}
PAGE = {"type": "web_search_result", "url": "https://a.example/x", "title": "X", "encrypted_content": "RW5j" * 40}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [PAGE]}
CITATION = {
    "type": "web_search_result_location",
    "url": "https://a.example/x",
    "title": "X",
    "encrypted_index": "Eo8B",
    "cited_text": "they last",
}
CITED = {"type": "text", "text": "they last", "citations": [CITATION]}
SEARCHES = {"server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0}}


def searched(text: str = "", *uses: tuple[str, Any], stop_reason: str | None = None) -> Reply:
    blocks = (USE, FOUND, {"type": "text", "text": "Sources say "}, CITED)
    return Reply(text=text, calls=uses, blocks=blocks, usage=SEARCHES, stop_reason=stop_reason)


async def test_blocks_of_the_provider_pass_through_unchanged(world: MakeWorld) -> None:
    look = ScriptedTool("look", lambda *_: "seen")
    agent = SEARCHER.evolve(tools=("look",))
    script = [searched(".", ("look", {})), says("Done.")]
    async with world(script, look, agents=[agent], prices={"scripted": Price(0, 0, 0, 0)}) as it:
        run = await it.run_to_end(agent="searcher")
        first, second = it.model.requests
        assert first["tools"][-1] == TOOL
        assert second["messages"][1]["content"][:4] == [USE, FOUND, {"type": "text", "text": "Sources say "}, CITED]
        state = await it.state(run)
        assert (state["step"], state["turns"], await it.shown(run)) == (1, 2, ["seen"])
        assert (state["usage"]["searches"], state["cost_usd"]) == (2, 0.02)
        assert "2 web searches" in await printed_run(it, run)
        (line,) = trace_events(it.project.workspaces / id_of(run), "plan")
        assert line["server_tools"] == ["web_search durable agents"]
        assert line["cites"] == ["https://a.example/x"]


async def test_an_outcome_with_citations_is_one_text(world: MakeWorld) -> None:
    async with world([searched(", and run on.")], agents=[SEARCHER]) as it:
        run = await it.run_to_end(agent="searcher")
        assert (await result_of(run))["payload"]["outcome"] == "Sources say they last, and run on."


async def test_a_pause_is_continued_from_the_same_blocks_and_takes_no_step(world: MakeWorld) -> None:
    script: list[ScriptedAnswer] = [Reply(blocks=(USE,), stop_reason="pause_turn"), Reply("Done.", blocks=(FOUND,))]
    async with world(script, agents=[SEARCHER]) as it:
        run = await it.run_to_end(agent="searcher")
        assert message_blocks(it.model.requests[1], "server_tool_use")[0]["id"] == USE["id"]
        assert (await it.state(run))["step"] == 0
        assert [part["kind"] for part in await it.parts(run)] == ["goal", "reply", "reply"]


@pytest.mark.parametrize("cut", ["max_tokens", "end_turn"])
async def test_a_search_without_its_result_is_not_sent_once_the_user_speaks(world: MakeWorld, cut: str) -> None:
    replies = [
        Reply(blocks=({"type": "text", "text": "I search."}, USE), calls=(("look", {}),), stop_reason=cut),
        FINISH,
    ]
    look = ScriptedTool("look", lambda *_: "seen")
    agent = SEARCHER.evolve(tools=("look",))
    async with world(replies, look, agents=[agent]) as it:
        await it.run_to_end(agent="searcher")
        kinds = [block["type"] for block in it.model.requests[1]["messages"][1]["content"]]
        # The last call of a reply that was cut off is not made, and the rest of the reply is asked for.
        assert kinds == (["text"] if cut == "max_tokens" else ["text", "tool_use"])


async def test_a_compaction_keeps_a_search_and_its_result_together(world: MakeWorld) -> None:
    """The pages fill the window again and again; each request that is sent is one that the API takes."""
    page = {**PAGE, "encrypted_content": "RW5j" * 1500}
    found = {**FOUND, "content": [page]}

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        uses = message_blocks(body, "server_tool_use")
        results = message_blocks(body, "web_search_tool_result")
        assert [use["id"] for use in uses] == [result["tool_use_id"] for result in results]
        if is_summary(body):
            summaries.append(body)
            return says("So far.")
        if len(summaries) > 1:
            return FINISH
        return Reply(blocks=(USE, found), calls=(("look", {"n": count_replies(body)}),))

    summaries: list[Any] = []
    look = ScriptedTool("look", lambda arguments, _: f"seen {arguments}")
    agent = SEARCHER.evolve(tools=("look",))
    async with world(script, look, agents=[agent], window=30_000, max_steps=60) as it:
        await it.run_to_end(agent="searcher")
        assert "durable agents" in str(summaries[0])
