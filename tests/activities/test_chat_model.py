"""The Chat Completions API as the `openai` SDK speaks it: what is sent, what is read, and a name for every failure."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.errors import to_model_failure
from perdure.activities.providers.openai import ChatModel
from perdure.activities.providers.port import JOURNAL_HEADING, ModelCall, ModelReply
from perdure.activities.providers.replies.reply import MAX_RELAXED
from perdure.contracts.agent import Definition, ToolSchema
from perdure.contracts.model_settings import ModelOptions
from perdure.process.models import create_http_client
from perdure.testkit.model_server import Reply, ScriptedModel, broken_json, calls, cut, fails, says, slow
from perdure.testkit.ways import Ways
from tests.shared_model import SharedModel

KEY = "sk-canary-51"
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK = ToolSchema(name="look", description="Looks.", input_schema=SCHEMA)
DEFINITION = Definition(
    agent="a", model="scripted", options=ModelOptions(max_tokens=99), system="You are tested.", tools=(LOOK,)
)
GOAL = [{"role": "user", "content": [{"type": "text", "text": "see"}]}]


@pytest.fixture
def script() -> list[Any]:
    return [says("hello")]


@pytest.fixture
def server(script: list[Any]) -> Iterator[ScriptedModel]:
    with SharedModel(script) as model:
        yield model


async def ask(server: ScriptedModel, **fields: Any) -> ModelReply:
    async with AsyncOpenAI(
        api_key=KEY, base_url=f"{server.base_url}/v1", max_retries=0, http_client=create_http_client()
    ) as client:
        return await ChatModel(client).reply(ModelCall(**{"definition": DEFINITION, "messages": GOAL, **fields}))


async def failure_of(server: ScriptedModel) -> ApplicationError:
    with pytest.raises(ApplicationError) as failure:
        await ask(server)
    return failure.value


class Endpoint:
    """A server's answer as bytes, and the requests that it got."""

    def __init__(self, *answers: httpx2.Response) -> None:
        self.answers, self.requests = list(answers), list[dict[str, Any]]()
        self.headers = httpx2.Headers()  # of the last request

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.headers = request.headers
        self.requests.append(json.loads(request.content))
        return self.answers.pop(0) if self.answers[1:] else self.answers[0]

    def client(self) -> AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer))
        return AsyncOpenAI(api_key=KEY, base_url="http://model/v1", max_retries=0, http_client=http)

    async def ask(self, **fields: Any) -> ModelReply:
        async with self.client() as client:
            return await ChatModel(client).reply(ModelCall(**{"definition": DEFINITION, "messages": GOAL, **fields}))


def stream_of(*lines: Any) -> httpx2.Response:
    """A stream with these data lines; text goes as it is."""
    text = "".join(f"data: {line if isinstance(line, str) else json.dumps(line)}\n\n" for line in lines)
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=text.encode())


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def piece(index: int | None, arguments: Any = "", **fields: Any) -> dict[str, Any]:
    """A chunk with a piece of a call; `name` stands beside the arguments."""
    function = {"arguments": arguments} | ({"name": fields.pop("name")} if "name" in fields else {})
    return chunk(tool_calls=[{"index": index, "function": function, **fields}])


async def read(*lines: Any) -> ModelReply:
    return await Endpoint(stream_of(*lines)).ask()


def error_of(status: int, message: str = "no", **fields: Any) -> httpx2.Response:
    return httpx2.Response(status, json={"error": {"message": message, "type": "", **fields}})


# What is sent.


