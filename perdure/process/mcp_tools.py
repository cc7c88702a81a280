"""Tools of MCP servers, wired: what `mcp.lock.json` holds becomes tools of a project; `perdure tools` changes it.

The MCP SDK takes a second to load, so only what speaks to servers, or offers their tools, loads it.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from activities.mcp.config import StdioServer, program_of
from activities.mcp.lock import NAME, Accepted, BadLock, Pins, change_lock, keep_first, read_lock
from activities.tools.interface import Tool
from contracts.agent import Agent
from contracts.mcp import Pin, PinnedProgram, PinState
from contracts.tool import ToolKind, ToolRoute
from decisions.api_tool import api_fault
from decisions.mcp import SEPARATOR, difference, effect_of, is_looser, server_of, states, tool_name
from settings import McpToolSettings, ProjectError, Settings
from settings.problems import meant

if TYPE_CHECKING:
    from activities.mcp.connection import Connections, Unreachable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Offer:
    """The tools of all pinned servers, and the agents with the tools that they may use by name."""

    tools: Mapping[str, Tool]
    agents: Mapping[str, Agent]


@dataclass(frozen=True)
class Standing:
    """A server as it is now beside what was accepted. `down` says why it could not be asked.

    `differences` are those of tools that are not as accepted; `added` are the new ones, as the server defines them.
    `refused` are tools that no model could be offered, and why.
    """

    server: str
    is_seen: bool
    down: str | None = None
    tools: Mapping[str, PinState] = field(default_factory=dict)
    differences: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Pin] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing for a person to see to."""
        return self.is_seen and self.down is None and all(state is PinState.pinned for state in self.tools.values())


@asynccontextmanager
async def offering(settings: Settings) -> AsyncIterator[Offer]:
    """The tools of a worker; its servers end with the block. Raises ProjectError.

    Only a server that an agent uses and nobody has seen yet is started now: what it says is accepted.
    """
    if not settings.servers:
        yield offer_of(settings)
        return
    pins = accepted(settings)
    connections = _connections(settings, pins)
    try:
        unseen = [name for name in _used(settings) if name not in pins]
        if unseen:
            pins = await _first_seen(settings, connections, unseen)
        yield _offer(settings, connections, pins, is_strict=True)
    finally:
        await connections.close()


def offer_of(settings: Settings) -> Offer:
    """What is pinned, for looking at: no server is started, and one that nobody has seen offers nothing yet."""
    if not settings.servers:
        _no_strangers(settings, {})
        return Offer({}, settings.agents)
    pins = accepted(settings)
    return _offer(settings, _connections(settings, pins), pins, is_strict=False)


def accepted(settings: Settings) -> Accepted:
    """What the lock file holds. Raises ProjectError."""
    try:
        return read_lock(lock_of(settings))
    except BadLock as error:
        raise ProjectError(str(error)) from None


def lock_of(settings: Settings) -> Path:
    return settings.folder / NAME


def _connections(settings: Settings, pins: Accepted | None = None) -> "Connections":
    """With `pins`, only an accepted program is started."""
    from activities.mcp.connection import Connections

    return Connections(settings.servers.values(), settings.secrets.redact, None if pins is None else pins.programs)


def _programs(settings: Settings, names: Iterable[str]) -> dict[str, PinnedProgram]:
    servers = [settings.servers[name] for name in names]
    return {server.name: program_of(server) for server in servers if isinstance(server, StdioServer)}


def _used(settings: Settings) -> list[str]:
    """The servers that agents name, in the order of the file."""
    named = {server_of(tool) for agent in settings.agents.values() for tool in agent.tools}
    return [name for name in settings.servers if name in named]


async def _first_seen(settings: Settings, connections: "Connections", names: list[str]) -> Accepted:
    from activities.mcp.connection import Unreachable

    seen: dict[str, Mapping[str, Pin]] = {}
    for name, found in (await connections.listed(names)).items():
        if isinstance(found, Unreachable):
            raise ProjectError(f"{found}; an agent uses it, and {NAME} does not have its tools yet")
        seen[name] = found
        for tool, why in connections[name].refused.items():
            _log.warning("mcp server %s: its tool %r is not offered: %s", name, tool, why)
        _log.info("mcp server %s: first seen, its %d tools are accepted as they are", name, len(found))
    try:
        return keep_first(lock_of(settings), seen, _programs(settings, seen))
    except BadLock as error:
        raise ProjectError(str(error)) from None


def _offer(settings: Settings, connections: "Connections", pins: Pins, *, is_strict: bool) -> Offer:
    from activities.mcp.tool import McpTool

    tools, left_out = dict[str, Tool](), dict[str, str]()
    for server in settings.servers:
        for tool, kept in pins.get(server, {}).items():
            name = tool_name(server, tool)
            if fault := api_fault(name, kept.description, kept.input_schema):  # of a lock file that is older
                left_out[name] = f"models do not take it: {fault[1]}"
                continue
            tools[name] = McpTool(_route(name, kept, settings), tool, kept, connections[server])
    _no_strangers(settings, {**tools, **left_out})
    for name, why in left_out.items() if is_strict else ():
        _log.warning("mcp tool %s is not offered: %s", name, why)
    there = dict.fromkeys(tools, "") | left_out
    agents = {
        name: agent.model_copy(update={"tools": tuple(_named(agent, settings, pins, there, is_strict=is_strict))})
        for name, agent in settings.agents.items()
    }
    return Offer(tools, agents)


