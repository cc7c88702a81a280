"""The scripted model server, asked by the real clients."""

import re
import socket
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import openai
import pytest
from anthropic import APIStatusError, AsyncAnthropic, AuthenticationError, BadRequestError, RateLimitError
from anthropic.types import Message, RawMessageStreamEvent
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from perdure.process.models import create_http_client
from perdure.testkit.model_server import Reply, Script, ScriptedModel, broken_json, calls, cut, fails, says, slow
from perdure.testkit.ways import Ways

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
FETCH = calls(("fetch", {"url": "http://a.example"}), ("fetch", {"url": "http://b.example"}), text="Frame: two pages")


async def ask(model: ScriptedModel, messages: list[Any] = HELLO, **extra: Any) -> Message:
    async with (
        AsyncAnthropic(
            api_key="none", base_url=model.base_url, max_retries=0, http_client=create_http_client()
        ) as client,
        client.messages.stream(model="scripted", max_tokens=100, messages=messages, **extra) as stream,
    ):
        return await stream.get_final_message()


async def events(model: ScriptedModel) -> list[RawMessageStreamEvent]:
    async with AsyncAnthropic(
        api_key="none", base_url=model.base_url, max_retries=0, http_client=create_http_client()
    ) as client:
        stream = await client.messages.create(model="scripted", max_tokens=100, messages=HELLO, stream=True)
        return [event async for event in stream]


def after(first: Message) -> list[Any]:
    """The conversation with that reply and a result for each of its calls."""
    uses = [block for block in first.content if block.type == "tool_use"]
    said = [{"type": "tool_use", "id": use.id, "name": use.name, "input": use.input} for use in uses]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "ok"} for use in uses]
    return [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": results}]


async def test_a_slow_reply_comes_late_whether_it_is_streamed_or_not() -> None:
    with ScriptedModel([slow(says("at last"), 0.4)]) as model:
        async with AsyncAnthropic(
            api_key="none", base_url=model.base_url, max_retries=0, http_client=create_http_client()
        ) as client:
            began = perf_counter()
            reply = await client.messages.create(model="scripted", max_tokens=100, messages=HELLO)
        assert perf_counter() - began > 0.4
        assert reply.content[0].type == "text"
        began = perf_counter()
        await ask(model)
        assert perf_counter() - began > 0.3  # the last of its events follows the others at once


async def test_the_turn_is_the_number_of_assistant_messages_in_the_request() -> None:
    with ScriptedModel([FETCH, says("done")]) as model:
        first = await ask(model)
        second = await ask(model, after(first))
    assert first.stop_reason == "tool_use"
    assert [block.to_dict() for block in first.content if block.type == "tool_use"] == [
        {"type": "tool_use", "id": f"toolu_0_{number}", "name": "fetch", "input": {"url": f"http://{site}.example"}}
        for number, site in enumerate("ab")
    ]
    assert second.stop_reason == "end_turn"
    assert second.content[0].to_dict() == {"type": "text", "text": "done"}
    assert second.model == "scripted"
    assert second.usage.input_tokens > first.usage.input_tokens > 0


async def test_the_same_request_gets_the_same_answer_and_is_counted_twice() -> None:
    with ScriptedModel([FETCH]) as model:
        first, second = await ask(model), await ask(model)
        assert first == second
        assert [request["messages"] for request in model.requests] == [HELLO, HELLO]


async def test_a_script_may_be_a_function_of_the_request() -> None:
    def echo(body: dict[str, Any]) -> Reply:
        return says(f"you said {body['messages'][-1]['content']}")

    with ScriptedModel(echo) as model:
        assert (await ask(model)).content[0].to_dict()["text"] == "you said hello"


async def test_without_streaming_the_reply_comes_whole() -> None:
    with ScriptedModel([FETCH]) as model:
        streamed = await ask(model)
        async with AsyncAnthropic(
            api_key="none", base_url=model.base_url, max_retries=0, http_client=create_http_client()
        ) as client:
            whole = await client.messages.create(model="scripted", max_tokens=100, messages=HELLO)
    assert [block.to_dict() for block in whole.content] == [block.to_dict() for block in streamed.content]
    assert whole.id == streamed.id


async def test_past_the_end_of_the_script_the_request_is_refused() -> None:
    with ScriptedModel([FETCH]) as model:
        first = await ask(model)
        with pytest.raises(BadRequestError, match="the script has 1 replies, and this is a request for turn 1"):
            await ask(model, after(first))


async def test_a_conversation_that_the_api_would_refuse_is_refused() -> None:
    with ScriptedModel([FETCH, says("done")]) as model:
        conversation = after(await ask(model))
        conversation[-1]["content"].pop()
        with pytest.raises(BadRequestError, match="without `tool_result` blocks immediately after: toolu_0_1"):
            await ask(model, conversation)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"input_schema": {"type": "object", "anyOf": []}}, "tools.1.custom.input_schema: anyOf is not supported"),
        ({"input_schema": {"type": "array"}}, "tools.1.custom.input_schema.type"),
        ({"input_schema": {"type": "object", "properties": {"a b": {}}}}, "tools.1.custom.input_schema.properties"),
        ({"name": "a.b"}, "tools.1.custom.name"),
        ({"name": "fine"}, "names must be unique"),
    ],
)
async def test_a_tool_that_the_api_would_refuse_is_refused_by_its_place(tool: dict[str, Any], words: str) -> None:
    fine = {"name": "fine", "input_schema": {"type": "object"}}
    with ScriptedModel([says("done")]) as model, pytest.raises(BadRequestError, match=words):
        await ask(model, tools=[fine, {**fine, "name": "other", **tool}])


