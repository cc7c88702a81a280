"""A reply in the Messages API's form, as every wire builds it; how a call is bounded and repeated more leniently."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from anthropic.types import RawMessageStreamEvent
from pydantic import BaseModel
from pydantic_core import to_json
from temporalio.exceptions import ApplicationError

from activities.providers.errors import WrongApiError, model_unavailable_error
from activities.providers.options import name_setting
from activities.providers.port import ModelCall, ModelReply
from activities.tools.json_schema import read_arguments
from contracts.failures import RunFailure
from contracts.models import replace_surrogates
from contracts.run.turn import Usage
from decisions.run.reply import CUT_OFF
from decisions.run.transcript import join_text_blocks

MAX_REPLY_BYTES = 1024 * 1024  # of a reply's JSON; Temporal takes 2 MiB, and today's longest replies are half of this
MAX_CALL_TOKENS = 100_000_000  # of one call, whatever a server reports
_REQUIRED_STRINGS = {"text": ("text",), "tool_use": ("id", "name"), "thinking": ("thinking",)}  # by type of block
_USAGE_FIELDS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
    "cache_write_1h": "ephemeral_1h_input_tokens",  # of `cache_creation`
}

Json = dict[str, Any]


async def call_leniently(
    call: ModelCall,
    request: Json,
    send: Callable[[Json], Awaitable[ModelReply]],
    relax: Callable[[Json, ApplicationError], Json | None],
) -> ModelReply:
    """Send the request, and after a refusal again as `relax` returns it, until that is None; within `call.limit`."""
    try:
        async with asyncio.timeout(call.limit):
            while True:
                try:
                    return await send(request)
                except ApplicationError as error:
                    milder = relax(request, error) if error.type == RunFailure.model_refused else None
                    if milder is None:
                        raise name_setting(error, call.definition.options) from None
                    request = milder
    except TimeoutError:
        message = f"the model's reply was still coming after {call.limit:.0f} s; `turn_limit` bounds a whole turn"
        raise ApplicationError(message, type=RunFailure.turn_limit, non_retryable=True) from None


@contextmanager
def expecting_api(api: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise WrongApiError for all but `errors` and named failures: an answer of another API can break anything."""
    try:
        yield
    except ApplicationError:
        raise
    except errors:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        raise WrongApiError(f"{api}: {type(error).__name__} {error}") from None


