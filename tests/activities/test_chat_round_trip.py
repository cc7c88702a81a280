"""A conversation crosses to the Chat Completions API and back: what goes in comes out, or is refused with its place."""

import asyncio
import json
from itertools import groupby
from operator import itemgetter
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.openai import ERROR_PREFIX, ChatModel, to_chat_messages
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.contracts.agent import Definition
from perdure.testkit.chat_completions import encode_chunks, read_chat_request
from perdure.testkit.ways import USUAL_WAYS

Json = dict[str, Any]
SOME = settings(max_examples=60)

DEFINITION = Definition(agent="a", model="scripted", system="You are tested.", tools=())
USAGE = {"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": 0}

texts = st.text(max_size=20).filter(lambda text: not text.startswith(ERROR_PREFIX))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=3))
arguments = st.dictionaries(st.text(max_size=9), values, max_size=3)
text_blocks = st.builds(lambda text: {"type": "text", "text": text}, texts)
pictures = st.builds(
    lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    st.text("abcd0123+/=", max_size=9),
)
linked = st.builds(lambda name: {"type": "image", "source": {"type": "url", "url": f"http://x/{name}"}}, st.text())
thoughts = st.sampled_from(
    [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]
)
uses = st.builds(
    lambda name, value: {"type": "tool_use", "id": "", "name": name, "input": value},
    st.text("abcz_-09", min_size=1, max_size=9),
    arguments,
)
contents = texts | st.lists(text_blocks | pictures, max_size=3) | st.none()
UNKNOWN = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """A conversation that the Messages API accepts, with ids of any shape."""
    ids = iter(draw(st.lists(st.text(), min_size=24, max_size=24, unique=True)))
    messages = [{"role": "user", "content": draw(st.lists(text_blocks | pictures | linked, min_size=1, max_size=3))}]
    for _ in range(draw(st.integers(0, 4))):
        reply = [dict(block) for block in draw(st.lists(text_blocks | uses | thoughts, min_size=1, max_size=5))]
        results = []
        for block in reply:
            if block["type"] == "tool_use":
                block["id"] = next(ids)
                results.append(draw_result(draw, block["id"]))
        more = draw(st.lists(text_blocks | pictures, min_size=0 if results else 1, max_size=2))
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": [*results, *more]}]
    return messages


def draw_result(draw: st.DrawFn, use: str) -> Json:
    result: Json = {"type": "tool_result", "tool_use_id": use}
    if (content := draw(contents)) is not None:
        result["content"] = content
    return result | ({"is_error": True} if draw(st.booleans()) else {})


def normalize(messages: list[Json]) -> list[Json]:
    """Apply what the wire changes: no thinking, texts before calls, images after results, and other ids."""
    numbers: dict[str, int] = {}
    turns = [{"role": message["role"], "content": order_blocks(message, numbers)} for message in messages]
    return join_turns(turns)


def order_blocks(message: Json, numbers: dict[str, int]) -> list[Json]:
    first: list[Json] = []
    last: list[Json] = []
    for block in message["content"]:
        match block:
            case {"type": "thinking" | "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": name}:
                last.append({**block, "id": numbers.setdefault(name, len(numbers))})
            case {"type": "tool_result", "tool_use_id": name}:
                content = block.get("content", "")
                parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
                said = [part for part in parts if part["type"] == "text"] or [{"type": "text", "text": ""}]
                result = {**block, "tool_use_id": numbers.setdefault(name, len(numbers))}
                first.append(result | {"content": said[0]["text"] if len(said) == 1 else said})
                last += [part for part in parts if part["type"] != "text"]
            case _:
                (first if message["role"] == "assistant" else last).append(block)
    return [*first, *last]


def join_turns(messages: list[Json]) -> list[Json]:
    spoken = (message for message in messages if message["content"])
    turns = groupby(spoken, key=itemgetter("role"))
    return [{"role": role, "content": [b for part in turn for b in part["content"]]} for role, turn in turns]


@SOME
@given(conversations())
def test_a_conversation_comes_out_of_the_wire_as_it_went_in(messages: list[Json]) -> None:
    chat = json.loads(json.dumps(to_chat_messages(messages)))
    assert normalize(read_chat_request({"messages": chat})["messages"]) == normalize(messages)


@SOME
@given(conversations(), st.data())
def test_a_block_without_a_form_is_refused_with_its_place(messages: list[Json], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(messages) - 1))
    content = [*messages[at]["content"]]
    place = data.draw(st.integers(0, len(content)))
    content.insert(place, UNKNOWN)
    changed = [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]
    with pytest.raises(ApplicationError, match=rf"^ModelRefused: messages\.{at}\.content\.{place}: "):
        to_chat_messages(changed)


class Echo:
    """A server that repeats the last reply of the conversation, in pieces."""

    def __init__(self) -> None:
        self.piece = 1  # characters in a delta
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer))
        self.client = AsyncOpenAI(api_key="none", base_url="http://model/v1", max_retries=0, http_client=http)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = read_chat_request(json.loads(request.content))
        content = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "assistant")
        message = {"id": "m", "model": "m", "content": content, "stop_reason": "tool_use", "usage": USAGE}
        stream = b"".join(encode_chunks(message, USUAL_WAYS, self.piece))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    async def ask(self, messages: list[Json]) -> ModelReply:
        return await ChatModel(self.client).reply(ModelCall(definition=DEFINITION, messages=messages))


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@SOME
@given(content=st.lists(text_blocks | uses, min_size=1, max_size=6), piece=st.integers(1, 30))
def test_a_reply_that_a_server_repeats_comes_back_as_it_was(echo: Echo, content: list[Json], piece: int) -> None:
    echo.piece = piece
    named = [block | ({"id": f"toolu {at}"} if block["type"] == "tool_use" else {}) for at, block in enumerate(content)]
    calls = [block for block in named if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "ok"} for call in calls]
    goal = {"role": "user", "content": [{"type": "text", "text": "see"}]}
    tail = {"role": "user", "content": [*results, *goal["content"]]}
    reply = asyncio.run(echo.ask([goal, {"role": "assistant", "content": named}, tail]))
    said = "".join(block["text"] for block in named if block["type"] == "text")
    texts_ = [{"type": "text", "text": said}] if said.strip() else []
    assert reply.content == [*texts_, *({**call, "id": f"call{at:05d}"} for at, call in enumerate(calls))]
    assert reply.broken == ()