async def test_a_fault_carries_type_message_and_retry_after() -> None:
    with ScriptedModel([fails(429, retry_after=2, message="slow down")]) as model:
        with pytest.raises(RateLimitError, match="slow down") as caught:
            await ask(model)
        assert caught.value.response.headers["retry-after"] == "2"
        assert caught.value.type == "rate_limit_error"


async def test_a_fault_without_a_sequel_stays() -> None:
    with ScriptedModel([fails(401)]) as model:
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                await ask(model)


async def test_a_fault_is_lifted_for_the_conversation_that_has_met_it_often_enough() -> None:
    other: list[Any] = [{"role": "user", "content": "another conversation"}]
    with ScriptedModel([fails(529, times=2, then=fails(500, then=says("at last")))]) as model:
        seen = [await outcome(model, HELLO) for _ in range(4)]
        assert seen == ["overloaded_error", "overloaded_error", "api_error", "at last"]
        assert await outcome(model, other) == "overloaded_error"


async def outcome(model: ScriptedModel, messages: list[Any]) -> str:
    try:
        return str((await ask(model, messages)).content[0].to_dict()["text"])
    except APIStatusError as error:
        return str(error.type)


async def test_a_cut_stream_ends_after_its_first_event_without_an_end_event() -> None:
    with ScriptedModel([cut(says("never heard"))]) as model:
        assert [event.type for event in await events(model)] == ["message_start"]


async def test_a_cut_stream_may_say_why_in_mid_stream() -> None:
    with ScriptedModel([cut(says("never heard"), error="overloaded_error")]) as model:
        with pytest.raises(APIStatusError) as caught:
            await ask(model)
        assert (caught.value.status_code, caught.value.type) == (200, "overloaded_error")


async def test_broken_arguments_reach_the_client_as_they_are() -> None:
    with ScriptedModel([broken_json("write_file", '{"path": nonsense}')]) as model:
        pieces = [
            event.delta.partial_json
            for event in await events(model)
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
        ]
        assert "".join(pieces) == '{"path": nonsense}'
        with pytest.raises(ValueError, match="Unable to parse tool parameter JSON"):
            await ask(model)


