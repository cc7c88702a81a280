"""What the model's provider gets wrong: waited out, told, or the end of the run with a name for it."""

import asyncio
import json
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.demo.sse import encode_event, encode_stream
from perdure.testkit import model_server
from perdure.testkit.model_server import broken_json, calls, cut, fails, says, slow
from perdure.testkit.tools import ScriptedTool

FINISH = calls(("finish", {"outcome": "done"}))
KEY = "sk-canary-7f3a"  # the key that the world's client sends


async def failure_of(run: Any) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as failure:
        await run.result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


LONG = says("word " * 400)  # some eighty events


async def test_a_reply_that_keeps_coming_is_read_whole_and_asked_for_once(world: Any) -> None:
    async with world([slow(LONG, 4)], works=False, turn_timeout="1s") as it, it.worker():
        event = await (await it.start()).result()
    assert event["payload"]["outcome"] == LONG.text.strip()
    assert len(it.model.requests) == 1


async def test_a_stall_is_tried_again(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.model.turn.PAUSES", (0.01,) * 5)
    answers = iter([slow(LONG, 600), FINISH])
    async with world(lambda _: next(answers), works=False, turn_timeout="1s") as it, it.worker():
        assert (await (await it.start()).result())["type"] == "agent.completed"
    assert len(it.model.requests) == 2


async def test_a_reply_without_end_fails_the_run_and_is_not_paid_again(world: Any) -> None:
    async with world([slow(LONG, 60)], works=False, turn_timeout="1s", turn_limit="2s") as it, it.worker():
        failure = await failure_of(await it.start())
    assert (failure.type, len(it.model.requests)) == ("TurnLimit", 1)
    assert "still coming after 2 s" in failure.message


async def test_failed_attempts_count_against_the_turn(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.model.turn.PAUSES", (0.01,) * 5)
    answers = iter([slow(LONG, 600), slow(LONG, 600), slow(LONG, 60)])
    async with world(lambda _: next(answers), works=False, turn_timeout="2s", turn_limit="5s") as it, it.worker():
        began = monotonic()
        failure = await failure_of(await it.start())
        assert monotonic() - began < 9
    assert (failure.type, len(it.model.requests)) == ("TurnLimit", 3)


async def test_a_rate_limit_is_waited_out_for_as_long_as_the_provider_asks(world: Any) -> None:
    async with world([fails(429, retry_after=1.6, then=FINISH)]) as it:
        began = monotonic()
        assert (await (await it.start()).result())["type"] == "agent.completed"
        assert monotonic() - began >= 1.6
        assert len(it.model.requests) == 2


async def test_a_wait_without_end_is_not_honoured_beyond_a_minute(world: Any) -> None:
    async with world([fails(429, retry_after=86_400)]) as it:
        run = await it.start()

        async def waits() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            return bool(pending) and pending[0].attempt == 2

        await it.until(waits)
        (plan,) = (await run.describe()).raw_description.pending_activities
        assert plan.current_retry_interval.ToSeconds() <= 66
        await run.cancel()


async def test_a_rate_limit_without_end_fails_the_run_by_its_name(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.model.turn.PAUSES", (0.01,) * 5)
    async with world([fails(429, retry_after=0.01)]) as it:
        run = await it.start()
        assert (await failure_of(run)).type == "RateLimited"
        assert (await it.state(run))["status"] == "failed"
        assert len(it.model.requests) == 6


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_ends_the_run_at_once_and_never_shows_the_key(
    world: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with world([fails(status, message=f"invalid x-api-key: {KEY}")]) as it:
        run = await it.start()
        cause = await failure_of(run)
        assert len(it.model.requests) == 1
        assert (await it.state(run))["status"] == "failed"
        assert KEY.encode() not in await it.raw_history(run)
    assert cause.type == "ModelRefused"
    assert f"({status})" in cause.message
    assert KEY not in caplog.text


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
async def test_an_overloaded_provider_is_asked_again(world: Any, status: int) -> None:
    async with world([fails(status, then=FINISH)]) as it:
        assert (await (await it.start()).result())["type"] == "agent.completed"
        assert len(it.model.requests) == 2


@pytest.mark.parametrize("error", [None, "overloaded_error"])
async def test_a_stream_that_is_cut_is_asked_for_again_and_leaves_nothing_behind(world: Any, error: str | None) -> None:
    asked: list[Any] = []

    def script(body: Any) -> Any:
        asked.append(body)
        return cut(says("half of an"), error=error) if len(asked) == 1 else FINISH

    async with world(script) as it:
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
        assert (await it.state(run))["turns"] == 1
    assert asked[0]["messages"] == asked[1]["messages"]


@pytest.mark.parametrize("leaves_out", ["message_start", "message_delta", "content_block_start"])
async def test_a_server_that_only_resembles_the_api_is_put_up_with_or_asked_again(
    world: Any, leaves_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `usage` a reply is whole; without a block it is not, and the next try may be."""
    replies = [0]

    def odd(message: Any, piece: int = 24) -> Iterator[bytes]:
        replies[0] += 1
        for event in encode_stream(message, piece):
            data = json.loads(event.split(b"data: ")[1])
            data.pop("usage", None)
            data.get("message", {}).pop("usage", None)
            if replies[0] > 1 or leaves_out == "message_delta" or data["type"] != leaves_out:
                yield encode_event(data)

    monkeypatch.setattr("activities.model.turn.PAUSES", (0.01,) * 5)
    monkeypatch.setattr(model_server, "encode_stream", odd)
    async with world(lambda _: FINISH) as it:
        assert (await (await it.start()).result())["type"] == "agent.completed"
        assert len(it.model.requests) == (2 if leaves_out == "content_block_start" else 1)


@pytest.mark.parametrize(
    "raw",
    [
        '{"path": "a.md", "content": "cut off in',
        '{"n": NaN}',
        '{"n": 1e999}',
        '"text"',
        "[1]",
        '{"n": 1, "n": 2}',
        "[" * 9999,
    ],
)
async def test_broken_arguments_go_back_to_the_model_and_the_run_goes_on(world: Any, raw: str) -> None:
    look = ScriptedTool("look")
    async with world([broken_json("look", raw), calls(("look", {"n": 1})), FINISH], look) as it:
        run = await it.start()
        event = await run.result()
        assert (await it.results(run))[0][1].startswith("broken_json: ")
    assert (event["type"], event["payload"]["steps_taken"]) == ("agent.completed", 1)
    assert [arguments for arguments, _ in look.calls] == [{"n": 1}]


@pytest.mark.parametrize(
    "reply", [says(""), says("", stop_reason="max_tokens"), says("half", stop_reason="max_tokens")]
)
async def test_replies_that_nothing_can_be_done_with_end_the_run_after_three(world: Any, reply: Any) -> None:
    async with world(lambda _: reply) as it:
        run = await it.start()
        cause = await failure_of(run)
        assert len(it.model.requests) == 3
    assert cause.type == "ModelUnusable"


async def test_an_empty_reply_is_told_to_the_model_which_may_do_better(world: Any) -> None:
    asked: list[Any] = []

    def script(body: Any) -> Any:
        asked.append(body)
        return says("") if len(asked) == 1 else FINISH

    async with world(script) as it:
        assert (await (await it.start()).result())["type"] == "agent.completed"
    assert asked[1]["messages"][-1]["content"][-1]["text"].startswith("Your reply was empty")


async def test_a_refusing_model_escalates(world: Any) -> None:
    async with world([says("I will not do this.", stop_reason="refusal")]) as it:
        event = await (await it.start()).result()
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "model_declined")


async def test_a_failed_run_hands_over_to_a_person(world: Any, tmp_path: Any) -> None:
    async with world([calls(("look", {}), text="Frame: see it"), fails(401)], ScriptedTool("look")) as it:
        cause = await failure_of(await it.start(run_id="handed"))
    assert "Objective: see it" in cause.details[0]["handoff"]
    assert "see it" in (tmp_path / "handed" / "memory.md").read_text()


async def test_of_two_calls_with_one_id_in_a_reply_the_first_is_made_and_both_are_answered(world: Any) -> None:
    look = ScriptedTool("look", lambda arguments, _: f"result {arguments['n']}")
    original = model_server._message

    def alike(reply: Any, body: Any, turn: int) -> Any:
        message = original(reply, body, turn)
        for block in message["content"]:
            block["id"] = "call"
        return message

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_server, "_message", alike)
        async with world([calls(("look", {"n": 0}), ("look", {"n": 1})), says("done")], look) as it:
            run = await it.start()
            await run.result()
            first, second = [text for _, text in await it.results(run)]
            assert first == "result 0"
            assert second.startswith("invalid_arguments: not made: it has the id of another call")


@pytest.mark.parametrize("size", [20_000, 120_000])
async def test_a_reply_of_any_size_never_stops_a_run(world: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes long to read a large stream, so the bound is a tenth of what it is."""
    monkeypatch.setattr("activities.model.anthropic.MAX_REPLY_BYTES", 100_000)
    long, quote = "x" * size, '"' * size  # a quotation mark takes two bytes of JSON
    replies = [
        calls(("look", {"text": long})),
        calls(("look", {"n": 1}), ("look", {"text": long}), ("look", {"n": 2})),
        calls(("finish", {"outcome": "done"}), text=quote),
    ]
    look = ScriptedTool("look")
    async with world(replies, look) as it:
        run = await it.start()
        assert (await asyncio.wait_for(run.result(), 30))["type"] == "agent.completed"
        assert await it.failed_tasks(run) == 0
        blocks = [block for message in it.model.requests[-1]["messages"] for block in message["content"]]
    results = [block["content"] for block in blocks if block["type"] == "tool_result"]
    fits = size < 100_000
    assert [text.startswith("broken_json") for text in results] == [not fits, False, not fits, False]
    assert len(look.calls) == (4 if fits else 2)
