"""Streams as servers of both APIs send them: their ends, errors, forms of text, and bounds."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.openai import ChatModel
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.replies import stream
from perdure.activities.providers.replies.reply import MAX_REPLY_BYTES
from perdure.contracts.agent import Definition

DEFINITION = Definition(agent="a", model="m", system="You are tested.", tools=())
GOAL = [{"role": "user", "content": [{"type": "text", "text": "see"}]}]
WIRES = ("chat", "messages")
HALF = "half of the answ"


async def read(wire: str, *data: Any, is_whole: bool = False, **fields: Any) -> ModelReply:
    """Return the reply to a call that is answered with these data lines, or with one JSON document."""

    async def lines() -> AsyncIterator[bytes]:
        for line in data:
            text = line if isinstance(line, str) else json.dumps(line)
            yield text.encode() if is_whole else f"data: {text}\n\n".encode()

    def answer(_: httpx2.Request) -> httpx2.Response:
        kind = "application/json" if is_whole else "text/event-stream"
        return httpx2.Response(200, headers={"content-type": kind}, content=lines())

    call = ModelCall(DEFINITION, GOAL, **fields)
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    if wire == "chat":
        async with AsyncOpenAI(api_key="k", base_url="http://model/v1", max_retries=0, http_client=http) as client:
            return await ChatModel(client).reply(call)
    async with AsyncAnthropic(api_key="k", base_url="http://model", max_retries=0, http_client=http) as anthropic:
        return await MessagesModel(anthropic).reply(call)


async def failure_of(wire: str, *data: Any, is_whole: bool = False) -> ApplicationError:
    with pytest.raises(ApplicationError) as failure:
        await read(wire, *data, is_whole=is_whole)
    return failure.value


def text_of(reply: ModelReply) -> tuple[str, str]:
    """Return the thinking and the text."""
    return tuple(
        "".join(block[kind] for block in reply.content if block["type"] == kind) for kind in ("thinking", "text")
    )  # type: ignore[return-value]


# Each wire's own form of a text, of a call, and of the end. Events of the Messages API have no name here.


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def said(wire: str, text: str) -> list[Any]:
    if wire == "chat":
        return [chunk(content=text)]
    opening = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}}
    return [opening, start(0, {"type": "text", "text": ""}), delta(0, "text_delta", text=text)]


def called(wire: str, arguments: str) -> list[Any]:
    if wire == "chat":
        function = {"name": "look", "arguments": arguments}
        return [chunk(tool_calls=[{"index": 0, "id": "a", "function": function}])]
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    return [*said(wire, "")[:1], start(0, use), delta(0, "input_json_delta", partial_json=arguments)]


def end(wire: str, word: Any) -> list[Any]:
    if wire == "chat":
        return [chunk(word), "[DONE]"]
    return [{"type": "message_delta", "delta": {"stop_reason": word}}, {"type": "message_stop"}]


# Ends.


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", "end_turn"),
        ("end_turn", "end_turn"),
        ("STOP", "end_turn"),
        ("eos_token", "end_turn"),
        ("stop_sequence", "stop_sequence"),
        ("length", "max_tokens"),
        ("max_tokens", "max_tokens"),
        ("model_length", "max_tokens"),
        ("MAX_TOKENS", "max_tokens"),
        ("content_filter", "refusal"),
        ("refusal", "refusal"),
        ("SAFETY", "refusal"),
    ],
)
async def test_both_apis_know_the_words_of_both_for_the_end(wire: str, word: str, reason: str) -> None:
    reply = await read(wire, *said(wire, HALF), *end(wire, word))
    assert (reply.stop_reason, text_of(reply)[1]) == (reason, HALF)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "word", ["error", "abort", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "x" * 900]
)
async def test_an_end_that_is_not_known_as_a_good_one_is_a_failed_attempt_that_names_it(wire: str, word: str) -> None:
    failure = await failure_of(wire, *said(wire, HALF), *end(wire, word))
    assert (failure.type, failure.non_retryable) == ("ModelUnavailable", False)
    assert f"has the end '{word[:70]}" in failure.message
    assert len(failure.message) < 200


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("word", [None, ""])
async def test_a_stream_that_ended_properly_is_whole_without_a_word_for_its_end(wire: str, word: str | None) -> None:
    reply = await read(wire, *said(wire, "the whole answer"), *end(wire, word))
    assert (reply.stop_reason, text_of(reply)[1]) == ("end_turn", "the whole answer")
    reply = await read(wire, *called(wire, '{"at": "x"}'), *end(wire, word))
    assert (reply.stop_reason, reply.content[0]["input"]) == ("tool_use", {"at": "x"})


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_without_a_word_for_its_end_and_without_its_end_is_cut(wire: str) -> None:
    for data in (said(wire, HALF), said(wire, HALF) + end(wire, None)[:1], said(wire, "")[:1] + end(wire, None)):
        assert "cut off in the middle of the stream" in (await failure_of(wire, *data)).message


@pytest.mark.parametrize("wire", WIRES)
async def test_a_word_for_the_end_is_enough_and_what_follows_the_end_is_not_read(wire: str) -> None:
    assert (await read(wire, *said(wire, "so"), *end(wire, "stop")[:1])).stop_reason == "end_turn"
    reply = await read(wire, *said(wire, "so"), *end(wire, "stop"), "no JSON", {"error": "too late"})
    assert text_of(reply) == ("", "so")


async def test_a_whole_document_needs_no_word_for_its_end() -> None:
    message = {"role": "assistant", "content": "so", "tool_calls": None}
    chat = await read("chat", {"model": "m", "choices": [{"message": message, "finish_reason": None}]}, is_whole=True)
    block = {"type": "text", "text": "so"}
    messages = await read("messages", {"model": "m", "content": [block], "stop_reason": None}, is_whole=True)
    assert chat.content == messages.content == [block]
    assert chat.stop_reason == messages.stop_reason == "end_turn"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("word", ["length", "max_tokens"])
async def test_the_last_call_of_a_reply_that_was_cut_off_is_not_made_even_if_it_looks_complete(
    wire: str, word: str
) -> None:
    reply = await read(wire, *called(wire, '{"at": "x"}'), *end(wire, word))
    assert (reply.broken, reply.content[0]["input"]) == (("a",), {})


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("written", ["null", "  ", "", '""', "{}"])
async def test_null_and_blanks_are_no_arguments(wire: str, written: str) -> None:
    reply = await read(wire, *called(wire, written), *end(wire, "tool_use"))
    assert (reply.broken, reply.content[0]["input"]) == ((), {})


# Errors.


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "quota exceeded", "type": "insufficient_quota"}, "ModelRefused"),
        ({"message": "quota exceeded", "code": "insufficient_quota"}, "ModelRefused"),
        ({"message": "quota exceeded", "type": "BadRequestError", "code": 400}, "ModelRefused"),
        ({"message": "quota exceeded", "code": 429, "status": "RESOURCE_EXHAUSTED"}, "RateLimited"),
        ({"message": "quota exceeded", "type": "rate_limit_error"}, "RateLimited"),
        ({"message": "quota exceeded", "code": "context_length_exceeded"}, "ContextTooLong"),
        ({"message": "quota exceeded", "code": 502}, "ModelUnavailable"),
        ({"message": "quota exceeded", "code": [1], "type": 7}, "ModelUnavailable"),
        ("quota exceeded", "ModelUnavailable"),
    ],
)
async def test_an_error_in_a_stream_is_reported_in_its_words_and_is_final_if_its_kind_is(
    wire: str, is_late: bool, error: Any, kind: str
) -> None:
    failure = await failure_of(wire, *(said(wire, HALF) if is_late else ()), {"error": error}, "[DONE]")
    assert (failure.type, failure.non_retryable) == (kind, kind in ("ModelRefused", "ContextTooLong"))
    assert "quota exceeded" in failure.message


# Forms of text.


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}


@pytest.mark.parametrize(
    "contents",
    [
        [[THOUGHT], [{"type": "text", "text": "good "}], "day"],
        [[THOUGHT, {"type": "text", "text": "good "}, {"type": "reference", "ids": [1]}, "day"]],
        [[{"type": "reasoning", "text": "hm"}], "good ", "day"],
        ["<think>\nh", "m\n</think>\n\ngood ", "day"],
        ["hm\n</think>\n\ngood day"],
    ],
)
async def test_text_in_parts_and_thinking_in_text_stay_apart(contents: list[Any]) -> None:
    reply = await read("chat", *(chunk(content=content) for content in contents), *end("chat", "stop"))
    assert text_of(reply) == ("hm", "good day")


async def test_parts_of_a_whole_completion_are_read_as_those_of_chunks() -> None:
    content = [THOUGHT, {"type": "text", "text": "good day"}, {"type": "refusal", "refusal": "no"}]
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    reply = await read("chat", {"model": "m", "choices": [choice]}, is_whole=True)
    assert (text_of(reply), reply.stop_reason) == (("hm", "good day"), "refusal")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>hm</think>so", ("hm", "so")),
        ("  <thinking>hm</thinking>\nso", ("hm", "so")),
        ("<think>\n\n</think>\n\nso", ("", "so")),
        ("<think>hm, <think>, hm</think>so", ("hm, <think>, hm", "so")),
        ("<think>hm", ("hm", "")),
        ("so: </think> ends it", ("", "so: </think> ends it")),
        ("so: <think>x</think>", ("", "so: <think>x</think>")),
        ("so", ("", "so")),
    ],
)
async def test_thinking_between_tags_at_the_start_of_the_text_is_no_text(
    wire: str, text: str, parts: tuple[str, str]
) -> None:
    assert text_of(await read(wire, *said(wire, text), *end(wire, "stop"))) == parts


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "text", ["<think>hm, <b></think>\n\nso <think> it is", "\n<thinking>hm</thinking>so <think> it is"]
)
async def test_thinking_between_tags_is_not_shown_while_it_comes(wire: str, text: str) -> None:
    seen = list[str]()
    pieces = (said(wire, letter)[-1] for letter in text)
    await read(wire, *said(wire, ""), *pieces, *end(wire, "stop"), on_text=seen.append)
    assert [each for each in seen if each != "so <think> it is"[: len(each)]] == []
    assert seen[-1] == "so <think> it is"


async def test_a_call_in_the_first_form_of_the_api_is_a_call() -> None:
    pieces = [chunk(function_call={"name": "look", "arguments": ""}), chunk(function_call={"arguments": "{}"})]
    reply = await read("chat", *pieces, *end("chat", "function_call"))
    assert (reply.stop_reason, reply.content[0]["name"], reply.content[0]["input"]) == ("tool_use", "look", {})


# Bounds.


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [3, 100_000])
async def test_a_reply_is_read_up_to_its_bound(wire: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = MAX_REPLY_BYTES if size > 3 else 3_000
    monkeypatch.setattr(
        f"perdure.activities.providers.{ {'chat': 'openai'}.get(wire, 'anthropic') }.MAX_REPLY_BYTES", bound
    )
    more = said(wire, "x" * size)[-1]
    seen = list[str]()
    reply = await read(wire, *said(wire, ""), *[more] * (2 * bound // size), on_text=seen.append)
    assert (reply.stop_reason, reply.is_too_large) == ("max_tokens", True)
    assert 0 < len(text_of(reply)[1]) <= bound + size
    assert sum(map(len, seen)) < 80 * bound  # linear


@pytest.mark.parametrize("wire", WIRES)
async def test_arguments_are_read_up_to_the_bound_of_a_reply_and_not_used(wire: str) -> None:
    more = called(wire, "x" * 100_000)
    opening = more[:-1] if wire == "messages" else []
    reply = await read(wire, *opening, *[more[-1]] * 50)
    assert (reply.stop_reason, reply.is_too_large, reply.broken) == ("max_tokens", True, ("a",))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bound", ["MAX_STREAM_BYTES", "MAX_EVENTS", "MAX_EVENT_BYTES"])
async def test_a_stream_is_read_up_to_its_bounds(wire: str, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, bound, {"MAX_EVENTS": 9}.get(bound, 4_000))
    empty = said(wire, "")[-1]
    endless = {"MAX_EVENT_BYTES": {**empty, "more": "x" * 5_000}}.get(bound, empty)
    reply = await read(wire, *said(wire, "hi"), *[endless] * 100, *end(wire, "stop"))
    assert (reply.stop_reason, reply.is_too_large, text_of(reply)[1]) == ("max_tokens", True, "hi")


async def test_other_tasks_go_on_while_a_stream_of_many_pieces_is_read() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count())
    reply = await read(
        "chat", "".join(f"\n\ndata: {json.dumps(chunk(content='x'))}" for _ in range(5_000)), *end("chat", "stop")
    )
    other.cancel()
    assert len(text_of(reply)[1]) == 5_000
    assert turns >= 5_000 // stream.EVENTS_AT_ONCE
