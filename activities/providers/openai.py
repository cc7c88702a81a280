"""The Chat Completions API through the `openai` SDK: of OpenAI, Azure, Gemini and most local servers."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx2
import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk
from pydantic_core import to_json
from temporalio.exceptions import ApplicationError

from activities.providers.errors import WrongApiError, model_refused_error, to_model_failure
from activities.providers.media import CHAT_LIMITS, fill_media
from activities.providers.options import visible_blocks
from activities.providers.plain_answer import is_document, read_body
from activities.providers.port import ModelCall, ModelReply
from activities.providers.reply import Json, ReplyBuilder, call_leniently, expecting_api
from contracts.models import replace_surrogates

ERROR_PREFIX = "Error: "  # of a result that is one: the wire has no mark for it
STOP_REASONS = {  # in the Messages API's words
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
OPTIONAL_FIELDS = ("tool_choice", "stream_options")  # a server that rejects one gets the request without it
_STREAM_ERRORS = (openai.OpenAIError, httpx2.HTTPError, json.JSONDecodeError)


class ChatModel:
    """A server that speaks the Chat Completions API. The client's own retries are off."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client
        self._renamed: set[str] = set()  # models that take `max_completion_tokens` only

    async def reply(self, call: ModelCall) -> ModelReply:
        """Make one streamed call. Raises as `MessagesModel.reply` does.

        If a server rejects an optional field or the name of the token limit, the call is repeated without the field,
        or with the other name.
        """
        seen = visible_blocks(call.definition.model, call.definition.options, is_chat=True)
        request = build_chat_request(await fill_media(call, CHAT_LIMITS, seen))
        if call.definition.model in self._renamed:
            request = _rename_limit(request)
        return await call_leniently(call, request, partial(self._stream_reply, call), self._relax_request)

    async def _stream_reply(self, call: ModelCall, request: Json) -> ModelReply:
        options: Json = {}
        if call.patience:
            options["timeout"] = httpx2.Timeout(call.patience, connect=openai.DEFAULT_TIMEOUT.connect)
        secret = self._client.api_key
        try:
            async with await self._client.chat.completions.create(stream=True, **request, **options) as chunks:
                if is_document(chunks.response):
                    return await _read_reply(await read_body(chunks.response, secret, "choices"), call.on_text)
                return await _read_reply(chunks, call.on_text)
        except (*_STREAM_ERRORS, WrongApiError) as error:
            raise to_model_failure(error, secret) from None

    def _relax_request(self, request: Json, refusal: ApplicationError) -> Json | None:
        about = refusal.message.lower()
        if "max_tokens" in request and "max_completion_tokens" in about:  # OpenAI's reasoning models
            self._renamed.add(request["model"])
            return _rename_limit(request)
        rejected = next((name for name in OPTIONAL_FIELDS if name in request and name in about), None)
        return {name: value for name, value in request.items() if name != rejected} if rejected else None


def _rename_limit(request: Json) -> Json:
    return {("max_completion_tokens" if name == "max_tokens" else name): value for name, value in request.items()}


def build_chat_request(call: ModelCall) -> Json:
    """Build the request; `thinking`, `cache` and `betas` have no form in it.

    Raises ApplicationError `ModelRefused` if a block of the conversation has none.
    """
    definition, options = call.definition, call.definition.options
    system = {"role": "system", "content": "\n\n".join(call.front)}
    chosen = {"temperature": options.temperature, "top_p": options.top_p, "reasoning_effort": options.effort}
    request: Json = {
        "model": definition.model,
        "max_tokens": options.max_tokens,
        "messages": [system, *to_chat_messages(call.messages)],
        "stream_options": {"include_usage": True},
        **{name: value for name, value in chosen.items() if value is not None},
    }
    if definition.tools:
        request["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in definition.tools
        ]
        if call.is_closing:
            request["tool_choice"] = "none"
        elif call.force is not None:
            request["tool_choice"] = {"type": "function", "function": {"name": call.force}}
    extra = {name: value for name, value in options.extra.items() if name not in {*request, "stream", "tool_choice"}}
    return {**request, "extra_headers": options.headers, "extra_body": extra}