async def test_a_request_has_the_system_prompt_the_tools_and_the_limit() -> None:
    endpoint = Endpoint(stream_of(chunk("stop", content="hi")))
    await endpoint.ask(digest="notes", brief="be brief")
    (body,) = endpoint.requests
    assert body == {
        "model": "scripted",
        "max_tokens": 99,
        "messages": [
            {"role": "system", "content": f"You are tested.\n\n{JOURNAL_HEADING}\nnotes\n\nbe brief"},
            {"role": "user", "content": "see"},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_options_are_sent_in_the_words_of_the_api() -> None:
    extra = {"seed": 7, "messages": [], "max_tokens": 1, "stream": False, "tool_choice": "required"}
    options = ModelOptions(
        max_tokens=99, temperature=0.5, top_p=0.0, effort="high", cache="1h", headers={"x-a": "b"}, extra=extra
    )
    endpoint = Endpoint(stream_of(chunk("stop", content="hi")))
    await endpoint.ask(definition=DEFINITION.evolve(options=options))
    (body,) = endpoint.requests
    sent = {name: body[name] for name in ("max_tokens", "temperature", "top_p", "reasoning_effort", "seed", "stream")}
    assert sent == {
        "max_tokens": 99,
        "temperature": 0.5,
        "top_p": 0.0,
        "reasoning_effort": "high",
        "seed": 7,
        "stream": True,
    }
    assert (len(body["messages"]), "tool_choice" in body, endpoint.headers["x-a"]) == (2, False, "b")


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({"force": "look"}, {"type": "function", "function": {"name": "look"}}),
        ({"is_closing": True}, "none"),
    ],
)
async def test_a_forced_tool_and_a_last_turn_are_a_choice(fields: dict[str, Any], choice: Any) -> None:
    endpoint = Endpoint(stream_of(chunk("stop", content="hi")))
    await endpoint.ask(**fields)
    assert endpoint.requests[0]["tool_choice"] == choice


async def test_a_block_without_a_form_is_refused_with_its_place() -> None:
    found = [*GOAL, {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search"}]}]
    endpoint = Endpoint()
    with pytest.raises(
        ApplicationError, match=r"^ModelRefused: messages\.1\.content\.0: .*'server_tool_use'"
    ) as failure:
        await endpoint.ask(messages=found)
    assert failure.value.non_retryable
    assert endpoint.requests == []


async def test_the_limit_takes_the_name_that_the_model_asks_for_and_keeps_it() -> None:
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    endpoint = Endpoint(error_of(400, message), stream_of(chunk("stop", content="hi")))
    async with endpoint.client() as client:
        model = ChatModel(client)
        for _ in range(2):
            assert (await model.reply(ModelCall(definition=DEFINITION, messages=GOAL))).content
    limits = [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in endpoint.requests]
    assert limits == [(99, None), (None, 99), (None, 99)]


DONE = {"type": "tool_use", "id": "f", "name": "finish", "input": {"outcome": "All done."}}
LOOKED = {"type": "tool_use", "id": "l", "name": "look", "input": {}}
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}


def answered(use: dict[str, Any], *content: dict[str, Any]) -> list[dict[str, Any]]:
    """A call with its result, and what else the user's message has."""
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "ok"}, *content]}
    asked = {"role": "user", "content": [result, *(GOAL[0]["content"] if not content else ())]}
    return [{"role": "assistant", "content": [use]}, asked]


@pytest.mark.parametrize(
    "refusal",
    [
        error_of(400, "Unexpected role 'user' after role 'tool'", type="invalid_request_message_order", code="3230"),
        error_of(500, "Conversation roles must alternate user/assistant/user/assistant/..."),
    ],
)
async def test_a_model_that_wants_a_reply_between_a_result_and_an_input_gets_one_from_then_on(
    refusal: httpx2.Response,
) -> None:
    endpoint = Endpoint(refusal, stream_of(chunk("stop", content="hi")))
    messages = [*GOAL, *answered(DONE), *answered(LOOKED, PICTURE)]
    async with endpoint.client() as client:
        model = ChatModel(client)
        for _ in range(2):
            assert (await model.reply(ModelCall(definition=DEFINITION, messages=messages))).content
    roles = [[message["role"] for message in body["messages"]] for body in endpoint.requests]
    plain = ["system", "user", "assistant", "tool", "user", "assistant", "tool", "user"]
    strict = ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert roles == [plain, strict, strict]
    said = [message["content"] for message in endpoint.requests[1]["messages"] if message["role"] == "assistant"]
    assert said == [None, "All done.", None, "Understood."]