@dataclass
class ReplyBuilder:
    """A reply under construction. Unlike the SDK's accumulator, it accepts broken tool arguments and lists them."""

    on_text: Callable[[str], object]
    content: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    broken: list[str] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)  # places in `content` by index: some servers count from 1
    _arguments: dict[int, str] = field(default_factory=dict)  # by place
    _text: str = ""
    _ids: set[str] = field(default_factory=set)
    _server_ids: set[str] = field(default_factory=set)  # ids as the server wrote them
    repeated: list[str] = field(default_factory=list)

    def add_event(self, event: RawMessageStreamEvent) -> None:
        match event.type:
            case "message_start":
                self.model = event.message.model or self.model
                self._count_usage(event.message.usage)
            case "content_block_start":
                self._places[event.index] = len(self.content)
                self.content.append(self._with_unique_id(_block_fields(event.content_block)))
            case "content_block_delta":
                self._apply_delta(self._places[event.index], event.delta.model_dump(warnings=False))
            case "message_delta":
                self.stop_reason = event.delta.stop_reason or self.stop_reason
                self._count_usage(event.usage)
            case "content_block_stop" | "message_stop":
                pass  # not every server ends a block that it cuts off

    def add_message(self, message: dict[str, Any]) -> None:
        self.model = message.get("model") or ""
        self.content = [self._with_unique_id(dict(block)) for block in message["content"]]
        self.stop_reason = message.get("stop_reason")
        self._count_usage(message.get("usage"))
        self.on_text(replace_surrogates(join_text_blocks(self.content)))

    def _with_unique_id(self, block: dict[str, Any]) -> dict[str, Any]:
        """Give a tool use a unique, portable id: a result must match exactly one tool use.

        Some servers repeat or omit ids. Others write ids that another model's API rejects in the next turn.
        """
        if block["type"] != "tool_use":
            return block
        server_id = str(block.get("id") or "")
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", server_id)
        if not name or name in self._ids:
            name = f"{name or 'call'}_{len(self.content)}"
        while name in self._ids:
            name += "_"
        self._ids.add(name)
        if server_id and server_id in self._server_ids:
            self.repeated.append(name)
        self._server_ids.add(server_id)
        return {**block, "id": name}

    def _apply_delta(self, place: int, delta: dict[str, Any]) -> None:
        block = self.content[place]
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"] or ""
                self._text += delta["text"] or ""
                self.on_text(replace_surrogates(self._text))
            case "input_json_delta":
                self._arguments[place] = self._arguments.get(place, "") + (delta["partial_json"] or "")
            case "thinking_delta":
                block["thinking"] += delta["thinking"] or ""
            case "signature_delta":
                block["signature"] = delta["signature"] or block.get("signature")
            case "citations_delta" if delta["citation"]:
                block.setdefault("citations", []).append(delta["citation"])
            case _:
                pass  # a newer kind of delta

    def _count_usage(self, usage: BaseModel | dict[str, Any] | None) -> None:
        """Keep the larger of two figures: they are totals, and servers send null or 0 for those they do not repeat."""
        figures = usage.model_dump(warnings=False) if isinstance(usage, BaseModel) else usage
        figures = figures if isinstance(figures, dict) else {}
        by_time = figures.get("cache_creation")
        figures = {**figures, **by_time} if isinstance(by_time, dict) else figures
        numbers = {
            name: figures[key] for name, key in _USAGE_FIELDS.items() if isinstance(figures.get(key), int | float)
        }
        by_server = figures.get("server_tool_use")
        if isinstance(by_server, dict) and isinstance(searches := by_server.get("web_search_requests"), int):
            numbers["searches"] = searches
        known = dict(self.usage)
        larger = {name: int(min(max(number, known[name]), MAX_CALL_TOKENS)) for name, number in numbers.items()}
        counted = self.usage.model_copy(update=larger)
        hour = min(counted.cache_write_1h, counted.cache_write)
        self.usage = counted.model_copy(update={"cache_write_1h": hour})

    def build_reply(self) -> ModelReply:
        """Return the reply. Raises ApplicationError if it has no end."""
        if self.stop_reason is None:
            raise model_unavailable_error("the model's answer was cut off in the middle of the stream")
        self._must_be_valid()
        self._read_arguments()
        self.content = replace_surrogates(self.content)
        content = [  # without blank texts, which the API rejects
            {**block, "input": {}} if block.get("type") == "tool_use" and block.get("input") is None else block
            for block in self.content
            if block.get("type") != "text" or block.get("text", "").strip()
        ]
        broken, repeated = tuple(self.broken), tuple(self.repeated)
        return fit_to_history(ModelReply(content, self.stop_reason, self.model, self.usage, broken, repeated))

    def _must_be_valid(self) -> None:
        """Raise KeyError or TypeError if a required string is missing."""
        strings = [("stop_reason", self.stop_reason), ("model", self.model)]
        strings += [(name, block[name]) for block in self.content for name in _REQUIRED_STRINGS.get(block["type"], ())]
        for name, value in strings:
            if not isinstance(value, str):
                raise TypeError(f"{name} is of type {type(value).__name__}")

    def _read_arguments(self) -> None:
        for place, block in enumerate(self.content):
            written = self._arguments.get(place) or _written_arguments(block)
            if not written:
                continue
            self._arguments[place] = written
            try:
                block["input"] = read_arguments(written)
            except ValueError:
                block["input"] = {}
                self.broken.append(block["id"])
        if self.stop_reason in CUT_OFF and self.content:  # what came as an object may lack its end
            last, place = self.content[-1], len(self.content) - 1
            if last["type"] == "tool_use" and not self._arguments.get(place):
                last["input"] = {}
                self.broken.append(last["id"])


def _block_fields(block: BaseModel) -> dict[str, Any]:
    fields = block.model_dump(mode="json", exclude_none=True, warnings=False)
    return {**fields, "text": fields.get("text", "")} if fields["type"] == "text" else fields


def _written_arguments(block: dict[str, Any]) -> str:
    """Return the arguments of a tool use as text if they are not an object, else ""."""
    match block:
        case {"type": "tool_use", "input": str(text)}:
            return text
        case {"type": "tool_use", "input": other} if other is not None and not isinstance(other, dict):
            return json.dumps(other)
        case _:
            return ""


def fit_to_history(reply: ModelReply) -> ModelReply:
    """Return a reply that history can hold: blocks beyond `MAX_REPLY_BYTES` are cut, and the model learns of it."""
    left, content, broken, is_cut = MAX_REPLY_BYTES, [], list(reply.broken), False
    for block in reply.content:
        size = len(to_json(block))
        if size <= left:
            content.append(block)
            left -= size
            continue
        is_cut = True
        if block.get("type") == "text":
            content.append({**block, "text": _truncate_json_text(block["text"], left // 2)})
            left -= len(to_json(content[-1]))
        elif block.get("type") == "tool_use" and left > MAX_REPLY_BYTES // 100:
            content.append({**block, "input": {}})
            broken.append(block["id"])
            left -= len(to_json(content[-1]))
    if not is_cut:
        return reply
    stop_reason = reply.stop_reason if broken else "max_tokens"
    return replace(reply, content=content, broken=tuple(broken), stop_reason=stop_reason, is_too_large=True)


def _truncate_json_text(text: str, limit: int) -> str:
    """Truncate a text to `limit` bytes of JSON; a control character takes six."""
    start = text.encode()[: limit - 2].decode(errors="ignore")
    return start if len(to_json(start)) <= limit else start[: limit // 6 - 2]
