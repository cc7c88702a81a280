"""Replies of a scripted model, and readers of the requests that it gets."""

import json
from collections.abc import Callable
from typing import Any

from perdure.testkit.model_server import ScriptedAnswer, calls, fails

FINISH = calls(("finish", {"outcome": "done"}))


def count_replies(body: dict[str, Any]) -> int:
    """Replies of the model so far in this conversation: the number of the turn, from 0."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def by_turn(reply: Callable[[int], ScriptedAnswer]) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """A script without an end: the reply of each turn, by its number."""
    return lambda body: reply(count_replies(body))


def agent_of(body: dict[str, Any]) -> str:
    """The agent that a request is for, whose prompt says "I am NAME."."""
    return str(body["system"]).rpartition("I am ")[2].partition(".")[0]


def is_summary(body: dict[str, Any]) -> bool:
    return "You summarise the earlier part" in str(body["system"])


def forced_tool(body: dict[str, Any]) -> str | None:
    name: str | None = body.get("tool_choice", {}).get("name")
    return name


def message_blocks(body: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The blocks of this kind in a request, by both sides, in order."""
    return [block for message in body["messages"] for block in message["content"] if block["type"] == kind]


def tool_results(body: dict[str, Any]) -> list[str]:
    return [block["content"] for block in message_blocks(body, "tool_result")]


def texts(body: dict[str, Any]) -> list[str]:
    return [block["text"] for block in message_blocks(body, "text")]


class BreakingScript:
    """Replies by the number of the turn; from turn `breaks` on it fails, until `breaks` is None."""

    def __init__(self, *answers: ScriptedAnswer, breaks: int | None = None) -> None:
        self.answers = answers
        self.breaks = breaks

    def __call__(self, body: dict[str, Any]) -> ScriptedAnswer:
        turn = count_replies(body)
        if self.breaks is not None and turn >= self.breaks:
            return fails(401, type="authentication_error")
        return self.answers[turn]


def same_prefix(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The share of a request that the next one begins with, in the order in which a provider's cache reads it.

    The marks move on with the conversation, and are no part of what is cached.
    """
    one, two = (
        json.dumps([request["tools"], request["system"], without_cache_marks(request["messages"])])
        for request in (before, after)
    )
    common = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return common / len(one)


def without_cache_marks(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**m, "content": [{k: v for k, v in block.items() if k != "cache_control"} for block in m["content"]]}
        for m in messages
    ]
