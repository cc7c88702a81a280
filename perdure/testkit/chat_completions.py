"""The Chat Completions API on the scripted server: requests in the Messages API's form, replies as chunks."""

import json
from collections.abc import Iterator
from itertools import zip_longest

from perdure.testkit.rehearsal.sse import Json
from perdure.testkit.ways import Ways

ERROR_PREFIX = "Error: "  # of a tool message that reports an error
FINISH_REASONS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
MAX_CALL_ID = 40  # characters, as OpenAI has it


def read_chat_request(body: Json) -> Json:
    """Return the request in the Messages API's form. Raises ValueError if it is not one."""
    request: Json = {"model": body.get("model"), "stream": body.get("stream", False)}
    request["max_tokens"] = body.get("max_completion_tokens", body.get("max_tokens", 4096))
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages: a list of objects is required")
    front = [message for message in messages if message.get("role") in ("system", "developer")]
    request["system"] = [block for message in front for block in _to_blocks(message.get("content"))]
    request["messages"] = []
    for message in messages:
        _add_message(request["messages"], message)
    if "tools" in body:
        functions = [tool["function"] for tool in body["tools"]]
        request["tools"] = [
            {"name": tool["name"], "description": tool.get("description", ""), "input_schema": tool["parameters"]}
            for tool in functions
        ]
    if choice := body.get("tool_choice"):
        words = {"none": "none", "required": "any", "auto": "auto"}
        is_word = isinstance(choice, str)
        request["tool_choice"] = (
            {"type": words[choice]} if is_word else {"type": "tool", "name": choice["function"]["name"]}
        )
    return request


def _add_message(messages: list[Json], message: Json) -> None:
    match message:
        case {"role": "system" | "developer"}:
            pass
        case {"role": "assistant"}:
            uses = [_to_tool_use(call) for call in message.get("tool_calls") or ()]
            content = _to_blocks(message.get("content"))
            if not uses and message.get("content") is None:
                raise ValueError("an assistant's message needs content or tool_calls")
            messages.append({"role": "assistant", "content": [*content, *uses]})
        case {"role": "tool", "tool_call_id": str(call)}:
            _add_input(messages, [_to_tool_result(call, _to_blocks(message.get("content")))])
        case {"role": "user"}:
            _add_input(messages, _to_blocks(message.get("content")))
        case _:
            raise ValueError(f"a message of role {message.get('role')!r} is not valid")


def _add_input(messages: list[Json], blocks: list[Json]) -> None:
    """Add blocks to the user's message, which begins with the results of tools."""
    last = messages[-1] if messages else None
    if last and last["role"] == "user" and last["content"][-1]["type"] == "tool_result":
        last["content"] += blocks
    else:
        messages.append({"role": "user", "content": blocks})


def _to_tool_use(call: Json) -> Json:
    if len(call["id"]) > MAX_CALL_ID:
        raise ValueError(f"tool_calls: the id is longer than {MAX_CALL_ID}")
    function = call["function"]
    return {
        "type": "tool_use",
        "id": call["id"],
        "name": function["name"],
        "input": json.loads(function["arguments"]),
    }


def _to_tool_result(call: str, blocks: list[Json]) -> Json:
    result: Json = {"type": "tool_result", "tool_use_id": call, "content": blocks}
    if blocks and blocks[0]["text"].startswith(ERROR_PREFIX):
        blocks[0]["text"] = blocks[0]["text"].removeprefix(ERROR_PREFIX)
        result["is_error"] = True
    if len(blocks) == 1:
        result["content"] = blocks[0]["text"]
    return result


def _to_blocks(content: str | list[Json] | None) -> list[Json]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return [_to_block(part) for part in parts]


def _to_block(part: Json) -> Json:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}} if url.startswith("data:"):
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
        case {"type": "file", "file": {"filename": str(name), "file_data": str(url)}}:
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            return {"type": "document", "title": name, "source": {"type": "base64", "media_type": kind, "data": data}}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "image", "source": {"type": "url", "url": url}}
        case _:
            raise ValueError(f"a part of type {part.get('type')!r} is not valid")


