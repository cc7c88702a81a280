"""The facts that the expressions of rules see: about the call, the run, and the calls of its conversation."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from perdure.contracts.policy import (
    CallsOfOthers,
    PolicyContext,
    ReservedCall,
    ReserveRequest,
    SharedCallsState,
)
from perdure.contracts.run.transcript import Part, PartKind
from perdure.decisions.ids import json_digest
from perdure.decisions.people.terms import sources_of_start
from perdure.decisions.policy.rules import CompiledRule, Policy, is_exact
from perdure.decisions.run.compaction import latest_goal
from perdure.decisions.run.transcript import server_calls
from perdure.decisions.tools import DELEGATE, server_of_tool, unwrap_use
from perdure.registry import feature_tools

MAX_HISTORY = 200  # calls
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
MAX_PAST_ARGUMENTS = 4 * 1024  # bytes; longer arguments are not in `history`, and to read them is an error
WEB, FILES = "web", "files"
_OWN_SOURCES = {"fetch": WEB, "read_file": FILES, "list_files": FILES}


PeerSources = Callable[[Iterable[str]], Iterable[str]]  # what these peers may read


@dataclass(frozen=True)
class RequestedCall:
    """A call that the model asks for."""

    tool_use_id: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class RequestedCalls:
    """The calls of a reply. `unmade` are the ids of those that are refused before any rule, and take no step."""

    content: Sequence[dict[str, Any]]
    unmade: Collection[str] = ()
    edits: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def uses(self) -> list[RequestedCall]:
        uses = tool_uses_of(self.content)
        return [replace(use, arguments=self.edits.get(use.tool_use_id, use.arguments)) for use in uses]


@dataclass
class PastCalls:
    """The calls so far: counts of the run's own, the sources that it has read, and the latest calls.

    `total` counts the calls of the conversation, `others` are the counts of other runs of the request. Arguments that
    are too large for the history are left out of it.
    """

    peer_sources: PeerSources
    counts: Counter[str] = field(default_factory=Counter)
    has_read: dict[str, None] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    others: Mapping[str, int] = field(default_factory=dict)

    def add_reply(self, content: Iterable[dict[str, Any]]) -> None:
        """Count what the provider read while the reply was written."""
        self.has_read |= dict.fromkeys(WEB for use in server_calls(content) if use["name"].startswith("web"))

    def add_call(self, use: RequestedCall, outcome: str, at: datetime | None, *, is_own: bool = True) -> None:
        """Count a call that took a step. `is_own`: of this run, not of an earlier turn of the conversation."""
        self.counts[use.tool] += is_own
        self.has_read |= dict.fromkeys(_sources_of(use, self.peer_sources))
        fits = is_in_history(use.arguments)
        call = {"tool": use.tool, "outcome": outcome}
        self.history.append(call | ({"args": use.arguments} if fits else {}) | ({} if at is None else {"at": at}))
        self.history = self.history[-MAX_HISTORY:]
        self.total += 1

    def add_others(self, others: CallsOfOthers) -> None:
        """Count the calls of other runs of the same request."""
        self.counts.update(others.counts)
        self.others = others.counts
        for call in others.history:
            known = {"args": call.arguments} if call.arguments is not None else {}
            at = {"at": call.at} if call.at is not None else {}
            self.history.append({"tool": call.tool, "outcome": call.outcome, **known, **at})
        if others.history:
            self.history.sort(key=lambda call: call.get("at") or _LONG_AGO)
        self.total += len(others.history) + (MAX_HISTORY if others.is_cut else 0)
        self.history = self.history[-MAX_HISTORY:]


def is_in_history(arguments: dict[str, Any]) -> bool:
    """Return whether the arguments of a call fit a history."""
    return is_exact(arguments) and len(to_json(arguments)) <= MAX_PAST_ARGUMENTS


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
    past, uses, own = PastCalls(peer_sources), dict[str, RequestedCall](), latest_goal(parts)
    if context:
        past.has_read |= dict.fromkeys(sources_of_start(context.caller, context.work))
    for at, part in enumerate(parts):
        past.has_read |= dict.fromkeys(part.about.get("has_read", ()))
        if part.kind is PartKind.reply:
            uses |= {use.tool_use_id: use for use in tool_uses_of(part.content)}
            past.add_reply(part.content)
        elif part.kind is PartKind.result:
            use = uses.get(part.content[0]["tool_use_id"])
            if use is not None and part.about.get("step") is not None:
                past.add_call(*_read_result(use, part), is_own=at >= own)
    return past


def latest_outcomes(parts: Sequence[Part], is_shared: Callable[[str], bool]) -> dict[str, str]:
    """Return the outcomes of the calls since the latest reply, by tool use."""
    start = next((at for at in reversed(range(len(parts))) if parts[at].kind is PartKind.reply), len(parts))
    uses = {use.tool_use_id: use for use in tool_uses_of(parts[start].content)} if start < len(parts) else {}
    results = (part for part in parts[start:] if part.kind is PartKind.result and part.about.get("step") is not None)
    known = ((uses.get(part.content[0]["tool_use_id"]), part) for part in results)
    return {use.tool_use_id: _read_result(use, part)[1] for use, part in known if use and is_shared(use.tool)}


def used_ids(parts: Sequence[Part], is_shared: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the ids of the latest tool uses of the conversation that took a step."""
    results = (part for part in parts if part.kind is PartKind.result and is_shared(str(part.about.get("tool"))))
    return tuple(str(part.content[0]["tool_use_id"]) for part in results)[-MAX_HISTORY:]


