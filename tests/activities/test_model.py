"""The Messages API as the SDK speaks it: what is sent, what is read, and a name for every failure."""

import asyncio
import json
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from socket import SO_LINGER, SOL_SOCKET
from typing import Any
from weakref import ReferenceType, ref

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.anthropic import MessagesModel, build_request, read_reply
from perdure.activities.providers.errors import CALLER_KINDS, REQUEST_KINDS, TOO_LONG_PHRASES, to_model_failure
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.replies.reply import MAX_CALL_TOKENS
from perdure.activities.tools.json_schema import read_arguments
from perdure.contracts.agent import Definition, ToolSchema
from perdure.contracts.model_settings import ModelOptions
from perdure.decisions.run.recovery import parse_reply_room, parse_window
from perdure.process.models import create_http_client
from perdure.testkit import model_server
from perdure.testkit.model_server import ScriptedModel, broken_json, calls, cut, fails, says, slow
from perdure.testkit.rehearsal.sse import encode_stream
from perdure.testkit.ways import Ways
from tests.shared_model import SharedModel

KEY = "sk-canary-51"
LOOK = ToolSchema(name="look", description="Looks.", input_schema={"type": "object"})
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
    async with AsyncAnthropic(
        api_key=KEY, base_url=server.base_url, max_retries=0, http_client=create_http_client()
    ) as client:
        call = ModelCall(**{"definition": DEFINITION, "messages": GOAL, **fields})
        return await MessagesModel(client).reply(call)


async def failure_of(server: ScriptedModel) -> ApplicationError:
    with pytest.raises(ApplicationError) as failure:
        await ask(server)
    return failure.value


async def test_a_reply_brings_its_blocks_its_usage_and_why_it_stopped(server: ScriptedModel) -> None:
    reply = await ask(server)
    assert reply.content == [{"type": "text", "text": "hello"}]
    assert (reply.stop_reason, reply.model, reply.broken) == ("end_turn", "scripted", ())
    assert reply.usage.input > 0
    assert reply.usage.output > 0


@pytest.mark.parametrize("script", [[calls(("look", {"at": "ü"}), ("look", {}), text="two")]])
async def test_tool_uses_come_whole_and_in_order(server: ScriptedModel) -> None:
    reply = await ask(server)
    assert [block["type"] for block in reply.content] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in reply.content[1:]] == [{"at": "ü"}, {}]
    assert reply.stop_reason == "tool_use"


async def test_the_fixed_front_and_the_last_message_are_marked_for_the_cache(server: ScriptedModel) -> None:
    await ask(server)
    (body,) = server.requests
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body["system"] == [{"type": "text", "text": "You are tested.", **mark}]
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "see", **mark}]}]
    assert body["tools"] == [LOOK.model_dump()]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("scripted", 99, True)


async def test_an_hours_cache_is_asked_for_at_every_mark(server: ScriptedModel) -> None:
    hour = DEFINITION.evolve(options=ModelOptions(cache="1h"))
    await ask(server, definition=hour)
    (body,) = server.requests
    mark = {"type": "ephemeral", "ttl": "1h"}
    assert [body["system"][0]["cache_control"], body["messages"][0]["content"][0]["cache_control"]] == [mark, mark]


def test_the_ends_of_this_request_and_of_the_one_before_are_marked_beside_what_the_runs_share() -> None:
    """A turn of many calls has more blocks than a provider looks back, so the older end needs a mark of its own."""
    reply = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}] * 30}
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}] * 30}
    before = [*GOAL, reply, results]
    request = build_request(
        ModelCall(DEFINITION, [*before, reply, results], digest="notes", brief="resumed after an answer")
    )
    blocks = [block for message in request["messages"] for block in message["content"]]
    marked = [at for at, block in enumerate(blocks) if "cache_control" in block]
    assert marked == [60, 120]
    assert ["cache_control" in block for block in request["system"]] == [True, False, False]


def reject_lifetimes(body: dict[str, Any]) -> model_server.ScriptedAnswer:
    return fails(400, message="cache_control.ttl: not supported") if '"ttl"' in json.dumps(body) else says("hello")


@pytest.mark.parametrize("script", [reject_lifetimes])
async def test_a_server_that_rejects_a_caches_lifetime_is_asked_without_it(server: ScriptedModel) -> None:
    hour = DEFINITION.evolve(options=ModelOptions(cache="1h"))
    assert (await ask(server, definition=hour)).content == [{"type": "text", "text": "hello"}]
    assert [json.dumps(body).count('"ttl"') for body in server.requests] == [2, 0]
    assert json.dumps(server.requests[1]).count('"ephemeral"') == 2


