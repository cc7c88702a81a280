"""Tools of MCP servers: those accepted in `mcp.lock.json` become tools of a project; `perdure tools` changes it.

The MCP SDK takes a second to load, so functions that need it import it.
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
    """The tools of all accepted servers, and the agents with their tools written out by name."""

    tools: Mapping[str, Tool]
    agents: Mapping[str, Agent]


@dataclass(frozen=True)
class Standing:
    """A server's current tools compared with the accepted ones. `down` is the error if it did not answer.

    `differences` are those of changed tools, `added` the new tools as the server defines them, `refused` the reasons
    why models do not accept a tool.
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
        """The server is known and up, and no tool needs a person's decision."""
        return self.is_seen and self.down is None and all(state is PinState.pinned for state in self.tools.values())


@asynccontextmanager
async def offering(settings: Settings) -> AsyncIterator[Offer]:
    """Yield the tools of a worker, and stop the servers at the end. Raises ProjectError.

    A server that an agent uses and that is not in the lock file is started now, and its tools are accepted.
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
    """Return the accepted tools without starting a server, for display; a new server offers no tools."""
    if not settings.servers:
        _no_strangers(settings, {})
        return Offer({}, settings.agents)
    pins = accepted(settings)
    return _offer(settings, _connections(settings, pins), pins, is_strict=False)


def accepted(settings: Settings) -> Accepted:
    """Return the content of the lock file. Raises ProjectError."""
    try:
        return read_lock(lock_of(settings))
    except BadLock as error:
        raise ProjectError(str(error)) from None


def lock_of(settings: Settings) -> Path:
    return settings.folder / NAME


def _connections(settings: Settings, pins: Accepted | None = None) -> "Connections":
    """Return connections to all servers; with `pins`, they start accepted programs only."""
    from activities.mcp.connection import Connections

    return Connections(settings.servers.values(), settings.secrets.redact, None if pins is None else pins.programs)


def _programs(settings: Settings, names: Iterable[str]) -> dict[str, PinnedProgram]:
    servers = [settings.servers[name] for name in names]
    return {server.name: program_of(server) for server in servers if isinstance(server, StdioServer)}


def _used(settings: Settings) -> list[str]:
    """Return the servers whose tools agents use, in the order of the file."""
    used = {server_of(tool) for agent in settings.agents.values() for tool in agent.tools}
    return [name for name in settings.servers if name in used]


async def _first_seen(settings: Settings, connections: "Connections", names: list[str]) -> Accepted:
    from activities.mcp.connection import Unreachable

    seen: dict[str, Mapping[str, Pin]] = {}
    for name, tools in (await connections.listed(names)).items():
        if isinstance(tools, Unreachable):
            raise ProjectError(f"{tools}; an agent uses it, and {NAME} does not have its tools yet")
        seen[name] = tools
        for tool, reason in connections[name].refused.items():
            _log.warning("mcp server %s: its tool %r is not offered: %s", name, tool, reason)
        _log.info("mcp server %s: new, its %d tools are accepted", name, len(tools))
    try:
        return keep_first(lock_of(settings), seen, _programs(settings, seen))
    except BadLock as error:
        raise ProjectError(str(error)) from None


def _offer(settings: Settings, connections: "Connections", pins: Pins, *, is_strict: bool) -> Offer:
    from activities.mcp.tool import McpTool

    tools, left_out = dict[str, Tool](), dict[str, str]()
    for server in settings.servers:
        for tool, pin in pins.get(server, {}).items():
            name = tool_name(server, tool)
            if error := api_fault(name, pin.description, pin.input_schema):  # of an older lock file
                left_out[name] = f"models do not accept it: {error[1]}"
                continue
            tools[name] = McpTool(_route(name, pin, settings), tool, pin, connections[server])
    _no_strangers(settings, {**tools, **left_out})
    for name, reason in left_out.items() if is_strict else ():
        _log.warning("mcp tool %s is not offered: %s", name, reason)
    known = dict.fromkeys(tools, "") | left_out
    agents = {
        name: agent.model_copy(update={"tools": tuple(_named(agent, settings, pins, known, is_strict=is_strict))})
        for name, agent in settings.agents.items()
    }
    return Offer(tools, agents)


def _route(name: str, pin: Pin, settings: Settings) -> ToolRoute:
    local = settings.file.tools.get(name, McpToolSettings(kind="mcp"))
    if not isinstance(local, McpToolSettings):
        reason = 'it is a tool of an MCP server, so its kind must be "mcp"'
        raise ProjectError(f"{settings.at('tools', name, 'kind')}: {reason}")
    hinted = effect_of(pin.annotations)
    if local.effect is not None and is_looser(local.effect, hinted):
        reason = f"its server's annotations make it {hinted}, and {local.effect} would be looser"
        at = settings.at("tools", name, "effect")
        raise ProjectError(f"{at}: {reason}; read is loosest, then keyed, then once")
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
    """Raises ProjectError if a `[tools.…]` section names a tool that no server has: it would have no effect."""
    for name, local in settings.file.tools.items():
        if not isinstance(local, McpToolSettings):
            continue
        server = server_of(name)
        if server not in settings.servers:
            reason = f"there is no MCP server {server or name!r} in .mcp.json{meant(server or name, settings.servers)}"
            raise ProjectError(f"{settings.at('tools', name)}: {reason}")
        if name not in tools and any(server_of(tool) == server for tool in tools):
            raise ProjectError(f"{settings.at('tools', name)}: {_no_such(name, server, tools)}")


def _named(agent: Agent, settings: Settings, pins: Pins, tools: Mapping[str, str], *, is_strict: bool) -> Iterable[str]:
    """Yield an agent's tools, with `server__*` expanded and without `tools` that have a reason to be left out."""
    for name in dict.fromkeys(agent.tools):
        server = server_of(name)
        if server not in settings.servers:
            yield name
        elif name == f"{server}{SEPARATOR}*":
            offered = (tool for tool, reason in tools.items() if server_of(tool) == server and not reason)
            yield from (tool for tool in offered if tool not in agent.tools)
        elif name in tools:
            if not tools[name]:
                yield name
        elif is_strict or server in pins:
            raise ProjectError(f"{settings.roster.at(agent.name, 'tools', name)}: {_no_such(name, server, tools)}")