def _read_result(use: RequestedCall, part: Part) -> tuple[RequestedCall, str, datetime | None]:
    """Return the call as it was made, its outcome, and its time, if the run has recorded that."""
    block, changed = part.content[0], part.about.get("changed")
    content = block["content"] if isinstance(block["content"], str) else block["content"][0]["text"]
    outcome = content.partition(":")[0] if block.get("is_error") else "ok"
    if changed is not None:
        use, outcome = replace(use, arguments=changed["arguments"]), changed["outcome"]
    return use, outcome, datetime.fromisoformat(part.about["at"]) if "at" in part.about else None


def _sources_of(use: RequestedCall, peer_sources: PeerSources) -> list[str]:
    if use.tool == DELEGATE:
        return list(peer_sources(_agents_of(use)))
    source = source_of(use.tool)
    return [source] if source else []


def _agents_of(use: RequestedCall) -> list[str]:
    subtasks = use.arguments.get("subtasks")
    rows = subtasks if isinstance(subtasks, list) else []
    return [str(row["agent"]) for row in rows if isinstance(row, dict) and "agent" in row]


def sources_of_peers(use: RequestedCall, peer_sources: PeerSources) -> dict[str, list[str]]:
    """Return what each agent of a delegation may read, if subtasks depend on the results of others."""
    subtasks = use.arguments.get("subtasks")
    if use.tool != DELEGATE or not isinstance(subtasks, list):
        return {}
    if not any(isinstance(row, dict) and row.get("depends_on") for row in subtasks):
        return {}
    return {agent: sorted(peer_sources([agent])) for agent in dict.fromkeys(_agents_of(use))}


def build_facts(  # noqa: PLR0913 - the facts
    use: RequestedCall,
    effect: str,
    agent: str,
    context: PolicyContext | None,
    past: PastCalls,
    tools: Iterable[str],
    now: datetime,
) -> dict[str, Any]:
    """Return the facts for one call. Without a context the run's caller is not known.

    There is no `history` if it does not hold all calls: what a rule cannot see may not make its verdict milder.
    """
    facts = {
        "args": use.arguments,
        "tool": use.tool,
        "effect": effect,
        "agent": agent,
        "run": {"calls": {**dict.fromkeys(tools, 0), **past.counts}, "has_read": list(past.has_read)},
        "others": dict(past.others),
        "now": now,
    }
    if past.total <= MAX_HISTORY:
        facts["history"] = past.history.copy()
    if context is None:
        return facts
    sender = context.caller
    return facts | {"caller": {"door": sender.door if sender else "", "token": (sender and sender.token) or ""}}