async def test_a_refusal_of_an_order_that_is_none_is_final_at_once() -> None:
    endpoint = Endpoint(error_of(400, "Conversation roles must alternate"))
    with pytest.raises(ApplicationError, match="roles must alternate"):
        await endpoint.ask()
    assert len(endpoint.requests) == 1


async def test_a_model_that_takes_only_short_descriptions_of_tools_gets_those() -> None:
    message = (
        "Invalid 'tools[0].function.description': string too long. Expected a string with maximum length 1024, but got "
        "a string with length 3000 instead."
    )
    endpoint = Endpoint(error_of(400, message, code="string_above_max_length"), stream_of(chunk("stop", content="hi")))
    tools = (LOOK.evolve(description="x" * 3000),)
    assert (await endpoint.ask(definition=DEFINITION.evolve(tools=tools))).content
    lengths = [len(body["tools"][0]["function"]["description"]) for body in endpoint.requests]
    assert lengths == [3000, 1024]


async def test_a_reply_is_as_long_as_the_window_leaves_room_for() -> None:
    words = "maximum context length is 4096 tokens, {} are requested (900 in the messages, {} in the completion)"
    options = ModelOptions(max_tokens=4000)
    endpoint = Endpoint(error_of(400, words.format(4900, 4000)), stream_of(chunk("stop", content="hi")))
    assert (await endpoint.ask(definition=DEFINITION.evolve(options=options))).content
    assert [body["max_tokens"] for body in endpoint.requests] == [4000, 3196]


