"""What the model's provider gets wrong: waited out, reported, or the end of the run with a name for it."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from perdure.contracts.bounds import Backoff
from perdure.testkit import model_server
from perdure.testkit.model_server import broken_json, calls, cut, fails, says, slow
from perdure.testkit.rehearsal.sse import encode_event, encode_stream
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import KEY, MakeWorld
from tests.workflows.runs import failure_of
from tests.workflows.script import FINISH, tool_results

LONG = says("word " * 400)  # some eighty events


async def test_a_reply_that_keeps_coming_is_read_whole_and_asked_for_once(world: MakeWorld) -> None:
    async with world([slow(LONG, 4)], works=False, turn_timeout="1s") as it, it.worker():
        event = await (await it.start()).result()
    assert event["payload"]["outcome"] == LONG.text.strip()
    assert len(it.model.requests) == 1


async def test_a_stall_is_tried_again(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.activities.model.turn.PAUSES", Backoff(0.01, 0.01, retries=5))
    answers = iter([slow(LONG, 600), FINISH])
    async with world(lambda _: next(answers), works=False, turn_timeout="1s") as it, it.worker():
        assert (await (await it.start()).result())["type"] == "agent.completed"
    assert len(it.model.requests) == 2


async def test_a_reply_without_end_fails_the_run_and_is_not_paid_again(world: MakeWorld) -> None:
    async with world([slow(LONG, 60)], works=False, turn_timeout="1s", turn_limit="2s") as it, it.worker():
        failure = await failure_of(await it.start())
    assert (failure.type, len(it.model.requests)) == ("TurnLimit", 1)
    assert "still coming after 2 s" in failure.message


async def test_failed_attempts_count_against_the_turn(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.activities.model.turn.PAUSES", Backoff(0.01, 0.01, retries=5))
    async with world([slow(LONG, 600)], works=False, turn_timeout="2s", turn_limit="5s") as it, it.worker():
        failure = await failure_of(await it.start())
    assert failure.type == "TurnLimit"
    assert 1 < len(it.model.requests) <= 3  # of six: each takes two seconds or more


async def test_a_rate_limit_is_waited_out_for_as_long_as_the_provider_asks(world: MakeWorld) -> None:
    async with world([fails(429, retry_after=1.6, then=FINISH)]) as it:
        began = monotonic()
        assert (await (await it.start()).result())["type"] == "agent.completed"
        assert monotonic() - began >= 1.6
        assert len(it.model.requests) == 2


async def test_a_wait_without_end_is_not_honoured_beyond_a_minute(world: MakeWorld) -> None:
    async with world([fails(429, retry_after=86_400)]) as it:
        run = await it.start()
        plan = await it.until_activity(run, lambda each: each.attempt == 2)
        assert plan.current_retry_interval.ToSeconds() <= 66
        await run.cancel()


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_ends_the_run_at_once_and_never_shows_the_key(
    world: MakeWorld, status: int, caplog: pytest.LogCaptureFixture
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
async def test_an_overloaded_provider_is_asked_again(world: MakeWorld, status: int) -> None:
    async with world([fails(status, then=FINISH)]) as it:
        assert (await (await it.start()).result())["type"] == "agent.completed"
        assert len(it.model.requests) == 2


@pytest.mark.parametrize("error", [None, "overloaded_error"])
async def test_a_stream_that_is_cut_is_asked_for_again_and_leaves_nothing_behind(
    world: MakeWorld, error: str | None
) -> None:
    answers = iter([cut(says("half of an"), error=error), FINISH])
    async with world(lambda _: next(answers)) as it:
        run = await it.start()
        assert (await run.result())["type"] == "agent.completed"
        assert (await it.state(run))["turns"] == 1
    first, second = it.model.requests
    assert first["messages"] == second["messages"]


@pytest.mark.parametrize("leaves_out", ["message_start", "message_delta", "content_block_start"])
async def test_a_reply_without_usage_is_whole_and_one_without_a_block_is_retried(
    world: MakeWorld, leaves_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `usage` a reply is whole; without a block it is not, and the next try may be."""
    replies = [0]

    def odd(message: Any, _: Any) -> Iterator[bytes]:
        replies[0] += 1
        for event in encode_stream(message):
            data = json.loads(event.split(b"data: ")[1])
            data.pop("usage", None)
            data.get("message", {}).pop("usage", None)
            if replies[0] > 1 or leaves_out == "message_delta" or data["type"] != leaves_out:
                yield encode_event(data)

    monkeypatch.setattr("perdure.activities.model.turn.PAUSES", Backoff(0.01, 0.01, retries=5))
    monkeypatch.setattr(model_server, "MESSAGES", replace(model_server.MESSAGES, stream=odd))
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
async def test_broken_arguments_go_back_to_the_model_and_the_run_goes_on(world: MakeWorld, raw: str) -> None:
    look = ScriptedTool("look")
    async with world([broken_json("look", raw), calls(("look", {"n": 1})), FINISH], look) as it:
        run = await it.start()
        event = await run.result()
        assert (await it.results(run))[0][1].startswith("broken_json: ")
    assert (event["type"], event["payload"]["steps_taken"]) == ("agent.completed", 1)
    assert [arguments for arguments, _ in look.calls] == [{"n": 1}]


async def test_after_an_empty_reply_the_model_is_asked_again_with_the_reason(world: MakeWorld) -> None:
    answers = iter([says(""), FINISH])
    async with world(lambda _: next(answers)) as it:
        assert (await (await it.start()).result())["type"] == "agent.completed"
    assert it.model.requests[1]["messages"][-1]["content"][-1]["text"].startswith("Your reply was empty")


async def test_a_failed_run_hands_over_to_a_person(world: MakeWorld, tmp_path: Path) -> None:
    async with world([calls(("look", {}), text="Frame: see it"), fails(401)], ScriptedTool("look")) as it:
        cause = await failure_of(await it.start(run_id="handed"))
    assert "Objective: see it" in cause.details[0]["handoff"]
    assert "see it" in (tmp_path / "handed" / "memory.md").read_text()


@pytest.mark.parametrize("size", [20_000, 120_000])
async def test_a_reply_of_any_size_never_stops_a_run(
    world: MakeWorld, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client takes long to read a large stream, so the bound is a tenth of what it is."""
    monkeypatch.setattr("perdure.activities.providers.replies.reply.MAX_REPLY_BYTES", 100_000)
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
        results = tool_results(it.model.requests[-1])
    fits = size < 100_000
    assert [text.startswith("broken_json") for text in results] == [not fits, False, not fits, False]
    assert len(look.calls) == (4 if fits else 2)
