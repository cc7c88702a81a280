"""The Chat Completions API through the `openai` SDK: of OpenAI, Azure, Gemini and most local servers."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anthropic
import httpx2
import openai
from openai import AsyncOpenAI
from pydantic_core import to_json
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.chat_schema import to_chat_schema
from perdure.activities.providers.errors import WrongApiError, model_refused_error, to_model_failure
from perdure.activities.providers.media import CHAT_LIMITS, fill_media
from perdure.activities.providers.options import visible_blocks
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.replies.reply import (
    MAX_REPLY_BYTES,
    CallPieces,
    GrowingText,
    Json,
    ReplyBuilder,
    call_leniently,
    expecting_api,
    lower_limit,
)
from perdure.activities.providers.replies.stream import ModelStream, is_document, read_body
from perdure.contracts.failures import RunFailure
from perdure.decisions.text.formatting import truncate
from perdure.decisions.tools import FINISH

ERROR_PREFIX = "Error: "  # of a result that is one: the wire has no mark for it
BETWEEN = "Understood."
MAX_DESCRIPTION = 1024  # characters of a tool's, where a server has a limit
OPTIONAL_FIELDS = ("tool_choice", "stream_options")  # a server that rejects one gets the request without it
_STREAM_ERRORS = (openai.OpenAIError, anthropic.APIError, httpx2.HTTPError, json.JSONDecodeError)


class ChatModel:
    """A server that speaks the Chat Completions API. The client's own retries are off."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client
        self._forms: dict[str, set[str]] = {}  # names in FORMS, by model

    async def reply(self, call: ModelCall) -> ModelReply:
        """Make one streamed call. Raises as `MessagesModel.reply` does.

        If a server rejects an optional field, the call is repeated without it; if it rejects the length of the reply,
        with as much as its message leaves; if it wants another form of requests, in that, as are later calls of the
        model.
        """
        seen = visible_blocks(call.definition.model, call.definition.options, is_chat=True)
        request = build_chat_request(await fill_media(call, CHAT_LIMITS, seen))
        for name in sorted(self._forms.get(call.definition.model, ())):
            request = FORMS[name].change(request)
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
                return await _read_reply(ModelStream(chunks.response, chunks), call.on_text)
        except (*_STREAM_ERRORS, WrongApiError) as error:
            raise to_model_failure(error, secret) from None

    def _relax_request(self, request: Json, refusal: ApplicationError) -> Json | None:
        if shorter := lower_limit(request, refusal):
            return shorter
        if refusal.type != RunFailure.model_refused:
            return None
        about = refusal.message.lower()
        for name, form in FORMS.items():
            if form.pattern.search(about) and (changed := form.change(request)) != request:
                self._forms.setdefault(request["model"], set()).add(name)
                return changed
        rejected = next((name for name in OPTIONAL_FIELDS if name in request and name in about), None)
        return {name: value for name, value in request.items() if name != rejected} if rejected else None


def _rename_limit(request: Json) -> Json:
    return {("max_completion_tokens" if name == "max_tokens" else name): value for name, value in request.items()}


def _separate_inputs(request: Json) -> Json:
    """Return the request with an assistant's message between one of a tool and one of the user."""
    messages: list[Json] = []
    for message in request["messages"]:
        if message["role"] == "user" and messages and messages[-1]["role"] == "tool":
            messages.append({"role": "assistant", "content": _words_between(messages)})
        messages.append(message)
    return {**request, "messages": messages}


def _words_between(messages: Sequence[Json]) -> str:
    """Return what the last calls say to the user, else words that say nothing."""
    calls = next(message["tool_calls"] for message in reversed(messages) if message.get("tool_calls"))
    ends = [json.loads(call["function"]["arguments"]) for call in calls if call["function"]["name"] == FINISH]
    outcomes = [end["outcome"] for end in ends if isinstance(end.get("outcome"), str) and end["outcome"].strip()]
    return outcomes[0] if outcomes else BETWEEN


def _shorten_descriptions(request: Json) -> Json:
    tools = [
        {**tool, "function": {**function, "description": truncate(function["description"], MAX_DESCRIPTION)}}
        for tool in request.get("tools", ())
        for function in [tool["function"]]
    ]
    return {**request, "tools": tools} if tools else request