def chat_error_body(type_: str, message: str) -> Json:
    return {"error": {"type": type_, "message": message, "code": None, "param": None}}


def encode_data(data: Json) -> bytes:
    """Encode one server-sent event without a name."""
    return f"data: {json.dumps(data)}\n\n".encode()


def build_completion(message: Json) -> Json:
    """Return a message of the Messages API as a completion."""
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}
        for call, arguments in _calls_of(message)
    ]
    answer: Json = {"role": "assistant", "content": _text_of(message), "refusal": None}
    answer |= {"tool_calls": calls} if calls else {}
    choice = {"index": 0, "message": answer, "finish_reason": _finish_reason(message)}
    return {**_frame(message, "chat.completion"), "choices": [choice], "usage": _usage_of(message)}


def encode_chunks(message: Json, ways: Ways, piece: int = 24) -> Iterator[bytes]:
    """Yield the events of one complete reply, with `piece` characters in a delta. Pieces of its calls alternate."""
    for delta in _deltas_of(message, ways, piece):
        yield _encode_chunk(message, [{"index": 0, "delta": delta, "finish_reason": None}])
    yield _encode_chunk(message, [{"index": 0, "delta": {}, "finish_reason": ways.name_end(_finish_reason(message))}])
    yield _encode_chunk(message, [], usage=_usage_of(message))
    if ways.has_last_event:
        yield b"data: [DONE]\n\n"


def _deltas_of(message: Json, ways: Ways, piece: int) -> Iterator[Json]:
    yield {"role": "assistant", "content": None}
    thinking = "".join(block["thinking"] for block in message["content"] if block["type"] == "thinking")
    text = _text_of(message) or ""
    if ways.thinking == "tags" and thinking:
        thinking, text = "", f"<think>\n{thinking}\n</think>\n\n{text}"
    for kind, whole in (("thinking", thinking), ("text", text)):
        for at in range(0, len(whole), piece):
            yield _text_delta(kind, whole[at : at + piece], ways)
    yield from ({"tool_calls": [part]} for part in _pieces_of(_calls_of(message), ways, piece))


def _text_delta(kind: str, text: str, ways: Ways) -> Json:
    if ways.thinking == "parts":
        inner = [{"type": "text", "text": text}]
        return {"content": [{"type": "thinking", "thinking": inner}] if kind == "thinking" else inner}
    return {"reasoning_content" if kind == "thinking" else "content": text}


def _pieces_of(calls: list[tuple[Json, str]], ways: Ways, piece: int) -> Iterator[Json]:
    """Yield the pieces of the calls, by turns if each has its own index or id."""
    streams = []
    for number, (call, arguments) in enumerate(calls):
        texts = ["", *(arguments[at : at + piece] for at in range(0, len(arguments), piece))]
        streams.append([ways.write_piece(number, call, at, text) for at, text in enumerate(texts)])
    rounds = zip_longest(*streams) if ways.tells_calls_apart else streams
    yield from (part for round_ in rounds for part in round_ if part)


def _encode_chunk(message: Json, choices: list[Json], **fields: Json) -> bytes:
    return encode_data({**_frame(message, "chat.completion.chunk"), "choices": choices, **fields})


def _frame(message: Json, kind: str) -> Json:
    return {"id": f"chatcmpl-{message['id']}", "object": kind, "created": 0, "model": message["model"]}


def _calls_of(message: Json) -> list[tuple[Json, str]]:
    """Return the calls, each with its arguments as they are written."""
    uses = (block for block in message["content"] if block["type"] == "tool_use")
    return [(use, use["input"] if isinstance(use["input"], str) else json.dumps(use["input"])) for use in uses]


def _text_of(message: Json) -> str | None:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text") or None


def _finish_reason(message: Json) -> str:
    reason: str = message["stop_reason"]
    return FINISH_REASONS.get(reason, reason)


def _usage_of(message: Json) -> Json:
    usage = message["usage"]
    prompt, cached = usage["input_tokens"], usage["cache_read_input_tokens"]
    total = {"prompt_tokens": prompt + cached, "completion_tokens": usage["output_tokens"]}
    return {
        **total,
        "total_tokens": sum(total.values()),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
