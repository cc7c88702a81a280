"""Requests that the real APIs refuse, from their docs and error messages. The pairing of results has its own check."""

import re
from collections.abc import Iterator
from typing import Any

from anthropic.types.beta.message_create_params import MessageCreateParamsBase

Json = dict[str, Any]

MESSAGES_FIELDS = {*MessageCreateParamsBase.__annotations__, "stream", "temperature", "top_p", "top_k"} - {"betas"}
_CHAT_FIELDS = """
audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages metadata
modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options
prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream
stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
CHAT_FIELDS = frozenset(_CHAT_FIELDS.split())
MAX_CACHE_MARKS = 4
_BLOCK_FIELDS = {
    "text": {"text", "citations"},
    "tool_use": {"id", "name", "input", "caller", "toolset_name"},
    "tool_result": {"tool_use_id", "content", "is_error", "caller"},
    "thinking": {"thinking", "signature"},
}
_ID = re.compile(r"[a-zA-Z0-9_-]+")


def messages_rejection(body: Json) -> str | None:
    """Return the reason why the Messages API would refuse this request with 400, if any. Its pairing is in order."""
    return next(_messages_faults(body), None)


def _messages_faults(body: Json) -> Iterator[str]:
    yield from (f"{name}: Extra inputs are not permitted" for name in body if name not in MESSAGES_FIELDS)
    thinking, choice = body.get("thinking") or {}, body.get("tool_choice") or {}
    if thinking.get("type") == "enabled" and thinking.get("budget_tokens", 0) < 1024:
        yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= body["max_tokens"]:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`"
    if thinking.get("type") in ("enabled", "adaptive"):
        if choice.get("type") in ("tool", "any"):
            yield "Thinking may not be enabled when tool_choice forces tool use."
        if body.get("temperature", 1) != 1:
            yield "`temperature` may only be set to 1 when thinking is enabled."
    if choice and not body.get("tools"):
        yield "tool_choice may only be specified while providing tools."
    if not 0 <= body.get("temperature", 1) <= 1:
        yield "temperature: range: 0..1"
    system = body.get("system") or []
    parts = [("system", block) for block in system] if isinstance(system, list) else []
    for at, message in enumerate(body["messages"]):
        content = message["content"]
        parts += [(f"messages.{at}.content", block) for block in content] if isinstance(content, list) else []
    yield from (fault for path, block in parts for fault in _block_faults(path, block))
    marks = sum("cache_control" in each for each in (*(block for _, block in parts), *body.get("tools", ())))
    if marks > MAX_CACHE_MARKS:
        yield f"A maximum of {MAX_CACHE_MARKS} blocks with cache_control may be provided. Found {marks}."


def _block_faults(path: str, block: Json) -> Iterator[str]:
    kind = block.get("type")
    known = _BLOCK_FIELDS.get(str(kind))
    if known is not None:
        extra = (name for name in block if name not in {"type", "cache_control", *known})
        yield from (f"{path}.{kind}.{name}: Extra inputs are not permitted" for name in extra)
    if kind == "text" and not block["text"].strip():
        yield f"{path}: text content blocks must contain non-whitespace text"
    if kind == "thinking" and not isinstance(block.get("signature"), str):
        yield f"{path}.thinking.signature: Field required"
    if kind == "tool_use" and not _ID.fullmatch(block["id"]):
        yield f"{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if kind == "tool_result" and isinstance(content := block.get("content"), list):
        yield from (fault for part in content for fault in _block_faults(f"{path}.tool_result.content", part))


def chat_rejection(body: Json, *, has_strict_order: bool = False) -> str | None:
    """Return the reason why the Chat Completions API would refuse this request with 400, if any.

    With a strict order, as Mistral's models want it, a message of the user may not follow one of a tool.
    """
    return next(_chat_faults(body, has_strict_order=has_strict_order), None)


def _chat_faults(body: Json, *, has_strict_order: bool) -> Iterator[str]:
    yield from (f"Unrecognized request argument supplied: {name}" for name in body if name not in CHAT_FIELDS)
    if "max_tokens" in body and "max_completion_tokens" in body:
        yield "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    if body.get("stream_options") and not body.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    if body.get("tools") == []:
        yield "Invalid 'tools': empty array. Expected an array with minimum length 1."
    if "tool_choice" in body and not body.get("tools"):
        yield "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
    for tool in body.get("tools") or ():
        function = tool["function"]
        if fault := next(_schema_faults(function.get("parameters", {}), ()), None):
            yield f"Invalid schema for function '{function['name']}': {fault}"
    yield from _order_faults(body.get("messages") or (), has_strict_order=has_strict_order)


def _order_faults(messages: Any, *, has_strict_order: bool) -> Iterator[str]:
    open_calls: list[str] = []
    last = ""
    for message in messages:
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                yield "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                return
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            yield f"tool_call_ids did not have response messages: {', '.join(open_calls)}"
        if has_strict_order and (last, role) == ("tool", "user"):
            yield "Unexpected role 'user' after role 'tool'"
        if message.get("content") in ([], None) and role != "assistant":
            yield f"Invalid value for 'content': expected a string or a non-empty array, for role {role!r}"
        if role == "assistant":
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        last = role


def _schema_faults(schema: Any, context: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"In context={context}, {schema!r} is not of type 'object'."
        return
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    if not context and schema.get("type") == "object" and "properties" not in schema:
        yield f"In context={context}, object schema missing properties."
    if "array" in kinds and "items" not in schema:
        yield f"In context={context}, array schema missing items."
    for table in ("properties", "$defs", "definitions"):
        for name, inner in (schema.get(table) or {}).items():
            yield from _schema_faults(inner, (*context, table, name))
    for word in ("anyOf", "oneOf", "allOf"):
        for at, inner in enumerate(schema.get(word) or ()):
            yield from _schema_faults(inner, (*context, word, str(at)))
    if isinstance(schema.get("items"), dict):
        yield from _schema_faults(schema["items"], (*context, "items"))