async def test_marking_leaves_the_conversation_itself_as_it_is(server: ScriptedModel) -> None:
    await ask(server)
    assert GOAL == [{"role": "user", "content": [{"type": "text", "text": "see"}]}]


@pytest.mark.parametrize("script", [[slow(says("word " * 40), 0.1)]])
async def test_the_text_is_reported_as_it_grows(server: ScriptedModel) -> None:
    seen: list[str] = []
    await ask(server, on_text=seen.append)
    assert len(seen) > 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert seen[-1] == "word " * 40


@pytest.mark.parametrize("script", [[broken_json("look", '{"at": "x')]])
async def test_broken_arguments_are_named_and_not_kept(server: ScriptedModel) -> None:
    reply = await ask(server)
    assert reply.broken == ("toolu_0_0",)
    assert reply.content[0]["input"] == {}


def stream_of(*uses: tuple[str, str], stop_reason: str = "max_tokens") -> model_server.Reply:
    return model_server.Reply(calls=uses, stop_reason=stop_reason)


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        ([stream_of(("look", ""))], ("toolu_0_0",)),
        ([stream_of(("look", ""), ("look", ""))], ("toolu_0_1",)),  # what is not the last one had its end
        ([stream_of(("look", '{"at": "x"}'))], ("toolu_0_0",)),
        ([stream_of(("look", '{"at": "x"}'), ("look", '{"at": "y"}'))], ("toolu_0_1",)),
        ([stream_of(("look", ""), stop_reason="tool_use")], ()),
    ],
)
async def test_the_last_call_of_a_reply_that_is_cut_off_is_broken(
    server: ScriptedModel, broken: tuple[str, ...]
) -> None:
    assert (await ask(server)).broken == broken


@pytest.mark.parametrize(
    ("written", "stop_reason", "broken", "given"),
    [
        ('{"env": "sta', "max_tokens", ("t1",), {}),
        ("", "max_tokens", ("t1",), {}),
        ("", "tool_use", (), {}),
        ('{"env": "staging"}', "tool_use", (), {"env": "staging"}),
    ],
)
async def test_arguments_count_where_a_server_does_not_say_that_their_block_ends(
    written: str, stop_reason: str, broken: tuple[str, ...], given: dict[str, str]
) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": written}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "role": "assistant", "model": "m", "content": [use], "stop_reason": stop_reason}
    events = [each for each in encode_stream({**message, "usage": usage}) if b"content_block_stop" not in each]
    reply = await read_stream(b"".join(events))
    assert (reply.broken, reply.content[0]["input"]) == (broken, given)


@pytest.mark.parametrize(("stop_reason", "broken"), [("max_tokens", ("t2",)), ("tool_use", ())])
async def test_the_last_call_of_a_whole_message_is_broken_if_the_message_is_cut_off(
    stop_reason: str, broken: tuple[str, ...]
) -> None:
    """Its arguments are an object without those that are missing, and look complete."""
    uses = [{"type": "tool_use", "id": name, "name": "look", "input": {"at": "x"}} for name in ("t1", "t2")]
    reply = await read_reply({"model": "m", "content": uses, "stop_reason": stop_reason}, lambda _: None)
    assert reply.broken == broken
    assert [block["input"] for block in reply.content] == [{"at": "x"}, {} if broken else {"at": "x"}]


EVENTS: dict[str, dict[str, Any]] = {
    "start": {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}},
    "block": {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    "more": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    "end": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
}


def encode_events(*events: tuple[str, Any]) -> bytes:
    return b"".join(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events)


async def read_events(**other: Any) -> ModelReply:
    """The reply, if some events are others; one that is None is not sent."""
    events = [(event["type"], other.get(name, event)) for name, event in EVENTS.items()]
    return await read_stream(encode_events(*(event for event in events if event[1])))


def tool_use(**use: Any) -> dict[str, Any]:
    return EVENTS["block"] | {"content_block": {"type": "tool_use", **use}}