async def test_requests_are_made_milder_a_bounded_number_of_times() -> None:
    least, asked = 1100, 9000
    answers = [error_of(400, f"max_tokens: {n} > {n - 1}") for n in range(asked, least, -1)]
    endpoint = Endpoint(*answers)
    options = ModelOptions(max_tokens=asked)
    with pytest.raises(ApplicationError, match="max_tokens"):
        await endpoint.ask(definition=DEFINITION.evolve(options=options))
    assert len(endpoint.requests) == 1 + MAX_RELAXED


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"type": "object", "properties": {"a": True}}, {"type": "object", "properties": {"a": {}}}),
        (
            {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": ["array", "null"]}}},
            {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {}}, "b": {"type": ["array", "null"], "items": {}}},
            },
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"anyOf": [{"type": "array"}, {"type": "string"}]}, "b": {"$ref": "#/$defs/L"}},
                "$defs": {"L": {"type": "array", "items": {"type": "array"}}},
            },
            {
                "type": "object",
                "properties": {
                    "a": {"anyOf": [{"type": "array", "items": {}}, {"type": "string"}]},
                    "b": {"$ref": "#/$defs/L"},
                },
                "$defs": {"L": {"type": "array", "items": {"type": "array", "items": {}}}},
            },
        ),
        (
            {"type": "object", "properties": {"type": {"type": "string"}, "o": {"type": "object"}}, "required": ["o"]},
            {"type": "object", "properties": {"type": {"type": "string"}, "o": {"type": "object"}}, "required": ["o"]},
        ),
    ],
)
async def test_a_schema_gets_what_the_api_wants_of_it(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    endpoint = Endpoint(stream_of(chunk("stop", content="hi")))
    tools = (LOOK.evolve(input_schema=schema),)
    await endpoint.ask(definition=DEFINITION.evolve(tools=tools))
    assert endpoint.requests[0]["tools"][0]["function"]["parameters"] == sent


async def test_an_optional_field_that_a_server_rejects_is_left_out_once() -> None:
    endpoint = Endpoint(error_of(400, "tool_choice is not supported"), error_of(400, "unknown field stream_options"))
    with pytest.raises(ApplicationError, match="unknown field stream_options"):
        await endpoint.ask(force="look")
    fields = [("tool_choice" in body, "stream_options" in body) for body in endpoint.requests]
    assert fields == [(True, True), (False, True), (False, False)]


async def test_a_refusal_names_the_setting_that_it_is_about() -> None:
    options = ModelOptions(effort="max")
    endpoint = Endpoint(error_of(400, "Unsupported value: 'reasoning_effort' does not support 'max'"))
    with pytest.raises(ApplicationError, match=r"\(see effort of \[model\], or of the agent\)$"):
        await endpoint.ask(definition=DEFINITION.evolve(options=options))


# What is read.


async def test_a_reply_brings_its_text_its_usage_and_why_it_stopped(server: ScriptedModel) -> None:
    reply = await ask(server)
    assert reply.content == [{"type": "text", "text": "hello"}]
    assert (reply.stop_reason, reply.model, reply.broken) == ("end_turn", "scripted", ())
    assert reply.usage.input > 0
    assert reply.usage.output > 0


@pytest.mark.parametrize("script", [[slow(says("word " * 40), 0.1)]])
async def test_the_text_is_reported_as_it_grows(server: ScriptedModel) -> None:
    seen: list[str] = []
    await ask(server, on_text=seen.append)
    assert len(seen) > 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert seen[-1] == "word " * 40


@pytest.mark.parametrize(
    "script", [[calls(("look", {"at": "ü" * 60}), ("look", {}), ("look", {"at": "x"}), text="on")]]
)
async def test_pieces_of_parallel_calls_that_alternate_are_gathered(server: ScriptedModel) -> None:
    reply = await ask(server)
    assert [block["type"] for block in reply.content] == ["text", "tool_use", "tool_use", "tool_use"]
    assert [block["input"] for block in reply.content[1:]] == [{"at": "ü" * 60}, {}, {"at": "x"}]
    assert (reply.stop_reason, reply.broken) == ("tool_use", ())


@pytest.mark.parametrize("script", [[broken_json("look", '{"at": "x')]])
async def test_broken_arguments_are_named_and_not_kept(server: ScriptedModel) -> None:
    reply = await ask(server)
    assert (reply.broken, reply.content[0]["input"]) == (("toolu_0_0",), {})


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, '{"n"', id="a", name="look"), piece(0, ": 1}"), piece(0, '{"n": 2}', id="b", name="look")],
        [piece(0, '{"n": 1}', id="a", name="look"), piece(0, '{"n": 2}', id="b", name="look")],
        [piece(None, '{"n": 1}', id="a", name="look"), piece(None, '{"n": 2}', id="b", name="look")],
        [piece(1, '{"n": 2}', id="b", name="look"), piece(0, '{"n": 1}', id="a", name="look")],
        [piece(0, {"n": 1}, id="a", name="look"), piece(1, {"n": 2}, id="b", name="look")],
        [piece(0, '{"n"', id="a", name="look"), piece(1, '{"n": 2}', id="b", name="look"), piece(0, ": 1}", id="a")],
    ],
    ids=("zero, split", "zero", "without a number", "in another order", "as objects", "repeated ids"),
)
async def test_calls_stay_apart_however_a_server_numbers_them(pieces: list[Any]) -> None:
    reply = await read(*pieces, chunk("tool_calls"))
    found = [(block["id"], block["name"], block["input"]) for block in reply.content]
    assert found == [("a", "look", {"n": 1}), ("b", "look", {"n": 2})]


async def test_calls_without_ids_get_some() -> None:
    both = [{"function": {"name": "look", "arguments": json.dumps({"n": n})}} for n in range(2)]
    message = {"role": "assistant", "content": None, "tool_calls": both}
    body = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    reply = await Endpoint(httpx2.Response(200, json=body)).ask()
    assert [(block["id"], block["input"]) for block in reply.content] == [("call_0", {"n": 0}), ("call_0_", {"n": 1})]


