"""A reply in the Messages API's form, as every wire builds it; how a call is bounded and repeated more leniently."""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_json
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.errors import WrongApiError, model_unavailable_error
from perdure.activities.providers.options import name_setting
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.tools.json_schema import read_arguments
from perdure.contracts.failures import RunFailure, Stop
from perdure.contracts.models import replace_surrogates
from perdure.contracts.run.turn import Usage
from perdure.decisions.run.recovery import parse_reply_room
from perdure.decisions.run.reply import CUT_OFF
from perdure.decisions.run.transcript import join_text_blocks
from perdure.decisions.text.formatting import truncate

MAX_REPLY_BYTES = 1024 * 1024  # of a reply's JSON; Temporal takes 2 MiB, and today's longest replies are half of this
MAX_CALL_TOKENS = 100_000_000  # of one call, whatever a server reports
MAX_RELAXED = 6  # times that one request is made milder
LIMITS = ("max_tokens", "max_completion_tokens")  # of a reply, in a request
MAX_END = 80  # characters of an end's unknown word, in an error
# The words of all APIs for the end of a reply, by those of the Messages API. With another end it may be half a reply.
_ENDS = {
    "end_turn": "end_turn stop eos eos_token complete completed",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use tool_calls tool_call function_call",
    "pause_turn": "pause_turn",
    "max_tokens": "max_tokens length model_length max_length max_output_tokens",
    "model_context_window_exceeded": "model_context_window_exceeded",
    "refusal": "refusal content_filter content_filtered safety recitation blocklist prohibited_content spii sensitive "
    "image_safety guardrail_intervened",
}
ENDS = {word: reason for reason, words in _ENDS.items() for word in words.split()}
_REASONING_TAGS = ("think", "thinking")
_REQUIRED_STRINGS = {"text": ("text",), "tool_use": ("id", "name"), "thinking": ("thinking",)}  # by type of block
_USAGE_FIELDS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
    "cache_write_1h": "ephemeral_1h_input_tokens",  # of `cache_creation`
}

Json = dict[str, Any]
_log = logging.getLogger(__name__)


async def call_leniently(
    call: ModelCall,
    request: Json,
    send: Callable[[Json], Awaitable[ModelReply]],
    relax: Callable[[Json, ApplicationError], Json | None],
) -> ModelReply:
    """Send the request, and after a refusal again as `relax` returns it, until that is None; within `call.limit`."""
    try:
        async with asyncio.timeout(call.limit):
            for left in range(MAX_RELAXED, -1, -1):
                try:
                    return await send(request)
                except ApplicationError as error:
                    is_refused = error.type in (RunFailure.model_refused, Stop.context_too_long)
                    milder = relax(request, error) if is_refused and left else None
                    if milder is None:
                        raise name_setting(error, call.definition.options) from None
                    request = milder
            raise AssertionError("unreachable")
    except TimeoutError:
        message = f"the model's reply was still coming after {call.limit:.0f} s; `turn_limit` bounds a whole turn"
        raise ApplicationError(message, type=RunFailure.turn_limit, non_retryable=True) from None


def lower_limit(request: Json, refusal: ApplicationError) -> Json | None:
    """Return the request for a shorter reply, if its limit, and not its prompt, is too large for the model."""
    name = next(name for name in LIMITS if name in request)
    room = parse_reply_room(refusal.message, request[name])
    thinking = request.get("thinking", {}).get("budget_tokens", 0)
    return {**request, name: room} if room is not None and room > thinking else None


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


class GrowingText:
    """A text that comes in pieces. `on_text` gets it as it grows, without reasoning between tags at its start, and so
    seldom that all of it takes linear time.
    """

    def __init__(self, on_text: Callable[[str], object]) -> None:
        self.size = 0
        self._on_text = on_text
        self._pieces: list[str] = []
        self._due = 1  # characters, at which it is reported

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size >= self._due:
            self.join()

    def join(self) -> str:
        """Return the text so far, and report it."""
        self._pieces = ["".join(self._pieces)]
        self._due = self.size + self.size // 64 + 1
        self._on_text(replace_surrogates(_without_reasoning(self._pieces[0])))
        return self._pieces[0]


