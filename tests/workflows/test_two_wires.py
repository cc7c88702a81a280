"""Whole runs over the Chat Completions API, and runs whose models speak two APIs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI

from perdure.activities.providers.fallback import FallbackModel, Provider
from perdure.activities.providers.openai import ChatModel
from perdure.activities.providers.rate_limit import RateLimiter
from perdure.contracts.bounds import Backoff
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.process.models import create_http_client
from perdure.testkit import model_server
from perdure.testkit.model_server import Script, ScriptedAnswer, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.shared_model import SharedModel
from tests.workflows.conftest import KEY, MakeWorld, World
from tests.workflows.runs import failure_of
from tests.workflows.script import FINISH, forced_tool, message_blocks, tool_results

LOOK = calls(("look", {}), text="Plan: look.")


def fail_to_look(arguments: dict[str, Any], _: Any) -> ToolOutcome | str:
    return error_outcome("missing", "no such page") if arguments else "ok"


@asynccontextmanager
async def on_chat(world: MakeWorld, script: Script, *tools: ScriptedTool, **options: Any) -> AsyncIterator[World]:
    """A world whose model is asked by the Chat Completions API."""
    async with world(script, *tools, works=False, **options) as it:
        async with AsyncOpenAI(
            api_key=KEY, base_url=f"{it.model.base_url}/v1", max_retries=0, http_client=create_http_client()
        ) as client:
            it.within = lambda _: ChatModel(client)
            async with it.worker():
                yield it
        await it.replay()


async def test_a_run_over_chat_completions_calls_its_tools_and_ends(world: MakeWorld) -> None:
    script = [calls(("look", {}), ("look", {"at": "ü"}), text="Plan: look twice."), FINISH]
    async with on_chat(world, script, ScriptedTool("look", fail_to_look)) as it:
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
        state = await it.state(run)
    assert (state["turns"], state["model"]) == (2, "scripted")
    assert state["usage"]["input"] > 0
    results = message_blocks(it.model.requests[1], "tool_result")
    assert [(result["content"], result.get("is_error", False)) for result in results] == [
        ("ok", False),
        ("missing: no such page", True),
    ]
    assert [block["input"] for block in message_blocks(it.model.requests[1], "tool_use")] == [{}, {"at": "ü"}]


async def test_a_tool_can_be_forced_over_chat_completions(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if forced_tool(body) == "reframe":
            return calls(("reframe", {"frame": "another way"}))
        is_reframed = any(block["name"] == "reframe" for block in message_blocks(body, "tool_use"))
        return FINISH if is_reframed else LOOK

    async with on_chat(world, script, ScriptedTool("look")) as it:
        assert (await (await it.start()).result())["type"] == "agent.completed"
    assert [choice for choice in map(forced_tool, it.model.requests) if choice] == ["reframe"]


async def test_a_refusal_over_chat_completions_fails_the_run(world: MakeWorld) -> None:
    async with on_chat(world, [fails(401, message=f"bad key {KEY}")]) as it:
        failure = await failure_of(await it.start())
    assert failure.type == "ModelRefused"
    assert KEY not in failure.message


def with_thinking(reply: Any, body: Any, turn: int, build: Any = model_server._message) -> Any:
    """A reply that begins with thinking: signed over the Messages API, reasoning over the other."""
    message = build(reply, body, turn)
    thinking = {"type": "thinking", "thinking": f"thought {turn}", "signature": "s"}
    return {**message, "content": [thinking, *message["content"]]}


async def test_a_conversation_goes_from_one_api_to_the_other_and_back(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_server, "_message", with_thinking)
    monkeypatch.setattr("perdure.activities.providers.fallback.RESTS", Backoff(0, 0))
    chat_script: list[ScriptedAnswer] = [LOOK, fails(500), LOOK, fails(500)]
    async with world([fails(529), LOOK, fails(529), FINISH], ScriptedTool("look"), works=False) as it:
        with SharedModel(chat_script) as chat:
            async with AsyncOpenAI(
                api_key=KEY, base_url=f"{chat.base_url}/v1", max_retries=0, http_client=create_http_client()
            ) as client:
                near = Provider(ChatModel(client), RateLimiter("near"))
                it.within = lambda model: FallbackModel(
                    {"anthropic": Provider(model, RateLimiter("anthropic")), "near": near}
                )
                it.project = replace(it.project, fallbacks=("near:small",), providers=("near",))
                async with it.worker():
                    run = await it.start()
                    assert (await run.result())["type"] == "agent.completed"
                await it.replay()
    assert [block["thinking"] for block in message_blocks(it.model.requests[-1], "thinking")] == ["thought 1"]
    assert (len(it.model.requests), len(chat.requests)) == (4, 2)
    assert message_blocks(chat.requests[-1], "thinking") == []
    for body in (it.model.requests[-1], chat.requests[-1]):
        uses = [block["id"] for block in message_blocks(body, "tool_use")]
        assert [block["tool_use_id"] for block in message_blocks(body, "tool_result")] == uses
        assert tool_results(body) == ["ok {}"] * len(uses)
    assert len(uses) == 2


async def test_text_alone_ends_a_run_over_chat_completions(world: MakeWorld) -> None:
    async with on_chat(world, [says("It is done.")]) as it:
        result = await (await it.start()).result()
    assert result["payload"]["outcome"] == "It is done."