@pytest.mark.parametrize(
    ("lines", "stop_reason", "broken"),
    [
        ([chunk("stop", content="hi")], "end_turn", ()),
        ([piece(0, "{}", id="a", name="look"), chunk("stop")], "tool_use", ()),
        ([piece(0, "{}", id="a", name="look"), chunk("function_call")], "tool_use", ()),
        ([chunk(content="h"), chunk("length")], "max_tokens", ()),
        ([piece(0, '{"at', id="a", name="look"), chunk("length")], "max_tokens", ("a",)),
        ([piece(0, id="a", name="look"), chunk("length")], "max_tokens", ("a",)),
        ([piece(0, "{}", id="a", name="look"), chunk("length")], "max_tokens", ("a",)),
        ([chunk("content_filter")], "refusal", ()),
        ([chunk(refusal="I can"), chunk(refusal="not"), chunk("stop")], "refusal", ()),
    ],
)
async def test_each_end_has_its_reason(lines: list[Any], stop_reason: str, broken: tuple[str, ...]) -> None:
    reply = await read(*lines, "[DONE]")
    assert (reply.stop_reason, reply.broken) == (stop_reason, broken)


async def test_a_refusal_is_text() -> None:
    reply = await read(chunk(refusal="I can"), chunk(refusal="not"), chunk("stop"))
    assert reply.content == [{"type": "text", "text": "I cannot"}]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_thinking_before_the_text_and_is_not_sent_back(name: str) -> None:
    endpoint = Endpoint(stream_of(chunk(**{name: "h"}), chunk(**{name: "m"}), chunk("stop", content="so")))
    reply = await endpoint.ask()
    assert reply.content == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]
    await endpoint.ask(messages=[*GOAL, {"role": "assistant", "content": reply.content}, *GOAL])
    assert endpoint.requests[1]["messages"][2] == {"role": "assistant", "content": "so"}


async def test_a_signature_of_a_call_is_sent_back_with_it() -> None:
    signed = chunk(
        tool_calls=[
            {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}, "extra_content": {"google": "s"}},
            {"index": 1, "id": "b", "function": {"name": "look", "arguments": "{}"}},
        ]
    )
    endpoint = Endpoint(stream_of(signed, chunk("tool_calls")))
    reply = await endpoint.ask()
    results = [{"type": "tool_result", "tool_use_id": name, "content": "ok"} for name in "ab"]
    spoken = {"role": "assistant", "content": reply.content}
    await endpoint.ask(messages=[*GOAL, spoken, {"role": "user", "content": results}])
    sent = endpoint.requests[1]["messages"][2]["tool_calls"]
    assert [call.get("extra_content") for call in sent] == [{"google": "s"}, None]
    assert [block["type"] for block in reply.content] == ["thinking", "tool_use", "tool_use"]


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3}, (9, 3, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 20}, (9, 11, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 0}, (9, 3, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 7}}, (2, 3, 7)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}, (9, 3, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": 7}, (9, 3, 0)),
        ({"prompt_tokens": 3, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 7}}, (0, 3, 7)),
        ({"prompt_tokens": None, "completion_tokens": "many"}, (0, 0, 0)),
        (None, (0, 0, 0)),
    ],
)
async def test_usage_excludes_what_came_from_the_cache(usage: Any, counted: tuple[int, int, int]) -> None:
    reply = await read(chunk("stop", content="hi"), {"model": "m", "choices": [], "usage": usage})
    assert (reply.usage.input, reply.usage.output, reply.usage.cache_read) == counted


async def test_half_a_surrogate_pair_becomes_a_replacement_character_and_a_torn_pair_its_character() -> None:
    lines = [json.dumps(chunk(content=text)) for text in ("a\ud83d", "\ude00", "\udc00b")]
    assert (await read(*lines, chunk("stop"))).content == [{"type": "text", "text": "a😀\ufffdb"}]