@dataclass
class ReplyBuilder:
    """A reply under construction. Unlike the SDK's accumulator, it accepts broken tool arguments and lists them.

    It `is_ended` if the server has said that it is whole, and `is_too_large` if its rest was not read. `size` is the
    number of its characters.
    """

    on_text: Callable[[str], object]
    content: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    broken: list[str] = field(default_factory=list)
    is_ended: bool = False
    is_too_large: bool = False
    size: int = 0
    _places: dict[int, int] = field(default_factory=dict)  # places in `content` by index: some servers count from 1
    _pieces: dict[tuple[int, str], list[str]] = field(default_factory=dict)  # by place, and field of the block
    _ids: set[str] = field(default_factory=set)
    _server_ids: set[str] = field(default_factory=set)  # ids as the server wrote them
    repeated: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._text = GrowingText(self.on_text)

    def add_event(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_start":
                self.model = event["message"].get("model") or self.model
                self._count_usage(event["message"].get("usage"))
            case "content_block_start":
                self._places[event["index"]] = len(self.content)
                block = self._with_unique_id(_block_fields(event["content_block"]))
                self.size += len(to_json(block))
                self.content.append(block)
            case "content_block_delta":
                self._apply_delta(self._places[event["index"]], event["delta"])
            case "message_delta":
                self.stop_reason = event["delta"].get("stop_reason") or self.stop_reason
                self._count_usage(event.get("usage"))
            case _:
                pass  # not every server ends a block that it cuts off

    def add_message(self, message: dict[str, Any]) -> None:
        self.model = message.get("model") or ""
        self.content = [self._with_unique_id(dict(block)) for block in message["content"]]
        self.stop_reason = message.get("stop_reason")
        self.is_ended = True
        self._count_usage(message.get("usage"))
        self.on_text(replace_surrogates(join_text_blocks(split_reasoning(self.content))))

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
        match delta["type"]:
            case "text_delta" if text := self._add_piece(place, "text", delta["text"]):
                self._text.add(text)
            case "input_json_delta":
                self._add_piece(place, "input", delta["partial_json"])
            case "thinking_delta":
                self._add_piece(place, "thinking", delta["thinking"])
            case "signature_delta":
                block = self.content[place]
                block["signature"] = delta["signature"] or block.get("signature")
            case "citations_delta" if citation := delta["citation"]:
                self.size += len(to_json(citation))
                self.content[place].setdefault("citations", []).append(citation)
            case _:
                pass  # a newer kind of delta

    def _add_piece(self, place: int, name: str, text: str | None) -> str:
        """Add a piece of a field, which is joined at the end: all of them take linear time."""
        text = text or ""
        # Arguments are JSON text, in which a character of three bytes may take six.
        self.size += len(text) - (3 * text.count("\\u") if name == "input" else 0)
        self._pieces.setdefault((place, name), [self.content[place][name]] if name != "input" else []).append(text)
        return text

    def _join_pieces(self) -> None:
        for (place, name), pieces in self._pieces.items():
            if text := "".join(pieces):
                self.content[place][name] = text

    def _count_usage(self, usage: Any) -> None:
        """Keep the larger of two figures: they are totals, and servers send null or 0 for those they do not repeat."""
        figures = usage if isinstance(usage, dict) else {}
        by_time = figures.get("cache_creation")
        figures = {**figures, **by_time} if isinstance(by_time, dict) else figures
        numbers = {
            name: figures[key] for name, key in _USAGE_FIELDS.items() if isinstance(figures.get(key), int | float)
        }
        by_server = figures.get("server_tool_use")
        if isinstance(by_server, dict) and isinstance(searches := by_server.get("web_search_requests"), int):
            numbers["searches"] = searches
        known = dict(self.usage)
        larger: dict[str, Any] = {
            name: int(min(max(number, known[name]), MAX_CALL_TOKENS)) for name, number in numbers.items()
        }
        counted = self.usage.evolve(**larger)
        hour = min(counted.cache_write_1h, counted.cache_write)
        self.usage = counted.evolve(cache_write_1h=hour)

    def build_reply(self) -> ModelReply:
        """Return the reply. Raises ApplicationError if it has no end, or none that is known."""
        self._join_pieces()
        if self.size:
            self._text.join()
        stop_reason = self._read_end()
        self._must_be_valid()
        self._read_arguments(stop_reason)
        self.content = replace_surrogates(self.content)
        content = [  # without blank texts, which the API rejects
            {**block, "input": {}} if block.get("type") == "tool_use" and block.get("input") is None else block
            for block in split_reasoning(self.content)
            if block.get("type") != "text" or block.get("text", "").strip()
        ]
        broken, repeated = tuple(self.broken), tuple(self.repeated)
        reply = ModelReply(content, stop_reason, self.model, self.usage, broken, repeated)
        return fit_to_history(replace(reply, is_too_large=self.is_too_large))

    def _read_end(self) -> str:
        """Return the reason for the reply's end, in the Messages API's words. Raises ApplicationError, retryable.

        A stream that has its end is whole, even without a reason.
        """
        if self.is_too_large:
            return "max_tokens"
        calls = any(block["type"] == "tool_use" for block in self.content)
        if not self.stop_reason and self.is_ended and self.content:
            _log.warning("a reply of %s has no word for its end; its stream has ended, so it is whole", self.model)
            return "tool_use" if calls else "end_turn"
        if not self.stop_reason:
            raise model_unavailable_error("the model's answer was cut off in the middle of the stream")
        if not isinstance(self.stop_reason, str):
            raise TypeError(f"stop_reason is of type {type(self.stop_reason).__name__}")
        reason = ENDS.get(self.stop_reason.lower())
        if reason is None:
            word = truncate(self.stop_reason, MAX_END)
            raise model_unavailable_error(f"the model's answer has the end {word!r}, which is not known as a good one")
        return "tool_use" if calls and reason == "end_turn" else reason  # OpenAI's word if a call was forced

    def _must_be_valid(self) -> None:
        """Raise KeyError or TypeError if a required string is missing."""
        strings = [("model", self.model)]
        strings += [(name, block[name]) for block in self.content for name in _REQUIRED_STRINGS.get(block["type"], ())]
        for name, value in strings:
            if not isinstance(value, str):
                raise TypeError(f"{name} is of type {type(value).__name__}")

    def _read_arguments(self, stop_reason: str) -> None:
        for block in self.content:
            if written := _written_arguments(block):
                try:
                    block["input"] = read_arguments(written)
                except ValueError:
                    block["input"] = {}
                    self.broken.append(block["id"])
        last = self.content[-1] if self.content else {}
        if stop_reason in CUT_OFF and last.get("type") == "tool_use" and last["id"] not in self.broken:
            last["input"] = {}  # it may lack its end even if it looks complete: servers close what was cut off
            self.broken.append(last["id"])


def _block_fields(block: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in block.items() if value is not None}
    kind = fields["type"]
    return {**fields, kind: fields.get(kind, "")} if kind in ("text", "thinking") else fields


def split_reasoning(content: list[Json]) -> list[Json]:
    """Return the content with the reasoning in its first text as a block of thinking.

    Models that are served without a parser of their reasoning write it between tags; some templates have the first tag.
    """
    first = next((at for at, block in enumerate(content) if block.get("type") == "text"), None)
    if first is None:
        return content
    thinking, text = _split_tags(content[first]["text"])
    if text is None:
        return content
    blocks = [{"type": "thinking", "thinking": thinking.strip()}] if thinking.strip() else []
    return [*content[:first], *blocks, {**content[first], "text": text.lstrip()}, *content[first + 1 :]]


def _without_reasoning(text: str) -> str:
    """Return the beginning of a text as a person is to see it while it grows."""
    if any(f"<{name}>".startswith(text.strip()) for name in _REASONING_TAGS):
        return ""  # the tag is not whole yet
    _, rest = _split_tags(text)
    return text if rest is None else rest.lstrip()


def _split_tags(text: str) -> tuple[str, str | None]:
    """Return the reasoning and the rest of a text, None as the rest if there are no tags."""
    start = text.lstrip()
    for name in _REASONING_TAGS:
        if start.startswith(f"<{name}>"):
            thinking, _, rest = start.removeprefix(f"<{name}>").partition(f"</{name}>")
            return thinking, rest
        thinking, tag, rest = text.partition(f"</{name}>")
        if tag and thinking.rstrip(" ").endswith("\n") and (rest.startswith("\n") or not rest):
            return thinking, rest
    return "", None


def _written_arguments(block: dict[str, Any]) -> str:
    """Return the arguments of a tool use, ours or the provider's, as text if they are not an object, else ""."""
    match block:
        case {"type": "tool_use" | "server_tool_use", "input": str(text)}:
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


MAX_PARSED = 16 * 1024 * 1024  # characters of a reply's arguments, to see whether they are whole; later ones are not
CALL_SIZE = 60  # characters of a call without arguments
UNCLEAR = "pieces of calls that cannot be distinguished"  # no JSON, so that no call is made with it


@dataclass
class WrittenCall:
    """A call under construction. `chunk` is the number of the chunk in which it began."""

    index: int
    chunk: int
    id: str | None = None
    name: str | None = None
    extra: Any = None
    pieces: list[str] = field(default_factory=list)
    size: int = 0  # characters of the arguments

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


@dataclass
class CallPieces:
    """The calls so far. `size` is the number of their characters.

    A server `repeats` if a later piece of a call has a name, or another id.
    """

    calls: list[WrittenCall] = field(default_factory=list)
    size: int = 0
    repeats: bool = False
    _last: dict[int, WrittenCall] = field(default_factory=dict)  # by index
    _by_id: dict[tuple[int, str], WrittenCall] = field(default_factory=dict)
    _chunk: int = 0
    _parsed: int = 0  # characters

    def add_pieces(self, pieces: list[Json], *, are_whole: bool = False) -> None:
        """Add the pieces of one chunk. Those of several calls may alternate. If they `are_whole`, each is a call."""
        self._chunk += 1
        for place, piece in enumerate(pieces):
            function = piece.get("function") or {}
            index = len(self.calls) if are_whole else place if piece.get("index") is None else piece["index"]
            self._add_piece(index, piece, function.get("name"), _to_text(function.get("arguments")))

    def _add_piece(self, index: int, piece: Json, name: str | None, text: str) -> None:
        call_id = piece.get("id")
        call = self._by_id.get((index, call_id)) if call_id else None
        call = call or self._last.get(index)
        if call is None or (name and self._begins(call, call_id, name)):
            call = WrittenCall(index, self._chunk)
            self.calls.append(call)
            self._last[index] = call
            self.size += CALL_SIZE
        else:
            self.repeats = self.repeats or bool(name) or bool(call_id and call.id and call_id != call.id)
        if call_id and call.id is None:
            call.id = call_id
            self._by_id[index, call_id] = call
        call.name = call.name or name
        call.extra = call.extra or piece.get("extra_content")
        call.pieces.append(text)
        call.size += len(text)
        self.size += len(text)

    def _begins(self, call: WrittenCall, call_id: str | None, name: str) -> bool:
        """Return whether a piece with a name begins another call than the last one of its index.

        A name may also be repeated in each piece of a call, with another id, and even without arguments.
        """
        if call.name is None:
            return False
        if name != call.name or call.chunk == self._chunk:
            return True
        has_other_id = bool(call_id and call.id and call_id != call.id) and not self.repeats
        return self._is_whole(call) if call.size else has_other_id

    def _is_whole(self, call: WrittenCall) -> bool:
        """Return whether the arguments are JSON, as far as they have come."""
        self._parsed += call.size
        if self._parsed > MAX_PARSED:
            return False
        try:
            json.loads(call.arguments)
        except (ValueError, RecursionError):
            return False
        return True

    def in_order(self) -> list[Json]:
        """Return the calls with their arguments as written. Raises TypeError if one alone has no name.

        Arguments without a name may belong to any call: then those of each are broken.
        """
        calls = sorted(self.calls, key=lambda call: call.index)
        named = [call for call in calls if call.name is not None]
        written = {(call.index, call.name) for call in calls if call.arguments.strip()}
        has_nameless = any(name is None for _, name in written)
        if has_nameless and not named:
            raise TypeError("a call has no name")
        found: list[Json] = []
        for call in named:
            # Without arguments, it may be the first or last piece of another call with its name.
            is_doubtful = not call.arguments.strip() and (call.index, call.name) in written
            if not (is_doubtful and self.repeats):
                arguments: Any = UNCLEAR if is_doubtful or has_nameless else call.arguments or {}
                found.append({"id": call.id, "name": call.name, "input": arguments, "extra": call.extra})
        return found


def _to_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""