@pytest.mark.parametrize(
    ("other", "counted"),
    [
        ({}, (5, 3)),
        ({"end": EVENTS["end"] | {"usage": None}}, (5, 1)),
        ({"end": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}}, (5, 1)),
        ({"end": EVENTS["end"] | {"usage": 3.7}}, (5, 1)),
        ({"end": EVENTS["end"] | {"usage": {"output_tokens": "many"}}}, (5, 1)),
        ({"end": EVENTS["end"] | {"usage": {"output_tokens": 3.7}}}, (5, 3)),
        ({"end": EVENTS["end"] | {"usage": {"output_tokens": -3}}}, (5, 1)),
        ({"end": EVENTS["end"] | {"usage": {"input_tokens": 0, "output_tokens": 0}}}, (5, 1)),
        ({"end": EVENTS["end"] | {"usage": {"input_tokens": None, "output_tokens": 3}}}, (5, 3)),
        ({"end": EVENTS["end"] | {"usage": {"output_tokens": 10**400}}}, (5, MAX_CALL_TOKENS)),
        ({"start": {"type": "message_start", "message": {"model": "m"}}}, (0, 3)),
        ({"start": {"type": "message_start", "message": {"model": "m", "usage": None}}}, (0, 3)),
        ({"start": {"type": "message_start", "message": {"model": None, "usage": {"input_tokens": 5}}}}, (5, 3)),
        ({"start": None}, (0, 3)),
        ({"block": EVENTS["block"] | {"index": 1}, "more": EVENTS["more"] | {"index": 1}}, (5, 3)),
        ({"block": EVENTS["block"] | {"content_block": {"type": "text", "text": None}}}, (5, 3)),
    ],
)
async def test_a_stream_may_leave_out_usage_and_count_blocks_as_it_likes(
    other: dict[str, Any], counted: tuple[int, int]
) -> None:
    reply = await read_events(**other)
    assert reply.content == [{"type": "text", "text": "hi"}]
    assert (reply.usage.input, reply.usage.output) == counted
    assert type(reply.usage.output) is int


@pytest.mark.parametrize(
    ("by_time", "hour"),
    [
        ({"ephemeral_1h_input_tokens": 7, "ephemeral_5m_input_tokens": 3}, 7),
        ({"ephemeral_1h_input_tokens": 99}, 10),  # never more than all writes
        ({}, 0),
        (None, 0),
        (4, 0),
    ],
)
async def test_tokens_written_for_an_hour_are_a_part_of_those_written(by_time: Any, hour: int) -> None:
    usage = {"input_tokens": 5, "output_tokens": 1, "cache_creation_input_tokens": 10, "cache_creation": by_time}
    reply = await read_events(start={"type": "message_start", "message": {"model": "m", "usage": usage}})
    assert (reply.usage.cache_write, reply.usage.cache_write_1h, reply.usage.total) == (10, hour, 18)


@pytest.mark.parametrize(
    "other",
    [
        {"start": {"type": "message_start"}},
        {"block": None},
        {"block": EVENTS["block"] | {"content_block": None}},
        {"block": EVENTS["block"] | {"content_block": {"text": ""}}},
        {"block": EVENTS["block"] | {"content_block": {"type": "text", "text": 7}}},
        {"block": EVENTS["block"] | {"index": [1]}},
        {"block": tool_use(id="a", input={}), "more": EVENTS["more"] | {"type": "ping"}},
        {"block": tool_use(id="a", name=7, input={}), "more": EVENTS["more"] | {"type": "ping"}},
        {"block": tool_use(id="a", name="look", input={})},
        {"more": EVENTS["more"] | {"delta": None}},
        {"more": EVENTS["more"] | {"delta": {"type": "text_delta", "text": 7}}},
        {"more": [1, 2]},
        {"end": {"type": "message_delta", "usage": {"output_tokens": 3}}},
        {"end": EVENTS["end"] | {"delta": {"stop_reason": 5}}},
    ],
)
async def test_a_stream_that_is_not_the_messages_api_is_named_so_and_retried(other: dict[str, Any]) -> None:
    with pytest.raises(ApplicationError, match="is not the Messages API: ") as failure:
        await read_events(**other)
    assert (failure.value.type, failure.value.non_retryable) == ("ModelUnavailable", False)


AGAIN: dict[str, dict[str, Any]] = {
    "message_start": {"type": "message_start", "message": {"model": None, "usage": None}},
    "message_delta": {"type": "message_delta", "delta": {"stop_reason": None}, "usage": None},
    "message_delta without fields": {"type": "message_delta", "delta": {}, "usage": {}},
    "text_delta": EVENTS["more"] | {"delta": {"type": "text_delta", "text": None}},
    "thinking_delta": EVENTS["more"] | {"delta": {"type": "thinking_delta", "thinking": None}},
    "input_json_delta": EVENTS["more"] | {"delta": {"type": "input_json_delta", "partial_json": None}},
    "citations_delta": EVENTS["more"] | {"delta": {"type": "citations_delta", "citation": None}},
}