def recorded_facts(names: Iterable[str], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the run among `names`, as they are recorded: without zeros, and history as a digest.

    A call that sets off other work always records what the run has read, since that work inherits it.
    """
    recorded: dict[str, Any] = {}
    run, history = facts["run"], facts.get("history")
    if "run" in names:
        recorded["calls"] = {tool: count for tool, count in run["calls"].items() if count}
        recorded |= {"others": others} if (others := facts.get("others")) else {}
    if "run" in names or facts["tool"] in feature_tools():
        recorded["has_read"] = run["has_read"]
    if facts.get("peers"):
        recorded["peers"] = facts["peers"]
    if "history" in names and history is not None:
        whole = [{**call, "at": str(call.get("at", ""))} for call in history]
        recorded["history"] = {"calls": len(history), "digest": json_digest(whole)}
    if "caller" in names:
        recorded["caller"] = facts.get("caller")
    if "now" in names:
        recorded["now"] = facts["now"].isoformat(timespec="seconds")
    return recorded


MAX_LISTED = 200  # calls, as in `history`
MAX_ARGUMENTS = 256 * 1024  # bytes of the arguments of all listed calls
OLD_RUNS = ""  # in `older`: runs that are no longer counted one by one
MAX_OLDER_RUNS = 500

_COUNTED = re.compile(r"""\brun\.calls(?:\[\s*(?:"([\w.-]+)"|'([\w.-]+)')\s*\]|\.(\w+))""")
_SEARCHED = re.compile(
    r"""\bhistory\s*\.\s*(?:exists|exists_one|filter)\s*\(\s*(\w+)\s*,\s*\1\.tool\s*==\s*(?:"([\w.-]+)"|'([\w.-]+)')\s*(?=&&|\))"""
)


@dataclass(frozen=True)
class SharedFacts:
    """The facts of other runs that rules read: calls of these `tools`, or of all if None, and their `history`."""

    tools: frozenset[str] | None = frozenset()
    history: bool = False

    def __or__(self, other: "SharedFacts") -> "SharedFacts":
        tools = None if self.tools is None or other.tools is None else self.tools | other.tools
        return SharedFacts(tools, self.history or other.history)

    def __bool__(self) -> bool:
        return self.tools is None or bool(self.tools)

    def has(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools


def facts_of_rule(compiled: CompiledRule) -> SharedFacts:
    """Return what the rule reads of other runs' calls, by the text of its expression."""
    text, names = (compiled.when.text, compiled.when.names) if compiled.when else ("", frozenset[str]())
    found = SharedFacts()
    if "run" in names:
        rest = _COUNTED.sub("", text).replace("run.has_read", "")
        tools = {name for match in _COUNTED.finditer(text) for name in match.groups() if name}
        found |= SharedFacts(None if re.search(r"\brun\b", rest) else frozenset(tools))
    if "history" in names:
        rest = _SEARCHED.sub("", text)
        tools = {name for match in _SEARCHED.finditer(text) for name in match.groups()[1:] if name}
        is_plain = "||" not in text and "?" not in text and not re.search(r"\bhistory\b", rest)
        found |= SharedFacts(frozenset(tools) if is_plain else None, history=True)
    return found


def facts_of_policies(policies: Iterable[Policy]) -> SharedFacts:
    """Return what any of the rules reads: a call of one tool may be counted by a rule on another, of another agent."""
    found = SharedFacts()
    for policy in policies:
        for compiled in policy.rules:
            found |= facts_of_rule(compiled)
    return found


def reads_others(policies: Iterable[Policy], tool: str, agent: str) -> bool:
    """Return whether a rule about this call reads the calls of other runs."""
    return any(
        compiled.is_about(tool, agent) and bool(facts_of_rule(compiled))
        for policy in policies
        for compiled in policy.rules
    )


def reserve_calls(state: SharedCallsState, request: ReserveRequest) -> tuple[SharedCallsState, CallsOfOthers]:
    """Reserve the calls, and return those of other runs that were reserved before.

    A repeat reserves the same. An attempt that was followed by a later one changes nothing.
    """
    at_place = [one for one in state.calls if (one.run, one.place) == (request.run, request.place)]
    if any(one.order > request.order for one in at_place):
        return state, _find_others(state, request)
    again = {call.tool_use_id for call in request.calls}
    dropped = [one for one in at_place if request.replaces or one.call.tool_use_id in again]
    kept = tuple(_settle(one, request) for one in state.calls if one not in dropped)
    before = state.evolve(calls=kept)
    own = {"run": request.run, "place": request.place, "order": request.order, "conversation": request.conversation}
    added = tuple(ReservedCall(**own, call=call) for call in request.calls)
    return _bound_calls(before.evolve(calls=(*kept, *added))), _find_others(before, request)


def _settle(one: ReservedCall, request: ReserveRequest) -> ReservedCall:
    outcome = request.outcomes.get(one.call.tool_use_id) if one.run == request.run else None
    return one.evolve(call=one.call.evolve(outcome=outcome)) if outcome else one


def _find_others(state: SharedCallsState, request: ReserveRequest) -> CallsOfOthers:
    known = {request.run, *request.known}
    others = [one for one in state.calls if one.run not in known]
    older = Counter[str]()
    for run, counts in state.older.items():
        older.update({} if run in known else counts)
    counts = Counter(one.call.tool for one in others) + older
    if not request.needs_history:
        return CallsOfOthers(counts=dict(counts))
    seen = set(request.seen)
    history = (one.call for one in others if not (_is_in_lane(one, request) and one.call.tool_use_id in seen))
    return CallsOfOthers(counts=dict(counts), history=tuple(history), is_cut=bool(older))


def _is_in_lane(one: ReservedCall, request: ReserveRequest) -> bool:
    return bool(one.conversation) and one.conversation == request.conversation


def _bound_calls(state: SharedCallsState) -> SharedCallsState:
    """Count the oldest calls without listing them, and drop arguments, if there are too many."""
    listed, extra = state.calls[-MAX_LISTED:], state.calls[:-MAX_LISTED]
    older = {run: Counter(counts) for run, counts in state.older.items()}
    for one in extra:
        older.setdefault(one.run, Counter())[one.call.tool] += 1
    while len(older) > MAX_OLDER_RUNS:
        first = next(run for run in older if run != OLD_RUNS)
        older.setdefault(OLD_RUNS, Counter()).update(older.pop(first))
    return state.evolve(calls=_bound_arguments(listed), older={run: dict(counts) for run, counts in older.items()})


def _bound_arguments(calls: Sequence[ReservedCall]) -> tuple[ReservedCall, ...]:
    room, bounded = MAX_ARGUMENTS, list[ReservedCall]()
    for one in reversed(calls):
        room -= len(to_json(one.call.arguments)) if one.call.arguments is not None else 0
        bare = one.call.evolve(arguments=None)
        bounded.append(one if room >= 0 else one.evolve(call=bare))
    return tuple(reversed(bounded))
