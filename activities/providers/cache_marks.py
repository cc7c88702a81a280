"""Marks for the provider's prompt cache. Everything before a mark must stay the same, or the cache is missed."""

from typing import Any

from contracts.model_settings import CacheTime

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
