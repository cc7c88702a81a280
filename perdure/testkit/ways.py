"""Ways of servers that speak these APIs otherwise than their makers, to try an agent with them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from perdure.testkit.rehearsal.sse import encode_stream, estimate_tokens

Json = dict[str, Any]

MESSAGES_OVERFLOW = "input length and `max_tokens` exceed context limit: {prompt} + {asked} > {window}"
CHAT_OVERFLOW = (
    "This model's maximum context length is {window} tokens. However, you requested {total} tokens ({prompt} in the "
    "messages, {asked} in the completion)."
)


@dataclass(frozen=True)
class Ways:
    """How a server differs.

    `index` and `ids` are those of calls in a stream of Chat Completions, and `repeats_name` writes a call's name in
    each of its pieces. `end` is the word for the end of each reply, "" for none; without `has_last_event` the stream
    lacks `[DONE]` or `message_stop`, and without `names_events` those of the Messages API have no names. `thinking` is
    a field of its own, a list of parts or between tags in the text. A request whose prompt and `max_tokens` exceed the
    `window` is refused, and with `has_strict_order` one with a user's message after a tool's.
    """

    index: Literal["own", "zero", "none"] = "own"
    ids: Literal["own", "empty", "same", "each"] = "own"
    repeats_name: bool = False
    end: str | None = None
    has_last_event: bool = True
    names_events: bool = True
    thinking: Literal["field", "parts", "tags"] = "field"
    window: int | None = None
    has_strict_order: bool = False

    @property
    def tells_calls_apart(self) -> bool:
        return self.index == "own" or self.ids == "own"

    def name_end(self, word: str) -> str | None:
        return word if self.end is None else self.end or None

    def write_piece(self, number: int, call: Json, at: int, arguments: str) -> Json:
        """Return the piece `at` of the call with this number."""
        is_first = at == 0
        function = {"arguments": arguments} | ({"name": call["name"]} if is_first or self.repeats_name else {})
        piece: Json = {"function": function} | ({"type": "function"} if is_first else {})
        if self.index != "none":
            piece["index"] = number if self.index == "own" else 0
        if is_first or self.index != "own" or self.ids != "own":
            piece["id"] = {"own": call["id"], "empty": "", "same": "call", "each": f"{call['id']}-{at}"}[self.ids]
        return piece

    def find_overflow(self, body: Json, words: str) -> str | None:
        """Return the reason why the reply has no room in the window, if any."""
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        prompt = estimate_tokens(body["messages"])
        if self.window is None or prompt + asked <= self.window:
            return None
        return words.format(prompt=prompt, asked=asked, total=prompt + asked, window=self.window)


USUAL_WAYS = Ways()


def encode_messages(message: Json, ways: Ways) -> Iterator[bytes]:
    """Yield the events of one reply in the Messages API."""
    events = list(encode_stream({**message, "stop_reason": ways.name_end(message["stop_reason"])}))
    for event in events if ways.has_last_event else events[:-1]:
        yield event if ways.names_events else event.partition(b"\n")[2]
