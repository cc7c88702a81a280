"""The Messages API through the `anthropic` SDK: building requests, reading streamed replies."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anthropic
import httpx2
from anthropic import AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex
from anthropic.types import RawMessageStreamEvent
from temporalio.exceptions import ApplicationError

from activities.providers.cache_marks import drop_ttl, mark_for_cache
from activities.providers.errors import (
    WrongApiError,
    is_missing_credentials,
    model_unavailable_error,
    to_model_failure,
)
from activities.providers.media import MESSAGES_LIMITS, fill_media
from activities.providers.options import build_options, can_force_tools, visible_blocks
from activities.providers.plain_answer import is_document, read_body
from activities.providers.port import ModelCall, ModelReply
from activities.providers.reply import ReplyBuilder, call_leniently, expecting_api
from decisions.run.transcript import is_thought

_STREAM_ERRORS = (anthropic.APIError, httpx2.HTTPError, json.JSONDecodeError)


class MessagesModel:
    """A server that speaks the Messages API. The client's own retries are off."""

    def __init__(self, client: AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex) -> None:
        self._client = client

    async def reply(self, call: ModelCall) -> ModelReply:
        """Make one streamed call. Raises ApplicationError of a `RunFailure` type, or `ContextTooLong`.

        A reply still streaming at `call.limit` is cut, and the call is not retried. If a provider rejects
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
            async with await self._client.messages.create(stream=True, **request, **options) as events:
                if is_document(events.response):
                    return await read_reply(await read_body(events.response, self._secret, "content"), call.on_text)
                return await read_reply(events, call.on_text)
        except (*_STREAM_ERRORS, WrongApiError) as error:
            raise to_model_failure(error, self._secret) from None
        except Exception as error:
            if not is_missing_credentials(error):
                raise
            raise model_unavailable_error(f"the call could not be signed: {type(error).__name__} {error}") from None

    @property
    def _secret(self) -> str | None:
        client = self._client
        return client.access_token if isinstance(client, AsyncAnthropicVertex) else client.api_key


async def prepare_request(call: ModelCall) -> dict[str, Any]:
    """Return the request of a call, with its media, and without thinking that this API has not signed."""
    call = await fill_media(call, MESSAGES_LIMITS, visible_blocks(call.definition.model, call.definition.options))
    return build_request(replace(call, messages=_drop_blocks(call.messages, _is_unsigned)))


async def read_reply(
    source: AsyncIterator[RawMessageStreamEvent] | dict[str, Any], on_text: Callable[[str], object]
) -> ModelReply:
    """Read a streamed reply, or one message. Raises WrongApiError if fields are missing or have other types."""
    reply = ReplyBuilder(on_text)
    with expecting_api("the Messages API", _STREAM_ERRORS):
        if isinstance(source, dict):
            reply.add_message(source)
        else:
            async for event in source:
                reply.add_event(event)
        return reply.build_reply()


def relax_request(request: dict[str, Any], refusal: ApplicationError) -> dict[str, Any] | None:
    """Return the request without the rejected part, if that part is optional."""
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