@pytest.mark.parametrize(
    ("again", "kind"),
    [
        pytest.param(again, kind, id=f"{name}, {kind}")
        for name, again in AGAIN.items()
        for kind, other in (("text", "thinking_delta"), ("thinking", "text_delta"))
        if name != other
    ],
)
async def test_a_null_of_a_later_event_undoes_nothing(again: dict[str, Any], kind: str) -> None:
    block = EVENTS["block"] | {"content_block": {"type": kind, kind: "", "signature": ""}}
    more = EVENTS["more"] | {"delta": {"type": f"{kind}_delta", kind: "hi"}}
    signed = EVENTS["more"] | {"delta": {"type": "signature_delta", "signature": "s"}}
    unsigned = EVENTS["more"] | {"delta": {"type": "signature_delta", "signature": None}}
    extra = (signed, unsigned) if kind == "thinking" else ()
    sent = [EVENTS["start"], block, more, *extra, again, EVENTS["end"], again]
    reply = await read_stream(encode_events(*((event["type"], event) for event in sent)))
    assert reply.content[0][kind] == "hi"
    assert kind == "text" or reply.content[0]["signature"] == "s"
    assert (reply.stop_reason, reply.model, reply.usage.input, reply.usage.output) == ("end_turn", "m", 5, 3)


async def test_half_a_surrogate_pair_becomes_a_replacement_character_and_a_torn_pair_its_character() -> None:
    halves = [
        EVENTS["more"] | {"delta": {"type": "text_delta", "text": text}} for text in ("a\ud83d", "\ude00", "\udc00b")
    ]
    sent = [EVENTS["start"], EVENTS["block"], *halves, EVENTS["end"]]
    reply = await read_stream(encode_events(*((event["type"], event) for event in sent)))
    assert reply.content == [{"type": "text", "text": "a😀\ufffdb"}]


WHOLE = {"type": "message", "model": "m", "stop_reason": "end_turn", "content": [{"type": "text", "text": "hi"}]}


async def test_a_whole_message_is_a_reply_where_a_server_does_not_stream() -> None:
    body = WHOLE | {"usage": {"input_tokens": 5, "output_tokens": 3}}
    reply = await read_stream(json.dumps(body).encode(), "application/json; charset=utf-8")
    assert (reply.content, reply.stop_reason, reply.usage.total) == (WHOLE["content"], "end_turn", 8)


JSON = "application/json"


@pytest.mark.parametrize(
    ("content_type", "body", "named", "words"),
    [
        (JSON, {"error": {"type": "authentication_error", "message": "no key"}}, "ModelRefused", "no key"),
        (JSON, {"error": {"message": "invalid api key"}}, "ModelRefused", "invalid api key"),
        (JSON, {"error": "model not loaded"}, "ModelRefused", "model not loaded"),
        ("application/problem+json", {"detail": "forbidden"}, "ModelRefused", "forbidden"),
        (JSON, {"error": {"type": "overloaded_error", "message": "busy"}}, "ModelUnavailable", "busy"),
        (JSON, {"error": {"type": "rate_limit_error", "message": "slow"}}, "RateLimited", "slow"),
        (JSON, [1], "ModelRefused", "[1]"),
        ("text/html", "<title>Sign in &amp; go</title><p>x", "ModelRefused", "text/html and no reply: Sign in & go"),
        ("text/plain", "", "ModelRefused", "an empty body"),
    ],
)
async def test_an_answer_that_is_no_stream_is_reported_in_its_own_words(
    content_type: str, body: Any, named: str, words: str
) -> None:
    said = body if isinstance(body, str) else json.dumps({"type": "error", **body} if isinstance(body, dict) else body)
    with pytest.raises(ApplicationError) as failure:
        await read_stream(said.encode(), content_type)
    assert (failure.value.type, failure.value.non_retryable) == (named, named == "ModelRefused")
    assert words in failure.value.message


async def test_bytes_that_are_no_text_are_not_the_messages_api() -> None:
    with pytest.raises(ApplicationError, match="is not the Messages API: UnicodeDecodeError"):
        await read_stream(b"event: ping\ndata: \xff\xfe\n\n")