def to_chat_messages(messages: Sequence[Json]) -> list[Json]:
    """Convert a conversation. Thinking is left out, apart from Gemini's signature of a call (`extra_content`).

    Texts of a reply come before its calls, results before other blocks. The calls are named by their number in the
    conversation, since servers have different rules for ids. Raises ApplicationError `ModelRefused`.
    """
    names: dict[str, str] = {}
    chat: list[Json] = []
    for at, message in enumerate(messages):
        convert = _convert_reply if message["role"] == "assistant" else _convert_input
        parts = [_Place(f"messages.{at}.content.{place}", block) for place, block in enumerate(message["content"])]
        chat += convert(parts, names)
    return chat


@dataclass(frozen=True)
class _Place:
    """A content block with its place."""

    path: str
    block: Json

    def to_part(self) -> Json:
        match self.block:
            case {"type": "text", "text": text}:
                return {"type": "text", "text": text}
            case {"type": "image", "source": {"type": "url", "url": url}}:
                return {"type": "image_url", "image_url": {"url": url}}
            case {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}:
                return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
            case {"type": "document", "title": name, "source": {"type": "base64", "media_type": kind, "data": data}}:
                file = {"filename": name, "file_data": f"data:{kind};base64,{data}"}  # from the docs, not tried
                return {"type": "file", "file": file}
            case _:
                kind = self.block.get("type")
                message = f"{self.path}: a block of type {kind!r} has no form in the Chat Completions API"
                raise model_refused_error(f"{message}: use a model of the Messages API for this conversation")


def _convert_reply(places: list[_Place], names: dict[str, str]) -> list[Json]:
    calls: list[Json] = []
    parts: list[Json] = []
    extra: Json = {}
    for place in places:
        match place.block:
            case {"type": "tool_use", "id": use, "name": name, "input": arguments}:
                names[use] = f"call{len(names):05d}"  # nine letters and digits: the strictest server's rule
                function = {"name": name, "arguments": to_json(arguments).decode()}
                calls.append({"id": names[use], "type": "function", "function": function, **extra})
                extra = {}
            case {"type": "thinking", "extra_content": signature}:
                extra = {"extra_content": signature}
            case {"type": "thinking" | "redacted_thinking"}:
                pass
            case _:
                parts.append(place.to_part())
    if not parts and not calls:
        return []
    message = {"role": "assistant", "content": _to_content(parts) if parts else None}
    return [{**message, "tool_calls": calls} if calls else message]


def _convert_input(places: list[_Place], names: dict[str, str]) -> list[Json]:
    results: list[Json] = []
    parts: list[Json] = []
    for place in places:
        match place.block:
            case {"type": "tool_result", "tool_use_id": use} if use in names:
                texts, images = _convert_result(place)
                results.append({"role": "tool", "tool_call_id": names[use], "content": _to_content(texts)})
                parts += images
            case _:
                parts.append(place.to_part())
    return [*results, {"role": "user", "content": _to_content(parts)}] if parts else results


def _convert_result(place: _Place) -> tuple[list[Json], list[Json]]:
    """Return the texts of a result, and its images: a message of a tool holds no images."""
    content = place.block.get("content") or ""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [_Place(f"{place.path}.content.{at}", block).to_part() for at, block in enumerate(blocks)]
    texts = [part for part in parts if part["type"] == "text"] or [{"type": "text", "text": ""}]
    if place.block.get("is_error"):
        texts[0] = {"type": "text", "text": ERROR_PREFIX + texts[0]["text"]}
    return texts, [part for part in parts if part["type"] != "text"]


def _to_content(parts: list[Json]) -> str | list[Json]:
    """Return one text as a string, which every server takes, anything else as parts."""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


