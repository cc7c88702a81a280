"""A run that goes in circles is nudged, then directed, then brought before a person (B3, B13)."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Effect, error_outcome
from perdure.testkit.model_server import ScriptedAnswer, broken_json, calls, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import trace_events
from tests.workflows.script import FINISH, count_replies, forced_tool

SAME = calls(("search", {"q": "x"}))


def obedient(body: dict[str, Any]) -> ScriptedAnswer:
    """Searches the same for ever, except where a tool is forced."""
    forced = forced_tool(body)
    if forced == "reframe":
        return calls(("reframe", {"frame": "another way"}))
    if forced == "ask_human":
        return calls(("ask_human", {"question": "I searched x. Where else?"}))
    return FINISH if "look in the attic" in json.dumps(body["messages"][-1]) else SAME


def search() -> ScriptedTool:
    return ScriptedTool("search", lambda *_: "no results")


async def test_the_ladder_ends_with_a_question_to_a_person(world: MakeWorld, tmp_path: Path) -> None:
    async with world(obedient, search()) as it:
        run = await it.start(run_id=it.queue)
        state = await it.until_state(run, question=True)
        assert (state["question"]["kind"], state["question"]["options"]) == ("thrash", ["continue", "stop"])
        assert "`search` was called" in state["question"]["text"]
        assert "I searched x. Where else?" in state["question"]["text"]
        await run.execute_update("answer", {"text": "look in the attic"})
        assert (await run.result())["payload"]["outcome"] == "done"
        requests = it.model.requests
        parts = await it.parts(run)
    notes = [part["content"][0]["text"] for part in parts if part["kind"] == "note"]
    assert [choice for choice in map(forced_tool, requests) if choice] == ["reframe", "ask_human"]
    assert ["Try a different approach" in notes[0], "call `reframe` now" in notes[1]] == [True, True]
    detected = trace_events(tmp_path / it.queue, "agent.loop.detected")
    assert [(e["tier"], e["tool"], e["level"], e["advanced"]) for e in detected] == [
        ("identical", "search", 1, True),
        ("identical", "search", 2, True),
        ("identical", "search", 3, True),
    ]
    climbed = trace_events(tmp_path / it.queue, "agent.guardrail.escalated")
    assert [(e["ladder"], e["rung"], e["stage"]) for e in climbed] == [
        ("thrash", 1, "nudge"),
        ("thrash", 2, "directive"),
        ("thrash", 3, "ask"),
    ]


async def test_where_a_provider_forces_nothing_the_runtime_asks(world: MakeWorld) -> None:
    """Neither with an error for `tool_choice`, nor by following it."""

    def stubborn(body: dict[str, Any]) -> ScriptedAnswer:
        if "tool_choice" in body:
            return fails(400, message="tool_choice is not supported")
        return FINISH if "continue on" in json.dumps(body["messages"][-1]) else SAME

    async with world(stubborn, search()) as it:
        run = await it.start()
        state = await it.until_state(run, question=True)
        assert state["question"]["kind"] == "thrash"
        await run.execute_update("answer", {"decision": "continue", "text": "continue on"})
        assert (await run.result())["type"] == "agent.completed"
        assert ("toolu_5_0", "interrupted: not made: a person is asked first") in await it.results(run)


async def test_the_directive_s_tool_is_configurable(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return FINISH if forced_tool(body) == "peek" else SAME

    async with world(script, search(), ScriptedTool("peek"), directive_tool="peek") as it:
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"


async def test_one_shell_tool_is_no_circle(world: MakeWorld, tmp_path: Path) -> None:
    tool = ScriptedTool("shell", lambda arguments, _: f"out {arguments['n']}", effect=Effect.once)
    script = [*(calls(("shell", {"n": n})) for n in range(12)), FINISH]
    async with world(script, tool) as it:
        run = await it.run_to_end(run_id=it.queue)
        assert [forced_tool(body) for body in it.model.requests] == [None] * 13
        assert not [part for part in await it.parts(run) if part["kind"] == "note"]
    (detected,) = trace_events(tmp_path / it.queue, "agent.loop.detected")
    assert (detected["tier"], detected["advanced"]) == ("pattern", False), "reported once, when it began"


async def test_calls_that_were_refused_are_circles_too(world: MakeWorld) -> None:
    broken = ScriptedTool("search", lambda *_: error_outcome(ToolFault.tool_error, "down"))

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        forced = forced_tool(body)
        if forced == "ask_human":
            return says("I give up: the tool is down.")
        turn = count_replies(body)
        return calls(("search", {"q": turn})) if turn % 2 else calls(("serach", {"q": turn}))

    async with world(script, broken) as it:
        run = await it.start()
        assert (await run.result())["payload"]["outcome"] == "I give up: the tool is down."


@pytest.mark.parametrize(
    ("asks", "limits"),
    [
        (calls(("ask_human", {})), {}),
        (broken_json("ask_human"), {}),
        (calls(("ask_human", {"question": "Where?"})), {"max_steps": 5}),
        (calls(("ask_human", {"question": "Where?"}), ("search", {"q": "y"})), {"max_steps": 5}),
    ],
    ids=["without a question", "in broken JSON", "after the last step", "beside one step too many"],
)
async def test_the_person_is_asked_however_the_model_does_it(
    world: MakeWorld, asks: ScriptedAnswer, limits: dict[str, int]
) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return asks if forced_tool(body) == "ask_human" else obedient(body)

    async with world(script, search(), max_turns=12, **limits) as it:
        run = await it.start()
        state = await it.until_state(run, question=True)
        assert state["question"]["kind"] == "thrash"
        await run.execute_update("answer", {"text": "look in the attic"})
        assert (await run.result())["payload"]["outcome"] == "done"
