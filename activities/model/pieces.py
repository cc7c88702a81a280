"""A reply in pieces: the rest of one that the length limit cut off is asked for, and the pieces become one reply.

The model sees its piece and a note, as newer models accept no prefilled reply. Pieces are stored before the next call,
so that a retry of the turn continues from them. In batches each piece has a file that is not replaced, so that a batch
delivered twice, or by a worker that was paused meanwhile, adds its piece once.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from pydantic import TypeAdapter, ValidationError

from activities.providers.port import ModelCall, ModelReply
from activities.providers.reply import fit_to_history
from activities.security.secrets import Secrets
from activities.storage.store import Store, read_model
from contracts.models import FrozenModel
from contracts.run.transcript import Part, PartKind
from contracts.run.turn import TurnRequest
from decisions.ids import digest
from decisions.run.transcript import add_message, is_thought, join_text_blocks, note_part

MAX_CONTINUATIONS = 3  # of one reply
SHOWN_END = 80  # characters of the piece's end that the note quotes
_STORED = TypeAdapter(ModelReply)

Json = dict[str, Any]


class BatchedPieces(FrozenModel):
    """The pieces of a batched reply so far, joined and priced, and the batches that brought them, in order."""

    reply: ModelReply | None = None
    batches: tuple[str, ...] = ()


def can_continue(reply: ModelReply, tokens_left: int | None, usd_left: float | None) -> bool:
    """Return whether to ask for the rest: the reply was cut off in a text or in its only call, and budgets allow it.

    A reply with a whole call is not continued: the call needs its result first. Nor is one that is all thinking.
    """
    calls = {block["id"] for block in reply.content if block["type"] == "tool_use"}
    return (
        reply.stop_reason == "max_tokens"
        and not reply.is_too_large
        and reply.pieces <= MAX_CONTINUATIONS
        and calls <= {*reply.broken}
        and bool(calls or join_text_blocks(reply.content))
        and (tokens_left is None or reply.usage.total < tokens_left)
        and (usd_left is None or (reply.cost_usd or 0.0) < usd_left)
    )


def continuation_call(call: ModelCall, reply: ModelReply) -> ModelCall:
    """Return the call for the rest of the reply."""
    text = "".join(block["text"] for block in _whole_blocks(reply) if block["type"] == "text")
    messages = continuation_messages(call.messages, reply)
    return replace(call, messages=messages, on_text=lambda more: call.on_text(text + more))


def continuation_messages(messages: Sequence[Json], reply: ModelReply) -> list[Json]:
    """Return the messages that ask for the rest of the reply to `messages`."""
    kept = _whole_blocks(reply)
    longer = [*messages[:-1], {**messages[-1], "content": list(messages[-1]["content"])}]
    if kept:
        add_message(longer, Part(kind=PartKind.reply, content=kept))
    add_message(longer, note_part(_continuation_note(reply, kept)))
    return longer


def _whole_blocks(reply: ModelReply) -> list[Json]:
    """Return the content without calls that were cut off, and without what cannot end a reply."""
    kept = [block for block in reply.content if block["type"] != "tool_use"]
    while kept and (is_thought(kept[-1]) or kept[-1]["type"] == "server_tool_use"):
        kept.pop()
    return kept


def _continuation_note(reply: ModelReply, kept: Sequence[Json]) -> str:
    call = next((block["name"] for block in reply.content if block["type"] == "tool_use"), None)
    if call is not None:
        return (
            f"Your reply was cut off by the length limit in the arguments of `{call}`, so that call was not made. Make "
            "it again, with shorter arguments: divide what is long into several calls. Repeat no text."
        )
    return (
        f"Your reply was cut off by the length limit, after {join_text_blocks(kept)[-SHOWN_END:]!r}. Continue exactly "
        "there, even within a word. Repeat nothing and do not mention the limit: what you write is appended as it is."
    )


def join_replies(first: ModelReply, rest: ModelReply) -> ModelReply:
    """Return both as one reply. The thoughts of the rest are left out, so that its text continues the first text."""
    content = _whole_blocks(first)
    more = [block for block in rest.content if not content or not is_thought(block)]
    if content and more and content[-1]["type"] == more[0]["type"] == "text":
        content[-1] = _join_texts(content[-1], more.pop(0))
    costs = (first.cost_usd, rest.cost_usd)
    joined = replace(
        rest,
        content=[*content, *more],
        model=first.model,
        asked=first.asked,
        usage=first.usage + rest.usage,
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        waited=first.waited + rest.waited,
        passed_over=first.passed_over,
        pieces=first.pieces + 1,
    )
    return fit_to_history(joined)


def _join_texts(first: Json, rest: Json) -> Json:
    citations = [*first.get("citations", ()), *rest.get("citations", ())]
    return {**first, "text": first["text"] + rest["text"], **({"citations": citations} if citations else {})}


def save_pieces(store: Store, request: TurnRequest, reply: ModelReply, secrets: Secrets) -> None:
    """Store the pieces so far. Raises OSError."""
    clean = replace(reply, content=secrets.redact_value(reply.content))
    store.write(_file_name(request), _STORED.dump_json(clean))


def read_pieces(store: Store, request: TurnRequest) -> ModelReply | None:
    """Return the pieces that an earlier attempt of the same request stored, if any."""
    with suppress(OSError, ValidationError):
        return _STORED.validate_json(store.read(_file_name(request)))
    return None


def save_batched_pieces(store: Store, entry: str, pieces: BatchedPieces) -> None:
    """Store the pieces of an entry of a batch, unless another worker has stored as many. Raises OSError."""
    with suppress(FileExistsError):
        store.create(_batched_name(entry, len(pieces.batches)), pieces.model_dump_json().encode())


def read_batched_pieces(store: Store, entry: str) -> BatchedPieces:
    """Return the pieces of an entry so far. Raises OSError."""
    latest = BatchedPieces()
    for number in count(1):
        longer = read_model(store, _batched_name(entry, number), BatchedPieces)
        if longer is None:
            break
        latest = longer
    return latest


def _batched_name(entry: str, number: int) -> str:
    return f"pieces-{entry}-{number}.json"


def _file_name(request: TurnRequest) -> str:
    same = (request.turn, request.length, request.head, request.definition, request.force, request.is_closing)
    return f"pieces-{digest(repr(same).encode(), 12)}.json"
