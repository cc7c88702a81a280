"""The server side of the Messages API: validation of requests, replies, and their streamed events."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from perdure.decisions.tools import api_rejection

Json = dict[str, Any]

TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass(frozen=True)
class DemoReply:
    """A model's text and tool calls. A call's input is a dict, or a string that is streamed unchanged.

    `blocks` are other blocks, before both, and `usage` has figures beside the tokens. Without a `stop_reason` it is
    `tool_use` if a tool is called, else `end_turn`.
    """

    text: str = ""
    calls: tuple[tuple[str, Json | str], ...] = ()
    stop_reason: str | None = None
    blocks: tuple[Json, ...] = ()
    usage: Json = field(default_factory=dict)


def build_message(reply: DemoReply, body: Json, model: str, tool_use: str) -> Json:
    """Return the message that answers the request. `tool_use` is the start of the ids of its calls."""
    content = [*reply.blocks, *([{"type": "text", "text": reply.text}] if reply.text else [])]
    content += [
        {"type": "tool_use", "id": f"{tool_use}_{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(reply.calls)
    ]
    return {
        "id": f"msg_{digest_of(body['messages'])}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reply.stop_reason or ("tool_use" if reply.calls else "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": estimate_tokens(body),
            "output_tokens": estimate_tokens(content),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            **reply.usage,
        },
    }


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def error_body(type_: str, message: str) -> Json:
    """Return an error as JSON, for a body or the data of an `error` event."""
    return {"type": "error", "error": {"type": type_, "message": message}}


def encode_event(data: Json) -> bytes:
    """Encode one server-sent event, named by the `type` of its data."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def encode_stream(message: Json, piece: int = 24) -> Iterator[bytes]:
    """Yield the events of one complete reply, with `piece` characters in a delta.

    A `tool_use` whose `input` is a string streams that string as it is, for tests of broken arguments.
    """
    usage = message["usage"]
    opening = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield encode_event({"type": "message_start", "message": opening})
    for index, block in enumerate(message["content"]):
        start, deltas = _block_events(block, piece)
        yield encode_event({"type": "content_block_start", "index": index, "content_block": start})
        if index == 0:
            yield encode_event({"type": "ping"})
        for delta in deltas:
            yield encode_event({"type": "content_block_delta", "index": index, "delta": delta})
        yield encode_event({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": message.get("stop_sequence")}
    yield encode_event({"type": "message_delta", "delta": ending, "usage": usage})
    yield encode_event({"type": "message_stop"})


def _block_events(block: Json, piece: int) -> tuple[Json, list[Json]]:
    """Return the block as it starts, and the deltas that fill it."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": part} for part in _split_pieces(block["text"], piece)]
            cited = block.get("citations", [])
            deltas += [{"type": "citations_delta", "citation": citation} for citation in cited]
            return {**block, "text": "", **({"citations": []} if cited else {})}, deltas
        case "tool_use" | "server_tool_use":
            raw = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            parts = ["", *_split_pieces(raw, piece)]  # the real stream opens with an empty piece
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": part} for part in _split_pieces(block["thinking"], piece)]
            signed = {"type": "signature_delta", "signature": block.get("signature", "")}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
        case _:
            return block, []


def _split_pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def request_error(body: Any) -> str | None:
    """Return the reason, if any, why the API would reject this request with 400."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    if error := _field_error(body):
        return error
    errors = (_message_error(at, message) for at, message in enumerate(body["messages"]))
    return next(filter(None, errors), None) or _pairing_error(body["messages"])


def _field_error(body: Json) -> str | None:
    tools = body.get("tools") or []
    named = isinstance(tools, list) and all(isinstance(t, dict) and isinstance(t.get("name"), str) for t in tools)
    sound = {
        "model: Field required": isinstance(body.get("model"), str),
        "max_tokens: a number above zero is required": isinstance(body.get("max_tokens"), int)
        and body["max_tokens"] > 0,
        "tools: each needs a name": named,
        "tool_choice: Input should be a valid dictionary": isinstance(body.get("tool_choice") or {}, dict),
        "messages: at least one message is required": isinstance(body.get("messages"), list)
        and len(body["messages"]) > 0,
    }
    if error := next((message for message, is_sound in sound.items() if not is_sound), None):
        return error
    if error := next(filter(None, (_tool_error(at, tool) for at, tool in enumerate(tools))), None):
        return error
    if len({tool["name"] for tool in tools}) < len(tools):
        return "tools: Tool names must be unique."
    forced = (body.get("tool_choice") or {}).get("name")
    known = forced is None or any(tool["name"] == forced for tool in tools)
    return None if known else f"tool_choice: tool '{forced}' not found in provided tools"


def _tool_error(at: int, tool: Json) -> str | None:
    """Check a custom tool. The API's own tools have another type, and no schema."""
    if tool.get("type") not in (None, "custom"):
        return None
    error = api_rejection(tool["name"], str(tool.get("description", "")), tool.get("input_schema"))
    return f"tools.{at}.custom.{error[0]}: {error[1]}" if error else None


def _message_error(at: int, message: Any) -> str | None:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        return f"messages.{at}: a role of user, assistant or system is required"
    content = message.get("content")
    if isinstance(content, str) and content:
        return None
    if not isinstance(content, list) or not content:
        return f"messages.{at}: content must be non-empty"
    return next((f"messages.{at}.{error}" for block in content if (error := _block_error(block))), None)


def _block_error(block: Any) -> str | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return None if text else "content: text content blocks must be non-empty"
        case {"type": "tool_use", "id": str(), "name": str(), "input": dict()}:
            return None
        case {"type": "tool_result", "tool_use_id": str()}:
            content = block.get("content", "")
            sound = isinstance(content, str) or (
                isinstance(content, list) and all(isinstance(part, dict) for part in content)
            )
            return None if sound else "content: a tool_result holds a string or blocks"
        case {"type": "text" | "tool_use" | "tool_result"} | {"type": None}:
            return "content: a block lacks a field, or has one of the wrong type"
        case {"type": str()}:
            return None
        case _:
            return "content: a block without a type"


def _pairing_error(messages: list[Json]) -> str | None:
    """Check that the next user turn begins with one `tool_result` for each `tool_use`."""
    if messages[0]["role"] != "user":
        return "messages: first message must use the user role"
    open_ids: list[str] = []
    seen: set[str] = set()
    for role, content in _join_turns(messages):
        if role == "assistant":
            open_ids = [block["id"] for block in content if block["type"] == "tool_use"]
            if len({*open_ids} - seen) < len(open_ids):
                return "messages: `tool_use` ids must be unique"
            seen.update(open_ids)
            continue
        results = [block["tool_use_id"] for block in takewhile(lambda block: block["type"] == "tool_result", content)]
        if missing := [name for name in open_ids if name not in results]:
            return "`tool_use` ids were found without `tool_result` blocks immediately after: " + ", ".join(missing)
        if extra := [name for name in results if name not in open_ids]:
            return "unexpected `tool_use_id` found in `tool_result` blocks: " + ", ".join(extra)
        if len({*results}) < len(results):
            return "each tool_use must have a single result"
        open_ids = []
    return "`tool_use` ids were found without `tool_result` blocks: " + ", ".join(open_ids) if open_ids else None


def _join_turns(messages: list[Json]) -> Iterator[tuple[str, list[Json]]]:
    """Join adjacent messages of the same role, as the API does, without system messages."""
    spoken = (message for message in messages if message["role"] != "system")
    for role, turn in groupby(spoken, key=itemgetter("role")):
        yield role, [block for message in turn for block in blocks_of(message)]


def blocks_of(message: Json) -> list[Json]:
    """Return the content blocks of a message; a plain string is one text block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


@dataclass(frozen=True)
class ToolUse:
    """One tool use of a conversation, with its result once it has one."""

    name: str
    arguments: Json
    result: str | None
    is_error: bool


def tool_uses(messages: list[Json]) -> list[ToolUse]:
    """Return the tool uses of a valid conversation, in order."""
    blocks = [block for message in messages for block in blocks_of(message)]
    results = {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}
    return [
        ToolUse(block["name"], block["input"], _result_text(result), bool(result and result.get("is_error")))
        for block in blocks
        if block["type"] == "tool_use"
        for result in [results.get(block["id"])]
    ]


def _result_text(result: Json | None) -> str | None:
    if result is None:
        return None
    content = result.get("content") or ""
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


def estimate_tokens(value: Any) -> int:
    """Estimate the tokens as a quarter of the JSON's characters."""
    return max(1, len(json.dumps(value, ensure_ascii=False)) // 4)