async def _read_reply(
    source: AsyncIterator[ChatCompletionChunk] | Json, on_text: Callable[[str], object]
) -> ModelReply:
    """Read a streamed reply, or one completion. Raises WrongApiError if fields have other types."""
    completion, reply = _Completion(on_text), ReplyBuilder(lambda _: None)
    with expecting_api("the Chat Completions API", _STREAM_ERRORS):
        if isinstance(source, dict):
            completion.add_chunk(source)
        else:
            async for chunk in source:
                completion.add_chunk(chunk.model_dump(warnings=False))
        reply.add_message(completion.to_message())
        return reply.build_reply()


@dataclass
class _Completion:
    """A completion under construction, from chunks or as a whole."""

    on_text: Callable[[str], object]
    model: str = ""
    thinking: str = ""
    text: str = ""
    refusal: str = ""
    calls: list[Json] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Json = field(default_factory=dict)

    def add_chunk(self, chunk: Json) -> None:
        self.model = chunk.get("model") or self.model
        self.usage = chunk.get("usage") or self.usage  # totals, which some servers repeat
        for choice in chunk.get("choices") or ():
            self._add_delta(choice.get("delta") or choice.get("message") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add_delta(self, delta: Json) -> None:
        self.thinking += delta.get("reasoning_content") or delta.get("reasoning") or ""
        self.refusal += delta.get("refusal") or ""
        for place, piece in enumerate(delta.get("tool_calls") or ()):
            self._add_piece(place, piece)
        if text := delta.get("content"):
            self.text += text
            self.on_text(replace_surrogates(self.text))

    def _add_piece(self, place: int, piece: Json) -> None:
        """Add a piece of a call. Pieces of several calls may alternate."""
        function = piece.get("function") or {}
        call = self._find_call(place if piece.get("index") is None else piece["index"], piece.get("id"))
        call["name"] = call["name"] or function.get("name")
        call["extra"] = call["extra"] or piece.get("extra_content")
        arguments = function.get("arguments") or ""
        call["input"] += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def _find_call(self, index: int, name: str | None) -> Json:
        """Return the call that goes on. Some servers number all calls 0; another id is then another call."""
        call = next((call for call in reversed(self.calls) if call["index"] == index), None)
        if call is None or (name and call["id"] and name != call["id"]):
            call = {"index": index, "id": None, "name": None, "input": "", "extra": None}
            self.calls.append(call)
        call["id"] = call["id"] or name
        return call

    def to_message(self) -> Json:
        """Return the message in the Messages API's form."""
        texts = {"thinking": self.thinking, "text": self.text or self.refusal}
        content: list[Json] = [{"type": kind, kind: text} for kind, text in texts.items() if text]
        for call in sorted(self.calls, key=lambda call: call["index"]):
            if call["extra"]:  # as thinking without a signature, which is not sent to the Messages API
                content.append({"type": "thinking", "thinking": "", "extra_content": call["extra"]})
            use = {"id": call["id"], "name": call["name"], "input": call["input"] or {}}
            content.append({"type": "tool_use", **use})
        reason = STOP_REASONS.get(self.finish_reason or "", self.finish_reason)
        if self.refusal:
            reason = "refusal"
        elif self.calls and reason == "end_turn":  # OpenAI's word if the call was forced
            reason = "tool_use"
        return {"model": self.model, "content": content, "stop_reason": reason, "usage": _to_usage(self.usage)}


def _to_usage(figures: Json) -> Json:
    """Return the figures in the Messages API's form, whose input excludes what was read from the cache."""
    details = figures.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt, cached = figures.get("prompt_tokens"), cached if isinstance(cached, int) else 0
    output, total = figures.get("completion_tokens"), figures.get("total_tokens")
    if isinstance(prompt, int) and isinstance(output, int) and isinstance(total, int):
        output = max(output, total - prompt)  # Gemini counts its thinking in the total only
    usage = {"output_tokens": output, "cache_read_input_tokens": cached}
    return {**usage, "input_tokens": prompt - cached} if isinstance(prompt, int) else usage