async def test_a_slow_reply_comes_in_pieces_over_its_time() -> None:
    with ScriptedModel([slow(says("word " * 40), 0.4)]) as model:
        async with (
            AsyncAnthropic(api_key="none", base_url=model.base_url) as client,
            client.messages.stream(model="scripted", max_tokens=100, messages=HELLO) as stream,
        ):
            started = perf_counter()
            moments = [perf_counter() - started async for _ in stream.text_stream]
            await stream.get_final_message()
    assert len(moments) > 4
    assert moments[0] < 0.3 < perf_counter() - started


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"model": "m"}'])
async def test_what_is_no_request_is_refused(content: bytes) -> None:
    with ScriptedModel([says("hello")]) as model:
        async with AsyncAnthropic(
            api_key="none", base_url=model.base_url, max_retries=0, http_client=create_http_client()
        ) as client:
            response = await client._client.post(f"{model.base_url}/v1/messages", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_client_that_dies_while_it_asks_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    with (
        ScriptedModel([says("hello")]) as model,
        socket.create_connection(("127.0.0.1", int(model.base_url.rpartition(":")[2]))) as client,
    ):
        client.sendall(head)
        assert b"100 Continue" in client.recv(100)  # it waits for the body
    assert caplog.text == ""


async def test_it_ends_quickly_and_leaves_no_thread_even_in_mid_stream() -> None:
    script: Script = [slow(says("word " * 100), 3600)]  # a stop that waited for it would outlast the test
    before = set(threading.enumerate())  # with servers of fixtures of the session
    async with AsyncAnthropic(api_key="none", max_retries=0) as client:
        with ScriptedModel(script) as model:
            here = client.with_options(base_url=model.base_url)
            stream = await here.messages.create(model="scripted", max_tokens=100, messages=HELLO, stream=True)
            await anext(stream)
        await stream.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "scripted-model"]


def test_many_servers_live_side_by_side() -> None:
    make: Callable[[], ScriptedModel] = lambda: ScriptedModel([says("hello")])  # noqa: E731
    with make() as one, make() as two:
        assert one.base_url != two.base_url


async def test_a_model_comes_back_at_the_port_that_it_had() -> None:
    with ScriptedModel([says("first")]) as model:
        port = int(model.base_url.rpartition(":")[2])
    with ScriptedModel([says("again")], port=port) as model:
        assert await outcome(model, HELLO) == "again"


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}

# The Chat Completions API, asked by the real `openai` client.


async def complete(model: ScriptedModel, **request: Any) -> ChatCompletion:
    async with AsyncOpenAI(
        api_key="none", base_url=f"{model.base_url}/v1", max_retries=0, http_client=create_http_client()
    ) as client:
        answer = await client.chat.completions.create(**{"model": "scripted", "messages": HELLO, **request})
    assert isinstance(answer, ChatCompletion)
    return answer


async def test_a_script_is_the_same_on_both_apis() -> None:
    with ScriptedModel([FETCH, says("done")]) as model:
        (choice,) = (await complete(model)).choices
        assert choice.message.tool_calls
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "Error: no"} for call in choice.message.tool_calls
        ]
        second = await complete(model, messages=[*HELLO, choice.message, *results])
        spoken = model.requests[1]["messages"]
    assert (choice.message.content, choice.finish_reason) == ("Frame: two pages", "tool_calls")
    assert second.choices[0].message.content == "done"
    assert spoken[-1] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": f"toolu_0_{n}", "content": "no", "is_error": True} for n in range(2)
        ],
    }


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (7, "a list of objects is required"),
        ([{"role": "assistant"}], "needs content or tool_calls"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "a part of type 'audio' is not valid"),
        ([{"role": "tool", "content": "x"}], "a message of role 'tool' is not valid"),
        ([*HELLO, {"role": "assistant", "tool_calls": [{"id": "a"}]}], "lacks a field, or has one of the wrong type"),
        ([*HELLO, {"role": "assistant", "tool_calls": [CALL]}], "`tool_use` ids were found without `tool_result`"),
    ],
)
async def test_a_chat_that_the_api_would_refuse_is_refused(messages: Any, words: str) -> None:
    with ScriptedModel([says("done")]) as model, pytest.raises(openai.BadRequestError, match=words):
        await complete(model, messages=messages)


