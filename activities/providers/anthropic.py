"""The Messages API through the `anthropic` SDK: building requests, reading streamed replies."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anthropic
import httpx2
from anthropic import AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.errors import (
    WrongApiError,
    is_missing_credentials,
    model_unavailable_error,
    to_model_failure,
)
from perdure.activities.providers.media import MESSAGES_LIMITS, fill_media
from perdure.activities.providers.options import build_options, can_force_tools, visible_blocks
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.replies.reply import (
    MAX_REPLY_BYTES,
    ReplyBuilder,
    call_leniently,
    expecting_api,
    lower_limit,
)
from perdure.activities.providers.replies.stream import ModelStream, is_document, read_body
from perdure.contracts.failures import RunFailure
from perdure.contracts.model_settings import CacheTime
from perdure.decisions.run.transcript import is_thought

Block = dict[str, Any]


def mark_for_cache(system: list[Block], messages: list[Block], lifetime: CacheTime) -> dict[str, list[Block]]:
    """Return the parts of a request with their marks: three of the four that the API allows.

    The first is the end of what all runs of an agent share. The last two messages of the user are the ends of this
    request and of the one before it: a provider looks back 20 blocks from a mark, and a turn of ten calls has more.
    All marks have one lifetime, as the API wants longer ones first.
    """
    mark: Block = {"type": "ephemeral", **({"ttl": "1h"} if lifetime == "1h" else {})}
    ends = [place for place, message in enumerate(messages) if message["role"] == "user"][-2:]
    return {
        "system": [system[0] | {"cache_control": mark}, *system[1:]],
        "messages": [_mark(message, mark) if at in ends else message for at, message in enumerate(messages)],
    }


def _mark(message: Block, mark: Block) -> Block:
    *earlier, last = message["content"]
    return {**message, "content": [*earlier, {**last, "cache_control": mark}]}


def drop_ttl(request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the request with marks of the default lifetime; None if it has no other marks."""
    if "ttl" not in request["system"][0].get("cache_control", {}):
        return None
    rows = [{**message, "content": [_drop(block) for block in message["content"]]} for message in request["messages"]]
    return {**request, "system": [_drop(block) for block in request["system"]], "messages": rows}


def _drop(block: Block) -> Block:
    return {**block, "cache_control": {"type": "ephemeral"}} if "cache_control" in block else block


_STREAM_ERRORS = (anthropic.APIError, httpx2.HTTPError, json.JSONDecodeError)


class MessagesModel:
    """A server that speaks the Messages API. The client's own retries are off."""

    def __init__(self, client: AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex) -> None:
        self.client = client

    async def reply(self, call: ModelCall) -> ModelReply:
        """Make one streamed call. Raises ApplicationError of a `RunFailure` type, or `ContextTooLong`.

        A reply still streaming at `call.limit` is cut, and the call is not retried. If a provider rejects the length of
        the reply, the call is repeated with as much as its message leaves; if it rejects
        `tool_choice`, the call is repeated without it, since a note already names the tool; if it rejects another
        model's signed thinking, without thinking; if it rejects a cache's lifetime, without that. Thinking of another
        API is never sent.
        """
        return await call_leniently(call, await prepare_request(call), partial(self._stream_reply, call), relax_request)

    async def _stream_reply(self, call: ModelCall, request: dict[str, Any]) -> ModelReply:
        options: dict[str, Any] = {}
        if call.patience:
            options["timeout"] = httpx2.Timeout(call.patience, connect=anthropic.DEFAULT_TIMEOUT.connect)
        try:
            async with await self.client.messages.create(stream=True, **request, **options) as events:
                if is_document(events.response):
                    return await read_reply(await read_body(events.response, self._secret, "content"), call.on_text)
                return await read_reply(ModelStream(events.response, events), call.on_text)
        except (*_STREAM_ERRORS, WrongApiError) as error:
            raise to_model_failure(error, self._secret) from None
        except Exception as error:
            if not is_missing_credentials(error):
                raise
            raise model_unavailable_error(f"the call could not be signed: {type(error).__name__} {error}") from None

    @property
    def _secret(self) -> str | None:
        client = self.client
        return client.access_token if isinstance(client, AsyncAnthropicVertex) else client.api_key


async def prepare_request(call: ModelCall) -> dict[str, Any]:
    """Return the request of a call, with its media, and without thinking that this API has not signed."""
    call = await fill_media(call, MESSAGES_LIMITS, visible_blocks(call.definition.model, call.definition.options))
    return build_request(replace(call, messages=_drop_blocks(call.messages, _is_unsigned)))


async def read_reply(source: ModelStream | dict[str, Any], on_text: Callable[[str], object]) -> ModelReply:
    """Read a streamed reply, or one message. Raises WrongApiError if fields are missing or have other types."""
    reply = ReplyBuilder(on_text)
    with expecting_api("the Messages API", _STREAM_ERRORS):
        if isinstance(source, dict):
            reply.add_message(source)
        else:
            await source.feed(reply, MAX_REPLY_BYTES)
            reply.is_ended, reply.is_too_large = source.is_ended, source.is_too_large
        return reply.build_reply()


def relax_request(request: dict[str, Any], refusal: ApplicationError) -> dict[str, Any] | None:
    """Return the request without the rejected part, if that part is optional, or for a shorter reply."""
    if shorter := lower_limit(request, refusal):
        return shorter
    if refusal.type != RunFailure.model_refused:
        return None
    about = refusal.message.lower()
    if "ttl" in about and (milder := drop_ttl(request)):
        return milder
    thinks = any(is_thought(block) for message in request["messages"] for block in message["content"])
    if "tool_choice" in request and ("tool_choice" in about or ("thinking" in about and "signature" not in about)):
        return {name: value for name, value in request.items() if name != "tool_choice"}
    if thinks and ("thinking" in about or "signature" in about):
        return {**request, "messages": _drop_blocks(request["messages"], is_thought)}
    return None


def _drop_blocks(messages: list[dict[str, Any]], drops: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Return the messages without such blocks. The API rejects empty messages, and accepts a repeated role."""
    rest = [{**row, "content": [block for block in row["content"] if not drops(block)]} for row in messages]
    return [message for message in rest if message["content"]]


def _is_unsigned(block: dict[str, Any]) -> bool:
    """Return True for thinking that came without a place for a signature: from the Chat Completions API."""
    return block.get("type") == "thinking" and "signature" not in block


def build_request(call: ModelCall) -> dict[str, Any]:
    """Build the request, with marks for the provider's cache."""
    definition = call.definition
    system: list[dict[str, Any]] = [{"type": "text", "text": text} for text in call.front]
    request: dict[str, Any] = {
        "model": definition.model,
        **build_options(definition.model, definition.options),
        **mark_for_cache(system, call.messages, definition.options.cache),
    }
    if tools := [*(tool.model_dump() for tool in definition.tools), *definition.options.server_tools]:
        request["tools"] = tools
        if call.is_closing:
            request["tool_choice"] = {"type": "none"}
        elif call.force is not None and can_force_tools(definition.model, definition.options):
            request["tool_choice"] = {"type": "tool", "name": call.force}
    return request
