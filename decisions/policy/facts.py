"""The facts that the expressions of rules see: about the call, the run, and the calls of its conversation."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from contracts.people.policy import PolicyContext
from contracts.run.transcript import Part, PartKind
from decisions.builtin_tools import DELEGATE, unwrap_use
from decisions.ids import json_digest
from decisions.mcp import server_of_tool
from decisions.policy.expression import is_exact
from decisions.run.compaction import latest_goal
from decisions.run.transcript import server_calls

MAX_HISTORY = 200  # calls
MAX_PAST_ARGUMENTS = 4 * 1024  # bytes; longer arguments are not in `history`
WEB, MAIL, FILES = "web", "mail", "files"
_MAIL_DOORS = ("mailbox", "follow-up")  # their starts quote messages from outside
_OWN_SOURCES = {"fetch": WEB, "read_file": FILES, "list_files": FILES}

PeerSources = Callable[[Iterable[str]], Iterable[str]]  # what these peers may read


@dataclass(frozen=True)
class RequestedCall:
    """A call that the model asks for."""

    tool_use_id: str
    tool: str
    arguments: dict[str, Any]


@dataclass
class PastCalls:
    """The calls of a conversation: counts of the run's own, the sources that it has read, and the latest calls."""

    counts: Counter[str] = field(default_factory=Counter)
    has_read: dict[str, None] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


def tool_uses_of(content: Iterable[dict[str, Any]]) -> list[RequestedCall]:
    """Return the tool uses of a reply whose arguments are an object."""
    uses = (unwrap_use(block) for block in content if block.get("type") == "tool_use")
    return [RequestedCall(use["id"], use["name"], use["input"]) for use in uses if isinstance(use["input"], dict)]


def source_of(tool: str) -> str | None:
    """Return the source that the tool reads, if its name tells: any tool named like one of MCP counts as that."""
    server = server_of_tool(tool)
    return f"mcp:{server}" if server else _OWN_SOURCES.get(tool)


def read_past(parts: Sequence[Part], context: PolicyContext | None, peer_sources: PeerSources) -> PastCalls:
    """Read the calls of a conversation. A call counts if it took a step, whatever its outcome."""
    past, uses, own = PastCalls(), dict[str, RequestedCall](), latest_goal(parts)
    for source in context.has_read if context else ():
        past.has_read[source] = None
    if context and context.caller and context.caller.door.partition(":")[0] in (*_MAIL_DOORS, "webhook"):
        past.has_read[MAIL] = None
    for at, part in enumerate(parts):
        if part.kind is PartKind.reply:
            uses |= {use.tool_use_id: use for use in tool_uses_of(part.content)}
            past.has_read |= dict.fromkeys(WEB for use in server_calls(part.content) if use["name"].startswith("web"))
        elif part.kind is PartKind.result:
            use = uses.get(part.content[0]["tool_use_id"])
            if use is None or part.about.get("step") is None:
                continue
            past.counts[use.tool] += at >= own
            past.has_read |= dict.fromkeys(_sources_of(use, peer_sources))
            past.history.append(_past_call(use, part))
    past.history = past.history[-MAX_HISTORY:]
    return past


def _sources_of(use: RequestedCall, peer_sources: PeerSources) -> list[str]:
    if use.tool == DELEGATE:
        subtasks = use.arguments.get("subtasks")
        rows = subtasks if isinstance(subtasks, list) else []
        return list(peer_sources(str(row["agent"]) for row in rows if isinstance(row, dict) and "agent" in row))
    source = source_of(use.tool)
    return [source] if source else []


def _past_call(use: RequestedCall, part: Part) -> dict[str, Any]:
    block = part.content[0]
    fits = is_exact(use.arguments) and len(to_json(use.arguments)) <= MAX_PAST_ARGUMENTS
    call = {
        "tool": use.tool,
        "args": use.arguments if fits else {},
        "outcome": str(block["content"]).partition(":")[0] if block.get("is_error") else "ok",
    }
    return call | ({"at": datetime.fromisoformat(part.about["at"])} if "at" in part.about else {})


def build_facts(  # noqa: PLR0913 - the facts
    use: RequestedCall,
    effect: str,
    agent: str,
    context: PolicyContext | None,
    past: PastCalls,
    tools: Iterable[str],
    now: datetime,
) -> dict[str, Any]:
    """Return the facts for one call. Without a context the run's caller is not known."""
    facts = {
        "args": use.arguments,
        "tool": use.tool,
        "effect": effect,
        "agent": agent,
        "run": {"calls": {**dict.fromkeys(tools, 0), **past.counts}, "has_read": list(past.has_read)},
        "history": past.history,
        "now": now,
    }
    if context is None:
        return facts
    sender = context.caller
    return facts | {"caller": {"door": sender.door if sender else "", "token": (sender and sender.token) or ""}}


def recorded_facts(names: Iterable[str], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the run among `names`, as they are recorded: without zeros, and history as a digest.

    A delegation always records what the run has read, since its subtasks inherit that.
    """
    recorded: dict[str, Any] = {}
    run, history = facts["run"], facts["history"]
    if "run" in names:
        recorded["calls"] = {tool: count for tool, count in run["calls"].items() if count}
    if "run" in names or facts["tool"] == DELEGATE:
        recorded["has_read"] = run["has_read"]
    if "history" in names:
        whole = [{**call, "at": str(call.get("at", ""))} for call in history]
        recorded["history"] = {"calls": len(history), "digest": json_digest(whole)}
    if "caller" in names:
        recorded["caller"] = facts.get("caller")
    if "now" in names:
        recorded["now"] = facts["now"].isoformat(timespec="seconds")
    return recorded