def _no_such(name: str, server: str | None, tools: Mapping[str, object]) -> str:
    own = [tool for tool in tools if server_of(tool) == server]
    line = f"{NAME} has no {name!r}{meant(name, own)}; of {server} it has: {', '.join(own) or 'none'}"
    return f"{line} (to accept new tools: perdure tools --accept {server})"


async def standings(settings: Settings) -> list[Standing]:
    """List the tools of all servers concurrently. Raises ProjectError if the lock file is not readable."""
    pins = accepted(settings)
    connections = _connections(settings, pins)
    try:
        return _compared(connections, await connections.listed(settings.servers), pins)
    finally:
        await connections.close()


def _compared(
    connections: "Connections", listed: "Mapping[str, Mapping[str, Pin] | Unreachable]", pins: Pins
) -> list[Standing]:
    statuses = []
    for name, tools in listed.items():
        pinned, is_seen = pins.get(name, {}), name in pins
        if not isinstance(tools, Mapping):
            statuses.append(Standing(name, is_seen, down=str(tools)))
            continue
        now = states(pinned, tools)
        changed = [tool for tool, state in now.items() if state is not PinState.pinned]
        differences = {tool: difference(pinned.get(tool), tools.get(tool)) for tool in changed}
        added = {tool: tools[tool] for tool in changed if now[tool] is PinState.new}
        statuses.append(Standing(name, is_seen, None, now, differences, added, connections[name].refused))
    return statuses


async def accept(settings: Settings, what: str | None) -> list[Standing]:
    """Accept the current tools of all servers, of one (`server`), or one tool (`server__tool`).

    Return the comparison from before. A server that is down keeps its accepted tools. Raises ProjectError.
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
    before = _compared(connections, listed, accepted(settings))
    current = {name: tools for name, tools in listed.items() if isinstance(tools, Mapping)}
    if tool and not any(tool in status.tools for status in before if status.down is None):
        down = "; ".join(status.down for status in before if status.down)
        raise ProjectError(down or f"MCP server {server} has no tool {tool!r}, and had none when it was accepted")

    def accept_current(pins: Accepted) -> None:
        pins.programs |= _programs(settings, current)
        for name, tools in current.items():
            if tool is None:
                pins[name] = dict(tools)
                continue
            pins.setdefault(name, {}).pop(tool, None)
            if tool in tools:
                pins[name][tool] = tools[tool]

    try:
        change_lock(lock_of(settings), accept_current)
    except (BadLock, OSError) as error:
        raise ProjectError(f"{lock_of(settings)}: {getattr(error, 'strerror', None) or error}") from None
    if tool is None:
        return before
    return [replace(status, tools={tool: status.tools[tool]}, refused={}) for status in before]