UNSIGNED = {"type": "thinking", "thinking": "x"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"extra_body": {"seed": 7}}, "seed: Extra inputs are not permitted"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "must be greater than `thinking.budget_tokens`"),
        ({"thinking": {"type": "adaptive"}, "tool_choice": {"type": "any"}}, "when tool_choice forces tool use"),
        ({"thinking": {"type": "adaptive"}, "extra_body": {"temperature": 0.5}}, "only be set to 1"),
        ({"extra_body": {"temperature": 2}}, "temperature: range"),
        ({"tool_choice": {"type": "any"}, "tools": []}, "while providing tools"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": " \n"}]}]}, "non-whitespace text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "text.x: Extra"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [UNSIGNED]}]}, "thinking.signature: Field required"),
        ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 5}, "Found 5"),
    ],
)
async def test_a_request_that_the_messages_api_would_refuse_is_refused(fields: dict[str, Any], words: str) -> None:
    tool = {"name": "look", "input_schema": {"type": "object"}}
    with ScriptedModel([says("done")]) as model, pytest.raises(BadRequestError, match=re.escape(words)):
        await ask(model, **{"tools": [tool], **fields})


ASKED = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "a", "content": "ok"}


def function(parameters: Any) -> Any:
    return [{"type": "function", "function": {"name": "look", "parameters": parameters}}]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"tools": function({"type": "object"})},
            "Invalid schema for function 'look': In context=(), object schema mis",
        ),
        (
            {"tools": function({"type": "object", "properties": {"a": {"type": ["array", "null"]}}})},
            "In context=('properties', 'a'), array schema missing items.",
        ),
        ({"tools": function({"type": "object", "properties": {"a": True}})}, "True is not of type 'object'"),
        ({"tools": []}, "empty array"),
        ({"tool_choice": "none"}, "only allowed when 'tools'"),
        ({"stream_options": {"include_usage": True}}, "only allowed when 'stream'"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "at the same time"),
        ({"extra_body": {"top_k": 7}}, "Unrecognized request argument supplied: top_k"),
        ({"messages": [*HELLO, RESULT]}, "must be a response to a preceding message"),
        ({"messages": [*ASKED, *HELLO]}, "did not have response messages: a"),
        ({"messages": [*ASKED, RESULT, RESULT]}, "must be a response to a preceding message"),
        ({"messages": [{"role": "user", "content": []}]}, "expected a string or a non-empty array"),
    ],
)
async def test_a_request_that_the_chat_api_would_refuse_is_refused(fields: dict[str, Any], words: str) -> None:
    with ScriptedModel([says("done")]) as model, pytest.raises(openai.BadRequestError, match=re.escape(words)):
        await complete(model, **fields)


async def test_a_strict_server_wants_a_reply_between_a_result_and_an_input() -> None:
    messages = [*ASKED, RESULT, *HELLO]
    strict = ScriptedModel([says("done")] * 2, ways=Ways(has_strict_order=True))
    with strict as model, pytest.raises(openai.BadRequestError, match="Unexpected role 'user' after role 'tool'"):
        await complete(model, messages=messages)
    with ScriptedModel([says("done")] * 2) as model:
        assert (await complete(model, messages=messages)).choices


async def test_a_fault_has_the_form_of_its_api() -> None:
    with (
        ScriptedModel([fails(429, retry_after=2, message="slow down")]) as model,
        pytest.raises(openai.RateLimitError, match="slow down") as caught,
    ):
        await complete(model)
    assert (caught.value.type, caught.value.response.headers["retry-after"]) == ("rate_limit_error", "2")