@pytest.mark.parametrize(
    ("said", "made", "given", "broken"),
    [
        ({"id": None}, "call_0", {}, ()),
        ({"id": 7}, "7", {}, ()),
        ({"id": "a", "input": [1]}, "a", {}, ("a",)),
        ({"id": "a", "input": '{"n": 1}'}, "a", {"n": 1}, ()),
    ],
)
async def test_a_tool_use_is_taken_however_its_id_and_its_arguments_are_written(
    said: dict[str, Any], made: str, given: dict[str, Any], broken: tuple[str, ...]
) -> None:
    reply = await read_events(block=tool_use(name="look", **said), more=None)
    assert [(block["id"], block["input"]) for block in reply.content] == [(made, given)]
    assert reply.broken == broken


async def read_stream(stream: bytes, content_type: str = "text/event-stream") -> ModelReply:
    """What is read of these bytes."""
    response = httpx2.Response(200, headers={"content-type": content_type}, content=stream)
    transport = httpx2.MockTransport(lambda _: response)
    http = httpx2.AsyncClient(transport=transport)
    async with AsyncAnthropic(api_key=KEY, base_url="http://model", max_retries=0, http_client=http) as client:
        return await MessagesModel(client).reply(ModelCall(definition=DEFINITION, messages=GOAL))


@pytest.mark.parametrize("script", [[says("")]])
async def test_an_empty_reply_has_no_blocks(server: ScriptedModel) -> None:
    assert (await ask(server)).content == []


@pytest.mark.parametrize(
    ("script", "kind", "final"),
    [
        ([fails(400)], "ModelRefused", True),
        ([fails(401)], "ModelRefused", True),
        ([fails(403)], "ModelRefused", True),
        ([fails(404)], "ModelRefused", True),
        ([fails(413)], "ModelRefused", True),
        ([fails(400, message="prompt is too long: 9 > 8")], "ContextTooLong", True),
        (
            [fails(400, message="input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, …")],
            "ContextTooLong",
            True,
        ),
        ([fails(400, message="request exceeds the available context length")], "ContextTooLong", True),
        ([fails(429)], "RateLimited", False),
        ([fails(500)], "ModelUnavailable", False),
        ([fails(502)], "ModelUnavailable", False),
        ([fails(503)], "ModelUnavailable", False),
        ([fails(504)], "ModelUnavailable", False),
        ([fails(529)], "ModelUnavailable", False),
        ([cut(says("x"))], "ModelUnavailable", False),
        ([cut(says("x"), error="overloaded_error")], "ModelUnavailable", False),
        ([cut(says("x"), error="rate_limit_error")], "RateLimited", False),
        ([cut(says("x"), error="api_error")], "ModelUnavailable", False),
        *[([cut(says("x"), error=kind)], "ModelRefused", True) for kind in (*REQUEST_KINDS, *CALLER_KINDS)],
        ([fails(413, message="input is too long")], "ContextTooLong", True),
        ([fails(422, message="exceed_context_size_error: n_ctx=8192")], "ContextTooLong", True),
        ([fails(401, message="the key is none for the 1M context window")], "ModelRefused", True),
        ([fails(429, message="fewer tokens, or a smaller context window, per minute")], "RateLimited", False),
        ([fails(500, message="the context window could not be loaded")], "ModelUnavailable", False),
    ],
)
async def test_each_fault_has_its_name_and_says_whether_to_try_again(
    server: ScriptedModel, kind: str, final: bool
) -> None:
    failure = await failure_of(server)
    assert (failure.type, failure.non_retryable) == (kind, final)


@pytest.mark.parametrize("script", [[cut(says("x"), error="api_error")]])
async def test_a_stream_that_fails_in_the_middle_leaves_no_reader_of_the_connection(server: ScriptedModel) -> None:
    readers: dict[str, ReferenceType[Any]] = {}
    before: Any = sys.get_asyncgen_hooks()

    def note(reader: Any) -> None:
        readers[f"{reader.__qualname__}"] = ref(reader)
        before.firstiter(reader)

    sys.set_asyncgen_hooks(firstiter=note)
    failure = await failure_of(server)  # held, as is the traceback of what caused it
    sys.set_asyncgen_hooks(firstiter=before.firstiter)
    network = [reader for name, reader in readers.items() if "Bound" in name or "ResponseStream" in name]
    assert len(network) == 2, sorted(readers)
    assert [reader for reader in network if (left := reader()) and left.ag_frame] == []
    assert failure.type == "ModelUnavailable"


