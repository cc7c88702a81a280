"""A batched reply that the length limit cuts off: the next batch asks for its rest, and each piece is paid once."""

from typing import Any

import pytest
from pydantic_core import to_json
from temporalio.api.enums.v1 import EventType

from perdure.activities.model.turn import MAX_CONTINUATIONS
from perdure.activities.providers.prices import Price
from perdure.activities.storage.store import Store
from perdure.contracts.failures import Escalation
from perdure.features.batches import activities as batch_activities
from perdure.features.batches.activities import BatchedPieces, save_batched_pieces
from perdure.features.batches.contract import BatchCreation
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import ScriptedAnswer, calls, expires, fails, says
from perdure.testkit.rehearsal.sse import estimate_tokens
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.runs import cancel_run, expect_cancelled, id_of, result_of, trace_events
from tests.workflows.script import message_blocks, texts, tool_results
from tests.workflows.test_batches import QUICK, batching, quick_checks  # noqa: F401 - a fixture
from tests.workflows.test_long_replies import cut_off, writer

PRICE = Price(input=1.0, output=5.0, cache_read=0.1, cache_write=1.25)

pytestmark = pytest.mark.usefixtures("quick_checks")


def paid(it: World) -> list[dict[str, Any]]:
    return [request["params"] for request in it.model.batches.paid]


def is_rest(body: dict[str, Any]) -> bool:
    return "cut off by the length limit" in texts(body)[-1]


async def test_the_pieces_of_a_text_are_one_reply_of_one_turn_at_half_the_price(world: MakeWorld) -> None:
    script = [cut_off("Once upon a ti"), cut_off("me there was a "), says("house.")]

    def answer(body: dict[str, Any]) -> ScriptedAnswer:
        said = str(body["messages"])
        return script[("a ti" in said) + ("there was" in said)]

    async with batching(world, answer, prices={"scripted": PRICE}) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "Once upon a time there was a house."
        state, (_, reply) = await it.state(run), await it.parts(run)
        assert (state["turns"], reply["about"]["pieces"]) == (1, 3)
        assert reply["content"] == [{"type": "text", "text": "Once upon a time there was a house."}]
        used = reply["about"]["usage"]
        assert used["input"] == sum(map(estimate_tokens, paid(it))), "the usage of each call counts"
        assert state["cost_usd"] == pytest.approx((used["input"] + 5 * used["output"]) / 2e6)
        assert (it.model.requests, len(paid(it)), len(it.model.batches.batches)) == ([], 3, 3)
        (line,) = trace_events(it.project.workspaces / id_of(run), "plan")
        assert line["pieces"] == 3
        *_, note = texts(paid(it)[1])
        assert "after 'Once upon a ti'" in note
        await it.pool.result()
        assert await next_sizes(it) == [len(to_json(params)) for params in paid(it)]


async def next_sizes(it: World) -> list[int]:
    """The bytes of each batch's first request, as the pool reckons with them."""
    kind = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    events = [event async for event in it.pool.fetch_history_events() if event.event_type == kind]
    scheduled = [event.activity_task_scheduled_event_attributes for event in events]
    inputs = [each.input.payloads[0].data for each in scheduled if each.activity_type.name == "create_batch"]
    return [BatchCreation.model_validate_json(data).entries[0].request_bytes for data in inputs]


@pytest.mark.parametrize("arguments", [{"content": "a lo"}, {}, '{"content": "a lo'], ids=["some", "none", "text"])
async def test_a_call_that_was_cut_off_is_asked_for_again_and_made_once(world: MakeWorld, arguments: Any) -> None:
    """A batch has the arguments as an object, which does not show that its end is missing."""

    def answer(body: dict[str, Any]) -> ScriptedAnswer:
        if tool_results(body):
            return says("done")
        return calls(("write", {"content": "a"})) if is_rest(body) else cut_off("I write.", ("write", arguments))

    async with batching(world, answer, writer()) as it:
        run = await it.run_to_end()
        assert await it.shown(run) == ["wrote a"]
        again = paid(it)[1]
        assert message_blocks(again, "tool_use") == []
        assert "the arguments of `write`" in texts(again)[-1]
        reply = (await it.parts(run))[1]
        assert [block["type"] for block in reply["content"]] == ["text", "tool_use"]


async def test_a_whole_call_before_the_cut_is_made_and_the_cut_one_fails(world: MakeWorld) -> None:
    first = cut_off("", ("write", {"content": "a"}), ("write", {"content": "b"}))
    async with batching(world, [first, says("done")], writer()) as it:
        made, failed = await it.shown(await it.run_to_end())
        assert made == "wrote a"
        assert failed.startswith("broken_json: the length limit cut off the arguments")
        assert len(paid(it)) == 2