def _route(name: str, kept: Pin, settings: Settings) -> ToolRoute:
    local = settings.file.tools.get(name, McpToolSettings(kind="mcp"))
    if not isinstance(local, McpToolSettings):
        told = 'it is a tool of an MCP server, so it takes kind = "mcp" only'
        raise ProjectError(f"{settings.at('tools', name, 'kind')}: {told}")
    hinted = effect_of(kept.annotations)
    if local.effect is not None and is_looser(local.effect, hinted):
        told = f"its server's annotations make it {hinted}, and {local.effect} would be looser"
        at = settings.at("tools", name, "effect")
        raise ProjectError(f"{at}: {told}; read is loosest, then keyed, then once")
    return ToolRoute(
        name=name,
        kind=ToolKind.mcp,
        effect=local.effect or hinted,
        approval=local.approval,
        pollable=local.pollable,
        timeout=local.timeout,
        approval_timeout=local.approval_timeout,
    )


def _no_strangers(settings: Settings, tools: Mapping[str, object]) -> None:
    """Settings for a tool that no server has would be believed to hold."""
    for name, local in settings.file.tools.items():
        if not isinstance(local, McpToolSettings):
            continue
        server = server_of(name)
        if server not in settings.servers:
            told = f"there is no MCP server {server or name!r} in .mcp.json{meant(server or name, settings.servers)}"
            raise ProjectError(f"{settings.at('tools', name)}: {told}")
        if name not in tools and any(server_of(each) == server for each in tools):
            raise ProjectError(f"{settings.at('tools', name)}: {_no_such(name, server, tools)}")


def _named(agent: Agent, settings: Settings, pins: Pins, tools: Mapping[str, str], *, is_strict: bool) -> Iterable[str]:
    """Its allow-list, with `server__*` written out, and without those of `tools` that say why they are left out."""
    for name in dict.fromkeys(agent.tools):
        server = server_of(name)
        if server not in settings.servers:
            yield name
        elif name == f"{server}{SEPARATOR}*":
            own = (each for each, why in tools.items() if server_of(each) == server and not why)
            yield from (each for each in own if each not in agent.tools)
        elif name in tools:
            if not tools[name]:
                yield name
        elif is_strict or server in pins:
            raise ProjectError(f"{settings.roster.at(agent.name, 'tools', name)}: {_no_such(name, server, tools)}")


def _no_such(name: str, server: str | None, tools: Mapping[str, object]) -> str:
    there = [each for each in tools if server_of(each) == server]
    told = f"{NAME} has no {name!r}{meant(name, there)}; of {server} it has: {', '.join(there) or 'none'}"
    return f"{told} (perdure tools --accept {server} takes what is new)"


async def standings(settings: Settings) -> list[Standing]:
    """Asks all servers at the same time. Raises ProjectError where the lock file cannot be read."""
    pins = accepted(settings)
    connections = _connections(settings, pins)
    try:
        return _compared(connections, await connections.listed(settings.servers), pins)
    finally:
        await connections.close()


def _compared(
    connections: "Connections", found: "Mapping[str, Mapping[str, Pin] | Unreachable]", pins: Pins
) -> list[Standing]:
    told = []
    for name, tools in found.items():
        kept, is_seen = pins.get(name, {}), name in pins
        if not isinstance(tools, Mapping):
            told.append(Standing(name, is_seen, down=str(tools)))
            continue
        now = states(kept, tools)
        changed = [tool for tool, state in now.items() if state is not PinState.pinned]
        differences = {tool: difference(kept.get(tool), tools.get(tool)) for tool in changed}
        added = {tool: tools[tool] for tool in changed if now[tool] is PinState.new}
        told.append(Standing(name, is_seen, None, now, differences, added, connections[name].refused))
    return told


async def accept(settings: Settings, what: str | None) -> list[Standing]:
    """Takes what servers say now: of all, of one (`server`), or of one tool (`server__tool`).

    Gives how they stood before. Raises ProjectError; a server that is down keeps what it had.
    """
    server = what and (server_of(what) or what)
    if server and server not in settings.servers:
        known = ", ".join(settings.servers) or "none"
        near = meant(server, settings.servers)
        raise ProjectError(f"there is no MCP server {server!r} in .mcp.json{near}; the servers are: {known}")
    tool = what[len(f"{server}{SEPARATOR}") :] if what and what != server else None
    connections = _connections(settings)
    try:
        listed = await connections.listed([server] if server else settings.servers)
    finally:
        await connections.close()
    before = _compared(connections, listed, accepted(settings))  # of what is taken, nothing else is shown
    found = {name: tools for name, tools in listed.items() if isinstance(tools, Mapping)}
    if tool and not any(tool in each.tools for each in before if each.down is None):
        down = "; ".join(each.down for each in before if each.down)
        raise ProjectError(down or f"MCP server {server} has no tool {tool!r}, and had none when it was accepted")

    def take(pins: Accepted) -> None:
        pins.programs |= _programs(settings, found)
        for name, tools in found.items():
            if tool is None:
                pins[name] = dict(tools)
                continue
            pins.setdefault(name, {}).pop(tool, None)
            if tool in tools:
                pins[name][tool] = tools[tool]

    try:
        change_lock(lock_of(settings), take)
    except (BadLock, OSError) as error:
        raise ProjectError(f"{lock_of(settings)}: {getattr(error, 'strerror', None) or error}") from None
    return before if tool is None else [_only(tool, each) for each in before]


def _only(tool: str, standing: Standing) -> Standing:
    return replace(standing, tools={tool: standing.tools[tool]}, refused={})