@pytest.mark.parametrize(
    ("script", "least", "most"),
    [
        ([fails(429, retry_after=7)], 7.0, 7.7),
        ([fails(503, retry_after=3)], 3.0, 3.3),
        ([fails(429, retry_after=86_400)], 60.0, 66.0),
        ([fails(429, retry_after=-5)], 0.0, 0.0),
    ],
)
async def test_the_delay_that_the_server_asks_for_is_kept_capped_and_spread(
    server: ScriptedModel, least: float, most: float
) -> None:
    delay = (await failure_of(server)).next_retry_delay
    assert delay is not None
    assert least <= delay.total_seconds() <= most


@pytest.mark.parametrize(
    "script", [[fails(429, retry_after=float("nan"))], [fails(429, retry_after=float("inf"))], [fails(429)]]
)
async def test_without_a_usable_delay_the_policy_decides(server: ScriptedModel) -> None:
    assert (await failure_of(server)).next_retry_delay is None


def test_a_provider_may_name_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    answer = httpx2.Response(429, headers={"retry-after": date}, request=httpx2.Request("POST", "http://provider.test"))
    delay = to_model_failure(anthropic.RateLimitError("slow down", response=answer, body=None)).next_retry_delay
    assert delay is not None
    assert 20 < delay.total_seconds() < 45


async def test_no_connection_may_pass() -> None:
    with ScriptedModel([]) as gone:
        pass
    failure = await failure_of(gone)
    assert (failure.type, failure.non_retryable) == ("ModelUnavailable", False)


async def test_a_name_that_does_not_resolve_may_pass(server: ScriptedModel) -> None:
    server.base_url = "http://no-such-provider.invalid"
    failure = await failure_of(server)
    assert (failure.type, failure.non_retryable) == ("ModelUnavailable", False)


async def test_a_connection_that_is_reset_may_pass(server: ScriptedModel) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    listener = await asyncio.start_server(reset, "127.0.0.1", 0)
    server.base_url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        failure = await failure_of(server)
    assert (failure.type, failure.non_retryable) == ("ModelUnavailable", False)


@pytest.mark.parametrize("script", [[fails(401, message=f"bad key {KEY}")], [fails(500, message=f"{KEY} {KEY}")]])
async def test_a_key_that_a_server_repeats_is_taken_out(server: ScriptedModel) -> None:
    failure = await failure_of(server)
    assert KEY not in failure.message
    assert "[key]" in failure.message


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("invalid_request_error", "ContextTooLong"),
        ("request_too_large", "ContextTooLong"),
        ("exceed_context_size_error", "ContextTooLong"),
        ("authentication_error", "ModelRefused"),
        ("rate_limit_error", "RateLimited"),
        ("overloaded_error", "ModelUnavailable"),
    ],
)
async def test_in_the_middle_of_a_stream_a_name_says_whether_a_prompt_may_be_too_long(kind: str, named: str) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "see the context window"}}
    with pytest.raises(ApplicationError) as failure:
        await read_stream(encode_events(("error", error)))
    assert failure.value.type == named


@pytest.mark.parametrize("key", ["sk-canary\n51", "sk-canary\x0051"])
async def test_a_key_that_is_no_header_is_refused_and_never_shown(key: str) -> None:
    with ScriptedModel([says("hello")]) as model:
        async with AsyncAnthropic(api_key=key, base_url=model.base_url, max_retries=0) as client:
            with pytest.raises(ApplicationError) as failure:
                await MessagesModel(client).reply(ModelCall(definition=DEFINITION, messages=GOAL))
    assert (failure.value.type, failure.value.non_retryable) == ("ModelRefused", True)
    assert "canary" not in str(failure.value)


REFUSALS = (301, 304, 402, 405, 406, 407, 410, 411, 414, 415, 418, 426, 431, 451, 501, 505)


@pytest.mark.parametrize(
    ("status", "named"),
    [
        *((status, "ModelRefused") for status in REFUSALS),
        *((status, "ModelUnavailable") for status in (408, 409, 425, 500, 507, 529)),
        (429, "RateLimited"),
    ],
)
def test_a_status_decides_whatever_the_body_says(status: int, named: str) -> None:
    response = httpx2.Response(status, request=httpx2.Request("POST", "http://127.0.0.1/"))
    for kind in ("api_error", "invalid_request_error"):
        body = {"type": "error", "error": {"type": kind, "message": "no"}}
        failure = to_model_failure(anthropic.APIStatusError("no", response=response, body=body))
        assert (failure.type, failure.non_retryable) == (named, named == "ModelRefused")


