"""Attacks on a policy, played by a model in real runs: none of them gets a call that the rules do not allow."""

from typing import Any

import pytest
from temporalio.client import Client

from perdure.testkit.model_server import ScriptedAnswer, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.lane import new_id, run_of, say, until_idle
from tests.workflows.runs import failure_of, result_of
from tests.workflows.script import FINISH, BreakingScript, is_summary
from tests.workflows.test_context import SUMMARY, WINDOW
from tests.workflows.test_policy import refund, ruled

AFTER_WEB = "[[rule]]\ntools = ['refund']\nwhen = \"run.has_read.exists(s, s == 'web')\"\nthen = 'deny'"
SMALL_ONLY = """
[[rule]]
tools = ["refund"]
when = "args.cents > 0 && args.cents <= 2000"
then = "allow"
[[rule]]
then = "deny"
reason = "not allowed"
"""
FETCH, PAY = calls(("fetch", {})), calls(("refund", {"cents": 1}))


def page(size: int = 0) -> ScriptedTool:
    return ScriptedTool("fetch", lambda *_: "a page" + " lorem ipsum" * (size // 12))


async def refunded(it: World, run: Run) -> str:
    """The result of the run's only refund, as the model saw it."""
    parts = [part for part in await it.parts(run) if part["kind"] == "result" and part["about"]["tool"] == "refund"]
    (part,) = parts
    return str(part["content"][0]["content"])


async def test_what_was_read_before_a_compaction_still_counts(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return SUMMARY
        turn = next(turns)
        return FETCH if turn == 0 else calls(("look", {"n": turn})) if turn < 16 else PAY if turn == 16 else FINISH

    turns = iter(range(20))
    look = ScriptedTool("look", lambda arguments, _: f"{arguments['n']}:" + "lorem ipsum " * 330)
    async with ruled(world, AFTER_WEB, script, refund(), page(), look, window=WINDOW, max_steps=50) as it:
        run = await it.start()
        await result_of(run)
        assert "summary" in [part["kind"] for part in await it.parts(run)]
        assert (await refunded(it, run)).startswith("denied")


async def test_what_was_read_before_a_rotation_still_counts(world: MakeWorld, short_history_client: Client) -> None:
    script = [FETCH, *(calls(("look", {"n": n})) for n in range(20)), PAY, FINISH]
    tools = (refund(), page(), ScriptedTool("look"))
    async with ruled(world, AFTER_WEB, script, *tools, server=short_history_client, max_steps=40) as it:
        run = await it.start()
        await result_of(run)
        assert len(await it.executions(run)) >= 2
        assert (await refunded(it, run)).startswith("denied")


async def test_what_the_origin_read_still_counts_in_a_resumed_and_in_a_forked_run(world: MakeWorld) -> None:
    script = BreakingScript(FETCH, PAY, FINISH, breaks=1)
    async with ruled(world, AFTER_WEB, script, refund(), page()) as it:
        run = await it.start()
        await failure_of(run)
        script.breaks = None
        for again in (await it.resume(run), await it.fork(run, 1)):
            await result_of(again)
            assert (await refunded(it, again)).startswith("denied")
        other = await it.fork(run, 0)  # before it had read the page; the script begins with it again
        await result_of(other)
        assert (await refunded(it, other)).startswith("denied")


async def test_what_an_earlier_turn_of_the_conversation_read_still_counts(world: MakeWorld) -> None:
    script = [FETCH, says("read"), PAY, says("done")]
    async with ruled(world, AFTER_WEB, script, refund(), page()) as it:
        chat = new_id()
        await say(it, chat, "read the page")
        second = await say(it, chat, "pay")
        await until_idle(it, chat, 2)
        assert (await refunded(it, run_of(it, second))).startswith("denied")


SIMILAR_NAMES = ("Refund", "r\u0435fund", "refund\u200b", "\uff52efund", "refund ", "x__refund", "refu\u0301nd")


async def test_a_tool_by_a_name_that_looks_like_an_allowed_one_is_not_called(world: MakeWorld) -> None:
    money = refund()
    uses = [(name, {"cents": 1}) for name in SIMILAR_NAMES]
    async with ruled(world, SMALL_ONLY, [calls(*uses), FINISH], money, max_steps=50) as it:
        run = await it.start()
        await result_of(run)
        shown = await it.shown(run)
        assert len(shown) == len(uses) + 1
        assert all(text.startswith("unknown_tool") for text in shown[: len(uses)]), shown
        assert money.calls == []


ASKS: dict[str, dict[str, Any]] = {
    "text": {"cents": "1"},
    "operator": {"cents": {"$lte": 1}},
    "boolean": {"cents": True},
    "missing": {"Cents": 1},
    "digits": {"cents": "\uff11"},
    "beyond 64 bits": {"cents": -(2**63) - 1},
    "long list": {"cents": 1, "more": list(range(201))},
    "huge": {"cents": 1, "note": "x" * 300_000},
}


@pytest.mark.parametrize("name", ASKS)
async def test_forged_and_huge_arguments_are_no_way_around_a_rule(world: MakeWorld, name: str) -> None:
    money = refund()
    async with ruled(world, SMALL_ONLY, [calls(("refund", ASKS[name])), FINISH], money) as it:
        run = await it.start()
        await result_of(run)
        # The rule that allows cannot be evaluated; the one after it denies.
        assert (await it.shown(run))[0].startswith("denied: not made: the project's policy denies it")
        assert money.calls == []


@pytest.mark.parametrize(("depth", "says"), [(150, "ok"), (900, "broken_json")])
async def test_arguments_nested_beyond_reading_are_an_error_for_the_model(
    world: MakeWorld, depth: int, says: str
) -> None:
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    money = refund()
    async with ruled(world, SMALL_ONLY, [calls(("refund", {"cents": 1, "more": nested})), FINISH], money) as it:
        run = await it.start()
        await result_of(run)
        assert (await it.shown(run))[0].startswith(says)
        assert len(money.calls) == (says == "ok")