@dataclass(frozen=True)
class Form:
    """A form of requests that some models want, recognized by their refusal of another."""

    pattern: re.Pattern[str]
    change: Callable[[Json], Json]


FORMS = {
    "limit": Form(re.compile("max_completion_tokens"), _rename_limit),  # OpenAI's reasoning models
    "order": Form(re.compile(r"\brole|order\b|alternat"), _separate_inputs),  # Mistral's API and templates
    "descriptions": Form(re.compile(rf"description.*\b{MAX_DESCRIPTION}\b"), _shorten_descriptions),  # OpenAI's
}


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
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": to_chat_schema(tool.input_schema),
                },
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


async def _read_reply(source: ModelStream | Json, on_text: Callable[[str], object]) -> ModelReply:
    """Read a streamed reply, or one completion. Raises WrongApiError if fields have other types."""
    completion, reply = _Completion(GrowingText(on_text)), ReplyBuilder(lambda _: None)
    with expecting_api("the Chat Completions API", _STREAM_ERRORS):
        if isinstance(source, dict):
            completion.add_event(source)
        else:
            await source.feed(completion, MAX_REPLY_BYTES)
        reply.add_message(completion.to_message())
        if not isinstance(source, dict):
            reply.is_ended, reply.is_too_large = source.is_ended, source.is_too_large
        return reply.build_reply()


@dataclass
class _Completion:
    """A completion under construction, from chunks or as a whole. `size` is the number of its characters."""

    text: GrowingText
    model: str = ""
    thinking: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: CallPieces = field(default_factory=CallPieces)
    finish_reason: str | None = None
    usage: Json = field(default_factory=dict)
    _others: int = 0  # characters of thinking and refusal

    @property
    def size(self) -> int:
        return self.text.size + self.calls.size + self._others

    def add_event(self, chunk: Json) -> None:
        self.model = chunk.get("model") or self.model
        self.usage = chunk.get("usage") or self.usage  # totals, which some servers repeat
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta")
            self._add_delta(delta or choice.get("message") or {}, is_whole=not delta)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add_delta(self, delta: Json, *, is_whole: bool = False) -> None:
        self._add_other(self.thinking, delta.get("reasoning_content") or delta.get("reasoning"))
        self._add_other(self.refusal, delta.get("refusal"))
        for part in _content_parts(delta.get("content")):
            match part:
                case {"type": "text", "text": str(text)}:
                    self.text.add(text)
                case {"type": "thinking" | "reasoning" as kind}:
                    self._add_other(self.thinking, part.get(kind) or part.get("text"))
                case {"type": "refusal"}:
                    self._add_other(self.refusal, part.get("refusal"))
                case _:
                    pass  # such as references
        only = delta.get("function_call")  # of servers that know the API's first form
        pieces = delta.get("tool_calls") or ([{"function": only}] if only else [])
        if pieces:
            self.calls.add_pieces(pieces, are_whole=is_whole)

    def _add_other(self, texts: list[str], content: Any) -> None:
        for part in _content_parts(content):
            if part.get("type") == "text":
                texts.append(part["text"])
                self._others += len(part["text"])

    def to_message(self) -> Json:
        """Return the message in the Messages API's form."""
        refusal = "".join(self.refusal)
        texts = {"thinking": "".join(self.thinking), "text": self.text.join() or refusal}
        content: list[Json] = [{"type": kind, kind: text} for kind, text in texts.items() if text]
        for call in self.calls.in_order():
            if extra := call.pop("extra"):  # as thinking without a signature, which is not sent to the Messages API
                content.append({"type": "thinking", "thinking": "", "extra_content": extra})
            content.append({"type": "tool_use", **call})
        reason = "refusal" if refusal else self.finish_reason
        return {"model": self.model, "content": content, "stop_reason": reason, "usage": _to_usage(self.usage)}


def _content_parts(content: Any) -> list[Json]:
    """Return content as parts: it is a text, or a list of texts and parts. Raises TypeError."""
    match content:
        case None:
            return []
        case str(text):
            return [{"type": "text", "text": text}] if text else []
        case list(parts):
            return [inner for part in parts for inner in _content_parts(part)]
        case {"type": str()}:
            return [content]
        case _:
            raise TypeError(f"content is of type {type(content).__name__}")


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