async def test_a_whole_completion_is_a_reply_where_a_server_does_not_stream(server: ScriptedModel) -> None:
    message = {"role": "assistant", "content": "hi"}
    body = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    reply = await Endpoint(httpx2.Response(200, json=body)).ask()
    assert (reply.content, reply.stop_reason) == ([{"type": "text", "text": "hi"}], "end_turn")


THOUGHT = {"type": "thinking", "thinking": "h" * 30, "signature": "s"}


@pytest.mark.parametrize(
    "ways",
    [
        Ways(index="zero", ids="own"),
        Ways(index="zero", ids="empty"),
        Ways(index="none", ids="empty", repeats_name=True),
        Ways(index="zero", ids="each"),
        Ways(index="zero", ids="each", repeats_name=True),
        Ways(index="own", ids="each", repeats_name=True),
        Ways(thinking="parts"),
        Ways(thinking="tags"),
        Ways(end=""),
        Ways(end="stop", has_last_event=False),
    ],
    ids=repr,
)
async def test_a_reply_is_the_same_in_each_way_that_servers_have(ways: Ways) -> None:
    uses: tuple[tuple[str, dict[str, str]], ...] = (("look", {"at": "x" * 60}), ("look", {}), ("peek", {"at": "y"}))
    with ScriptedModel([Reply(blocks=(THOUGHT,), text="on", calls=uses)], ways=ways) as model:
        reply = await ask(model)
    assert [block.get("thinking") or block.get("text") for block in reply.content[:2]] == ["h" * 30, "on"]
    assert [(block["name"], block["input"]) for block in reply.content[2:]] == list(uses)
    assert (reply.stop_reason, reply.broken, reply.repeated) == ("tool_use", (), ())


async def test_a_server_with_a_window_leaves_room_for_a_shorter_reply() -> None:
    definition = DEFINITION.evolve(options=ModelOptions(max_tokens=4000))
    with ScriptedModel([says("hello")], ways=Ways(window=4000)) as model:
        assert (await ask(model, definition=definition)).content
        assert len(model.requests) == 2
        assert model.requests[1]["max_tokens"] < 4000


# Failures.


@pytest.mark.parametrize(
    "lines",
    [
        [chunk(content="half of an")],
        [piece(0, '{"at": "x"}', id="a", name="look")],
        [{"model": "m", "choices": []}, "[DONE]"],
        [],
    ],
)
async def test_a_stream_without_a_finish_reason_is_cut_off(lines: list[Any]) -> None:
    with pytest.raises(ApplicationError, match="cut off in the middle of the stream") as failure:
        await read(*lines)
    assert (failure.value.type, failure.value.non_retryable) == ("ModelUnavailable", False)


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        [1, 2],
        chunk(content=7),
        chunk(tool_calls=[7]),
        {"choices": 7},
        {"choices": ["x"]},
        piece(0, "{}", id="a", name=7),
        piece(0, "{}", id="a"),
    ],
)
async def test_another_stream_is_reported_and_retried(line: Any) -> None:
    with pytest.raises(ApplicationError, match=r"not the Chat Completions API|JSONDecodeError") as failure:
        await read(line, chunk("stop"))
    assert (failure.value.type, failure.value.non_retryable) == ("ModelUnavailable", False)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "not now", "type": "server_error"}, "ModelUnavailable"),
        ({"message": "not now", "code": "rate_limit_exceeded"}, "RateLimited"),
        ({"message": "not now", "type": "invalid_request_error"}, "ModelRefused"),
        ({"message": "not now", "type": "insufficient_quota"}, "ModelRefused"),
        ({"message": "not now", "code": "context_length_exceeded"}, "ContextTooLong"),
        ("not now", "ModelUnavailable"),
    ],
)
async def test_an_error_within_a_stream_has_its_kind(error: Any, kind: str) -> None:
    with pytest.raises(ApplicationError, match="not now") as failure:
        await read(chunk(content="ha"), {"error": error})
    assert failure.value.type == kind


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error_of(400), "ModelRefused"),
        (error_of(401, code="invalid_api_key"), "ModelRefused"),
        (error_of(404, code="model_not_found"), "ModelRefused"),
        (error_of(400, code="context_length_exceeded"), "ContextTooLong"),
        (error_of(400, "request exceeds the available context size"), "ContextTooLong"),
        (
            error_of(400, "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
            "ContextTooLong",
        ),
        (error_of(408), "ModelUnavailable"),
        (error_of(429, code="rate_limit_exceeded"), "RateLimited"),
        (error_of(429, type="insufficient_quota", code="insufficient_quota"), "ModelRefused"),
        (error_of(500), "ModelUnavailable"),
        (error_of(500, "image input is not supported - hint: ..."), "ModelRefused"),
        (error_of(500, "Failed to parse tool call arguments as JSON"), "ModelRefused"),
        (error_of(503), "ModelUnavailable"),
        (httpx2.Response(502, text="<html>bad gateway</html>"), "ModelUnavailable"),
        (httpx2.Response(400, json=[{"error": {"code": 400, "message": "no"}}]), "ModelRefused"),
        (httpx2.Response(200, json={"error": {"message": "model not loaded"}}), "ModelRefused"),
        (httpx2.Response(200, html="<title>Sign in</title>"), "ModelRefused"),
    ],
)
async def test_each_failure_has_its_kind(answer: httpx2.Response, kind: str) -> None:
    with pytest.raises(ApplicationError) as failure:
        await Endpoint(answer).ask()
    assert (failure.value.type, failure.value.non_retryable) == (kind, kind in ("ModelRefused", "ContextTooLong"))


