"""A reply that the length limit cuts off: the pieces become one reply of one turn, and calls are never half made."""

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from perdure.activities.model.turn import MAX_CONTINUATIONS
from perdure.activities.providers.prices import Price
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import Escalation
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, fails, says, slow
from perdure.testkit.rehearsal.sse import estimate_tokens
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import id_of, result_of, trace_events
from tests.workflows.script import message_blocks, texts, tool_results

PRICE = Price(input=1.0, output=5.0, cache_read=0.1, cache_write=1.25)


def cut_off(text: str = "", *uses: tuple[str, Any], **fields: Any) -> Reply:
    return Reply(text=text, calls=uses, stop_reason="max_tokens", **fields)


def writer() -> ScriptedTool:
    return ScriptedTool("write", lambda arguments, _: f"wrote {arguments['content']}")


async def test_the_pieces_of_a_text_are_one_reply_of_one_turn(world: MakeWorld) -> None:
    pieces = iter([cut_off("Once upon a ti"), cut_off("me there was a "), says("house.")])
    async with world(lambda _: next(pieces), prices={"scripted": PRICE}) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "Once upon a time there was a house."
        state, (_, reply) = await it.state(run), await it.parts(run)
        assert (state["turns"], reply["about"]["pieces"]) == (1, 3)
        assert reply["content"] == [{"type": "text", "text": "Once upon a time there was a house."}]
        used = reply["about"]["usage"]
        assert used["input"] == sum(map(estimate_tokens, it.model.requests)), "the usage of each call counts"
        assert state["cost_usd"] == pytest.approx((used["input"] + 5 * used["output"]) / 1e6)
        (line,) = trace_events(it.project.workspaces / id_of(run), "plan")
        assert line["pieces"] == 3
        *_, note = texts(it.model.requests[1])
        assert "after 'Once upon a ti'" in note


async def test_a_call_that_was_cut_off_is_asked_for_again_and_made_once(world: MakeWorld) -> None:
    script = [cut_off("I write.", ("write", '{"content": "a lo')), calls(("write", {"content": "a"})), says("done")]

    def answer(body: dict[str, Any]) -> ScriptedAnswer:
        return script[
            min(len(tool_results(body)) + 1, 2) if "cut off" in str(body["messages"]) or tool_results(body) else 0
        ]

    async with world(answer, writer()) as it:
        run = await it.run_to_end()
        assert await it.shown(run) == ["wrote a"]
        again = it.model.requests[1]
        assert message_blocks(again, "tool_use") == []
        assert "the arguments of `write`" in texts(again)[-1]
        reply = (await it.parts(run))[1]
        assert [block["type"] for block in reply["content"]] == ["text", "tool_use"]


async def test_a_whole_call_before_the_cut_is_made_and_the_cut_one_fails(world: MakeWorld) -> None:
    first = cut_off("", ("write", {"content": "a"}), ("write", '{"content": "b'))
    async with world([first, says("done")], writer()) as it:
        run = await it.run_to_end()
        made, failed = await it.shown(run)
        assert made == "wrote a"
        assert failed.startswith("broken_json: the length limit cut off the arguments")
        assert len(it.model.requests) == 2


async def test_a_reply_that_stays_cut_off_is_no_outcome(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return says("short") if "Give the whole answer again" in texts(body)[-1] else cut_off("more ")

    async with world(script) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "short"
        assert len(it.model.requests) == 1 + MAX_CONTINUATIONS + 1
        assert (await it.parts(run))[1]["content"][0]["text"] == "more " * (1 + MAX_CONTINUATIONS)


async def test_no_rest_is_asked_for_once_the_budget_is_used_up(world: MakeWorld) -> None:
    async with world(lambda _: cut_off("more "), budget_tokens=100) as it:
        event = await result_of(await it.start())
        assert event["payload"]["reason"] == Escalation.token_budget
        assert len(it.model.requests) == 1


async def test_tokens_that_all_went_to_thinking_are_named_to_the_model(world: MakeWorld) -> None:
    thought = {"type": "thinking", "thinking": "hm, hm", "signature": "s"}
    script = [cut_off(blocks=(thought,)), says("so be it")]
    async with world(lambda body: script["All tokens" in str(body["messages"])]) as it:
        run = await it.run_to_end()
        assert texts(it.model.requests[1])[-1].startswith("All tokens of your reply went to thinking")
        assert [part["kind"] for part in await it.parts(run)] == ["goal", "note", "reply"]


@pytest.mark.parametrize("failure", [fails(429, retry_after=0.01), fails(503)])
async def test_a_failure_between_two_pieces_loses_none(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    monkeypatch.setattr("perdure.activities.model.turn.PAUSES", Backoff(0.01, 0.01, retries=5))
    rest = fails(failure.status, retry_after=failure.retry_after, times=2, then=says(" end"))
    async with world([cut_off("the"), rest]) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "the end"
        assert [len(body["messages"]) for body in it.model.requests] == [1, 3, 3, 3]


async def test_a_refusal_of_the_rest_leaves_the_reply_cut_off(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if "Give the whole answer again" in str(body["messages"]):
            return says("short")
        return fails(400) if len(body["messages"]) > 1 else cut_off("long")

    async with world(script) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "short"


async def test_a_worker_that_stops_between_two_pieces_loses_none(world: MakeWorld) -> None:
    waits = [True]

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if len(body["messages"]) == 1:
            return cut_off("the")
        return slow(says(" end"), 60 if waits.pop() else 0) if waits else says(" end")

    async with world(script, works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until(lambda: len(it.model.requests) == 2)
        async with it.worker():
            assert (await result_of(run))["payload"]["outcome"] == "the end"
        assert [len(body["messages"]) for body in it.model.requests] == [1, 3, 3]


async def test_a_turn_that_is_fused_with_its_reads_is_continued_too(world: MakeWorld) -> None:
    replies = iter([calls(("look", {})), cut_off("the"), says(" end")])
    async with world(lambda _: next(replies), ScriptedTool("look", lambda *_: "seen"), fuses=True) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "the end"
        assert (await it.state(run))["turns"] == 2


async def test_a_cancel_between_two_pieces_ends_the_run(world: MakeWorld) -> None:
    async with world([cut_off("the"), slow(says(" end"), 60)]) as it:
        run = await it.start()
        await it.until(lambda: len(it.model.requests) == 2)
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as failure:
            await result_of(run)
        assert isinstance(failure.value.cause, CancelledError)