async def test_a_reply_that_stays_cut_off_is_no_outcome(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return says("short") if "Give the whole answer again" in texts(body)[-1] else cut_off("more ")

    async with batching(world, script) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "short"
        assert len(paid(it)) == 1 + MAX_CONTINUATIONS + 1
        assert (await it.parts(run))[1]["content"][0]["text"] == "more " * (1 + MAX_CONTINUATIONS)


async def test_no_rest_is_asked_for_once_the_budget_is_used_up(world: MakeWorld) -> None:
    async with batching(world, lambda _: cut_off("more "), budget_tokens=100) as it:
        event = await result_of(await it.start())
        assert event["payload"]["reason"] == Escalation.token_budget
        assert len(paid(it)) == 1


@pytest.mark.parametrize("failure", [fails(400), fails(400, message="prompt is too long: 9 tokens > 8 maximum")])
async def test_a_refusal_of_the_rest_leaves_the_reply_cut_off(world: MakeWorld, failure: Any) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if "Give the whole answer again" in str(body["messages"]):
            return says("short")
        return failure if is_rest(body) else cut_off("long")

    async with batching(world, script) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "short"
        assert (await it.parts(run))[1]["content"][0]["text"] == "long"


async def test_each_piece_may_be_sent_again_within_the_attempts_of_its_turn(world: MakeWorld) -> None:
    """Two of the turn's six batches bring nothing: that is as many as a turn may have."""

    answers: dict[str, ScriptedAnswer] = {
        "'a'": fails(529, then=cut_off("b")),
        "'ab'": cut_off("c"),
        "'abc'": says("d"),
    }

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        said = texts(body)[-1]
        return next((answer for end, answer in answers.items() if end in said), expires(then=cut_off("a")))

    async with batching(world, script) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "abcd"
        assert (len(it.model.batches.batches), len(paid(it))) == (6, 4)


async def test_a_rest_that_no_batch_brings_leaves_the_reply_cut_off(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if "Give the whole answer again" in str(body["messages"]):
            return says("short")
        return expires() if is_rest(body) else cut_off("long")

    async with batching(world, script) as it:
        run = await it.run_to_end()
        assert (await it.parts(run))[1]["content"][0]["text"] == "long"
        assert len(it.model.batches.batches) == 1 + batch_activities.MAX_ATTEMPTS + 1


async def test_workers_that_stop_between_two_pieces_lose_none(world: MakeWorld) -> None:
    batches = ScriptedBatches(seconds=None)

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return says(" end") if is_rest(body) else cut_off("the")

    async with world(script, works=False, batches=batches, pooling=QUICK) as it:
        async with it.worker():
            run = await it.start()
            await it.until(lambda: len(batches.batches) == 1)
            batches.end_batches()
            await it.until(lambda: len(batches.batches) == 2)
        batches.end_batches()
        async with it.worker(await it.another_client()):
            assert (await result_of(run))["payload"]["outcome"] == "the end"
        assert len(paid(it)) == 2


async def test_a_delivery_that_fails_after_a_piece_was_stored_adds_it_once(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str] = []

    def save_and_fail(store: Store, entry: str, pieces: BatchedPieces) -> None:
        save_batched_pieces(store, entry, pieces)
        stored.append(entry)
        if len(stored) == 1:
            raise RuntimeError("the worker is lost")

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return says(" end") if is_rest(body) else cut_off("the")

    monkeypatch.setattr(batch_activities, "save_batched_pieces", save_and_fail)
    async with batching(world, script) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "the end"
        assert (len(stored), it.model.batches.calls["results"], len(paid(it))) == (1, 3, 2)


async def test_a_disk_that_takes_no_piece_leaves_the_reply_cut_off(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return says("short") if "Give the whole answer again" in texts(body)[-1] else cut_off("long")

    monkeypatch.setattr(batch_activities, "save_batched_pieces", fail)
    async with batching(world, script) as it:
        run = await it.run_to_end()
        assert (await result_of(run))["payload"]["outcome"] == "short"
        assert len(paid(it)) == 2


@pytest.mark.parametrize("answer", [cut_off("the"), expires()], ids=["cut off", "expired"])
async def test_nothing_more_is_sent_for_a_run_that_was_cancelled(world: MakeWorld, answer: ScriptedAnswer) -> None:
    batches = ScriptedBatches(seconds=None)
    async with batching(world, lambda _: answer, batches=batches) as it:
        run = await it.start()
        await it.until(lambda: bool(batches.batches))
        await cancel_run(run, "signal")
        await expect_cancelled(run)
        batches.end_batches()
        await it.pool.result()
        assert batches.calls["create"] == 1