def test_an_error_without_a_body_is_named_too() -> None:
    request = httpx2.Request("POST", "http://127.0.0.1/")
    response = httpx2.Response(502, request=request, text="<html>bad gateway</html>")
    failure = to_model_failure(anthropic.InternalServerError("bad gateway", response=response, body=None))
    assert (failure.type, failure.message) == ("ModelUnavailable", "the provider failed (502): bad gateway")


@pytest.mark.parametrize(
    "written",
    [
        "[1]",
        '"x"',
        "5",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        "{} {}",
        "{}],[{}",
        '{"a": 1, "a": 2}',
        '{"a": [{"b": 1, "b": 1}]}',
    ],
)
def test_arguments_that_history_cannot_hold_are_refused(written: str) -> None:
    with pytest.raises(ValueError):
        read_arguments(written)


@pytest.mark.parametrize("depth", [190, 300, 10_000, 1_000_000])
def test_arguments_nested_too_deep_are_refused_without_a_crash(depth: int) -> None:
    with pytest.raises(ValueError):
        read_arguments('{"a":' * depth + "1" + "}" * depth)


def test_arguments_that_are_an_object_in_a_text_are_read() -> None:
    assert read_arguments(json.dumps('{"a": [1], "b": "{}"}')) == {"a": [1], "b": "{}"}
    for written in ("plain", "[1]", '{"a": 1, "a": 2}', json.dumps('{"a": 1}'), '{"a":' * 200 + "1" + "}" * 200):
        with pytest.raises(ValueError):
            read_arguments(json.dumps(written))


def test_ordinary_arguments_are_read_as_they_were_written() -> None:
    assert read_arguments(r'{"a": "\ud800 \ud83d\ude00 \\ud800"}') == {"a": "\ufffd 😀 \\ud800"}
    written = '{"b": [1, 2.5, null, true], "a": "ü \\u00fc", "n": 123456789012345678901234567890}'
    assert read_arguments(written) == {"b": [1, 2.5, None, True], "a": "ü ü", "n": 123456789012345678901234567890}


@pytest.mark.parametrize(
    ("message", "window"),
    [
        ("prompt is too long: 210000 tokens > 200,000 maximum", 200_000),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease …", 200_000),
        ("This model's maximum context length is 4096 tokens. However, you requested 5000", 4096),
        ("request (5000 tokens) exceeds the available context size (4096 tokens)", 4096),
        ("exceed_context_size_error: n_prompt_tokens=9000, n_ctx=8192", 8192),
        ("Requested tokens (9000) exceed context window of 8192", 8192),
        ("The input token count (32770) exceeds the maximum number of tokens allowed (32768).", 32_768),
        ("Input is too long for requested model.", None),
        ("the context length is ,,,, tokens", None),
    ],
)
def test_providers_say_in_many_words_that_a_prompt_is_too_long(message: str, window: int | None) -> None:
    assert any(sign in message.lower() for sign in TOO_LONG_PHRASES)
    assert parse_window(message) == window


@pytest.mark.parametrize(
    ("message", "asked", "room"),
    [
        ("context length is 8192 tokens, 9515 are requested (1323 in messages, 8192 in completion)", 8192, 6869),
        ("input length and `max_tokens` exceed context limit: 1200 + 8192 > 8000, decrease …", 8192, 6800),
        (
            "'max_tokens' is 6000. The context length is 8192, 3000 are used (6000 > 8192 - 3000).",
            6000,
            5192,
        ),
        ("context length is 2048 tokens. Your request has 8 input tokens plus 2045 (value=(8, 2045))", 2045, 2040),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1323 tokens and 8,192 more", 8192, 2773),
        ("max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for m-4-0613", 8192, 4096),
        ("max_tokens is too large: 8192. This model supports at most 4096 completion tokens", 8192, 4096),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 4096]", 8192, 4095),
        ("prompt is too long: 215000 tokens > 200000 maximum", 8192, None),
        ("context length is 8192 tokens, 17000 are requested (8808 in messages, 8192 in completion)", 8192, None),
        ("context length is 8192 tokens, 15884 are requested (7692 in messages, 8192 in completion)", 8192, None),
        ("'max_tokens' is too large: 8192. The context length is 8192 tokens, and the input has 9000", 8192, None),
        ("max_tokens must be a number", 8192, None),
    ],
)
def test_providers_say_in_many_words_how_long_a_reply_can_be(message: str, asked: int, room: int | None) -> None:
    assert parse_reply_room(message, asked) == room