@pytest.mark.parametrize(
    ("script", "least", "most"), [([fails(429, retry_after=7)], 7.0, 7.7), ([fails(503, retry_after=3)], 3.0, 3.3)]
)
async def test_the_delay_that_the_server_asks_for_is_kept(server: ScriptedModel, least: float, most: float) -> None:
    delay = (await failure_of(server)).next_retry_delay
    assert delay is not None
    assert least <= delay.total_seconds() <= most


@pytest.mark.parametrize("script", [[cut(says("x"))], [cut(says("x"), error="server_error")]])
async def test_a_stream_that_breaks_off_may_pass(server: ScriptedModel) -> None:
    failure = await failure_of(server)
    assert (failure.type, failure.non_retryable) == ("ModelUnavailable", False)


@pytest.mark.parametrize("script", [[slow(says("word " * 40), 30)]])
async def test_a_silent_server_is_left_after_the_patience(server: ScriptedModel) -> None:
    with pytest.raises(ApplicationError, match="sent nothing for longer than `turn_timeout` allows"):
        await ask(server, patience=0.3)


@pytest.mark.parametrize("script", [[slow(says("word " * 40), 30)]])
async def test_a_reply_is_cut_at_its_limit(server: ScriptedModel) -> None:
    with pytest.raises(ApplicationError, match="still coming after 1 s") as failure:
        await ask(server, limit=1)
    assert failure.value.non_retryable


async def test_no_connection_may_pass() -> None:
    with ScriptedModel([]) as gone:
        pass
    failure = await failure_of(gone)
    assert (failure.type, failure.non_retryable) == ("ModelUnavailable", False)
    assert failure.message.startswith("no connection to the model: ")


@pytest.mark.parametrize("script", [[fails(401, message=f"bad key {KEY}")]])
async def test_a_key_that_a_server_repeats_is_taken_out(server: ScriptedModel) -> None:
    failure = await failure_of(server)
    assert KEY not in failure.message
    assert "[key]" in failure.message


def test_an_address_that_is_not_found_is_named_without_its_password() -> None:
    request = httpx2.Request("POST", "http://me:hush@model/v1/chat/completions?key=hush")
    response = httpx2.Response(404, request=request)
    failure = to_model_failure(openai.NotFoundError("no", response=response, body=None))
    assert failure.message == "the provider refused the request (404) at http://model/v1/chat/completions: no"