@pytest.mark.parametrize(
    "ways",
    [Ways(names_events=False), Ways(end=""), Ways(end="tool_calls", has_last_event=False), Ways(window=1200)],
    ids=repr,
)
async def test_a_reply_is_the_same_in_each_way_that_servers_have(ways: Ways) -> None:
    options = ModelOptions(max_tokens=1200)
    with ScriptedModel([calls(("look", {"at": "x" * 60}), text="on")], ways=ways) as model:
        reply = await ask(model, definition=DEFINITION.evolve(options=options))
    assert [block.get("text") or block["input"] for block in reply.content] == ["on", {"at": "x" * 60}]
    assert (reply.stop_reason, reply.broken) == ("tool_use", ())


async def test_a_reply_is_as_long_as_the_window_leaves_room_for(server: ScriptedModel) -> None:
    def answer(body: Any) -> Any:
        asked = body["max_tokens"]
        message = f"input length and `max_tokens` exceed context limit: 1200 + {asked} > 8000"
        return fails(400, message=message) if asked > 6800 else says("hello")

    with ScriptedModel(answer) as model:
        options = ModelOptions(max_tokens=8192)
        assert (await ask(model, definition=DEFINITION.evolve(options=options))).content
        assert [body["max_tokens"] for body in model.requests] == [8192, 6800]
        thinks = ModelOptions(max_tokens=8192, thinking=7000)
        with pytest.raises(ApplicationError) as failure:  # the rest is no longer than the thinking
            await ask(model, definition=DEFINITION.evolve(options=thinks))
    assert failure.value.type == "ContextTooLong"


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "of another model"}


def with_thinking(*more: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        *GOAL,
        {"role": "assistant", "content": [THOUGHT]},
        *GOAL,
        {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "so"}]},
        *GOAL,
        *more,
    ]


def refuse_if(message: str, refuses: Callable[[Any], bool]) -> Callable[[Any], Any]:
    return lambda body: fails(400, message=message) if refuses(body) else says("hello")


def has_thoughts(body: Any) -> bool:
    return any(block["type"] == "thinking" for message in body["messages"] for block in message["content"])


@pytest.mark.parametrize(
    "script", [refuse_if("messages.1.content.0: Invalid `signature` in `thinking` block", has_thoughts)]
)
@pytest.mark.parametrize("force", [None, "look"])
async def test_the_thinking_of_another_model_is_left_out_where_a_provider_refuses_it(
    server: ScriptedModel, force: str | None
) -> None:
    reply = await ask(server, messages=with_thinking(), force=force)
    assert reply.content == [{"type": "text", "text": "hello"}]
    first, second = server.requests
    assert has_thoughts(first)
    assert [block["type"] for message in second["messages"] for block in message["content"]] == ["text"] * 4
    assert first.get("tool_choice") == second.get("tool_choice")


@pytest.mark.parametrize("script", [refuse_if("thinking may not be enabled when tool_choice forces", lambda _: True)])
async def test_what_can_be_left_out_is_left_out_once_and_then_the_refusal_stands(server: ScriptedModel) -> None:
    with pytest.raises(ApplicationError, match="thinking may not"):
        await ask(server, messages=with_thinking(), force="look")
    assert [("tool_choice" in body, has_thoughts(body)) for body in server.requests] == [
        (True, True),
        (False, True),
        (False, False),
    ]


@pytest.mark.parametrize("script", [refuse_if("messages.1: `thinking` is not for us", has_thoughts)])
async def test_thinking_is_kept_if_no_provider_refuses_it(server: ScriptedModel) -> None:
    assert (await ask(server)).content == [{"type": "text", "text": "hello"}]
    assert len(server.requests) == 1


async def test_an_id_that_other_providers_would_refuse_is_made_one_that_all_take(
    server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = model_server._message

    def odd(reply: Any, body: Any, turn: int) -> Any:
        message = original(reply, body, turn)
        for block, name in zip(message["content"], ("call.1:a", "call_1_a", "", "x_5", "x", "x"), strict=True):
            block["id"] = name
        return message

    monkeypatch.setattr(model_server, "_message", odd)
    server._script = [calls(*[("look", {})] * 6)]
    reply = await ask(server)
    assert [block["id"] for block in reply.content] == ["call_1_a", "call_1_a_1", "call_2", "x_5", "x", "x_5_"]
