"""Tools of MCP servers: those accepted in `mcp.lock.json` become tools of a project; `perdure tools` changes it.

The MCP SDK takes a second to load, so functions that need it import it.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.activities.tools.interface import Tool
from perdure.codec import CODEC_KEYS_VARIABLE
from perdure.contracts.agent import Agent
from perdure.contracts.tool import Pin, PinnedProgram, PinState, ToolRoute
from perdure.decisions.ids import GRANTS_STORE
from perdure.decisions.tools import SEPARATOR, api_rejection, server_of_tool
from perdure.features.mcp.activities.config import HttpServer, McpServer, OAuthAccess, StdioServer, program_of
from perdure.features.mcp.activities.lock import (
    LOCK_FILE_NAME,
    AcceptedTools,
    Pins,
    accept_new_servers,
    change_lock,
    read_lock,
)
from perdure.features.mcp.rules import diff_pins, effect_of, is_looser, pin_states, tool_name
from perdure.features.mcp.settings import MCP, McpAccessSettings
from perdure.process.project import ToolOffer
from perdure.settings import ProjectError, Settings
from perdure.settings.problems import format_suggestion
from perdure.settings.tools import McpToolSettings, tool_route

if TYPE_CHECKING:
    from perdure.features.mcp.activities.connection import McpUnreachableError
    from perdure.features.mcp.activities.connections import Connections, ServerConnection
    from perdure.features.mcp.activities.grants import GrantKeeper, GrantStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerStatus:
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
async def offered_tools(settings: Settings) -> AsyncIterator[ToolOffer]:
    """Yield the tools of a worker, and stop the servers at the end. Raises ProjectError.

    A server that an agent uses and that is not in the lock file is started now, and its tools are accepted.
    """
    if not settings.servers:
        yield offer_accepted_tools(settings)
        return
    pins = read_accepted(settings)
    connections = _create_connections(settings, pins)
    try:
        if unseen := _unseen_servers(settings, pins):
            pins = await _accept_new_servers(settings, connections, unseen)
        yield _build_offer(settings, connections, pins, is_strict=True)
    finally:
        await connections.close()


def open_accepted_tools(settings: Settings, closing: AsyncExitStack) -> ToolOffer:
    """Return the tools of a worker that accepts no new server; `closing` stops the servers. Raises ProjectError."""
    if not settings.servers:
        return offer_accepted_tools(settings)
    pins = read_accepted(settings)
    for name in _unseen_servers(settings, pins):
        raise ProjectError(f"MCP server {name} is new here: accept its tools with perdure tools --accept {name}")
    connections = _create_connections(settings, pins)
    closing.push_async_callback(connections.close)
    return _build_offer(settings, connections, pins, is_strict=True)


def _unseen_servers(settings: Settings, pins: AcceptedTools) -> list[str]:
    """Return the servers that agents use and the lock file does not have."""
    used = {server_of_tool(tool) for agent in settings.agents.values() for tool in agent.tools}
    return [name for name in settings.servers if name in used and name not in pins]


def offer_accepted_tools(settings: Settings) -> ToolOffer:
    """Return the accepted tools without starting a server, for display; a new server offers no tools."""
    if not settings.servers:
        _check_tool_settings(settings, {})
        return ToolOffer({}, settings.agents)
    pins = read_accepted(settings)
    return _build_offer(settings, _create_connections(settings, pins), pins, is_strict=False)


def read_accepted(settings: Settings) -> AcceptedTools:
    """Return the content of the lock file. Raises LockFileError."""
    return read_lock(lock_path(settings))


def lock_path(settings: Settings) -> Path:
    return settings.folder / LOCK_FILE_NAME


def _create_connections(settings: Settings, pins: AcceptedTools | None = None, *, person: str = "") -> "Connections":
    """Return connections to all servers; with `pins`, they start accepted programs only.

    Where each requester logs in, they are those of the runs that a worker serves, or of one `person`. Raises
    ProjectError.
    """
    from perdure.features.mcp.activities.connection import Connection
    from perdure.features.mcp.activities.connections import Connections, PersonalConnections

    programs, redact = {} if pins is None else pins.programs, settings.secrets.redact

    def connect(server: McpServer) -> "ServerConnection":
        if not isinstance(server, HttpServer) or server.oauth is None:
            return Connection(server, redact, programs.get(server.name))
        store = open_grants(settings)
        if server.oauth.is_personal and not person:
            return PersonalConnections(
                server,
                settings.stores,
                lambda requester: Connection(server, redact, keeper=keeper_of(server, store, requester)),
            )
        return Connection(server, redact, keeper=keeper_of(server, store, person))

    return Connections(servers_with_access(settings).values(), connect)


def keeper_of(server: HttpServer, store: "GrantStore", person: str) -> "GrantKeeper":
    """Return what keeps the token of a server: that of the machine, of the project, or of this person."""
    from perdure.features.mcp.activities.grants import GrantKeeper
    from perdure.features.mcp.login import MachineKeeper

    if server.oauth and server.oauth.is_machine:
        return MachineKeeper(server, store)
    return GrantKeeper(server, store, person if server.oauth and server.oauth.is_personal else "")


def _programs_of(settings: Settings, names: Iterable[str]) -> dict[str, PinnedProgram]:
    servers = [settings.servers[name] for name in names]
    return {server.name: program_of(server) for server in servers if isinstance(server, StdioServer)}


def servers_with_access(settings: Settings) -> dict[str, McpServer]:
    """Return the servers as `read_servers` made them, with their access. Raises ProjectError."""
    rows = MCP.of(settings.file)
    own = {name: row for name, row in settings.servers.items() if isinstance(row, StdioServer | HttpServer)}
    return own | dict(_read_access(settings, own, rows))


def _read_access(
    settings: Settings, servers: Mapping[str, McpServer], rows: Mapping[str, McpAccessSettings]
) -> Iterator[tuple[str, HttpServer]]:
    for name, row in rows.items():
        place, server = settings.at("mcp", name), servers.get(name)
        if server is None:
            raise ProjectError(
                f"{place}: there is no MCP server {name!r} in .mcp.json{format_suggestion(name, servers)}"
            )
        if not isinstance(server, HttpServer):
            raise ProjectError(f"{place}: auth is for a server at a URL, and {name} is a program")
        if any(header.lower() == "authorization" for header in server.headers):
            raise ProjectError(f"{place}: .mcp.json gives {name} a header Authorization: remove it, or auth")
        secret = settings.access["mcp"][name]
        if row.client_secret_env and secret is None:
            raise ProjectError(f"{place}: {row.client_secret_env} is not set")
        is_personal = row.grant == "requester"
        access = OAuthAccess(row.grant == "client", row.client_id, secret, row.scope, row.approvers, is_personal)
        yield name, replace(server, oauth=access)


def open_grants(settings: Settings) -> "GrantStore":
    """Return the grants of the project. Raises ProjectError if they could not be encrypted."""
    if settings.codec is None:
        raise ProjectError(f"OAuth grants are encrypted: set {CODEC_KEYS_VARIABLE} for workers and commands alike")
    from perdure.features.mcp.activities.grants import GrantStore

    return GrantStore(settings.stores.of(GRANTS_STORE), settings.codec)


async def _accept_new_servers(settings: Settings, connections: "Connections", names: list[str]) -> AcceptedTools:
    from perdure.features.mcp.activities.connection import McpUnreachableError

    seen: dict[str, Mapping[str, Pin]] = {}
    for name, tools in (await connections.list_tools_of(names)).items():
        if isinstance(tools, McpUnreachableError):
            raise ProjectError(f"{tools}; an agent uses it, and {LOCK_FILE_NAME} does not have its tools yet")
        seen[name] = tools
        for tool, reason in connections[name].rejected_tools.items():
            _log.warning("mcp server %s: its tool %r is not offered: %s", name, tool, reason)
        _log.info("mcp server %s: new, its %d tools are accepted", name, len(tools))
    return accept_new_servers(lock_path(settings), seen, _programs_of(settings, seen))


def _build_offer(settings: Settings, connections: "Connections", pins: Pins, *, is_strict: bool) -> ToolOffer:
    from perdure.features.mcp.activities.tool import McpTool

    tools, left_out = dict[str, Tool](), dict[str, str]()
    for server in settings.servers:
        for tool, pin in pins.get(server, {}).items():
            name = tool_name(server, tool)
            if error := api_rejection(name, pin.description, pin.input_schema):  # of an older lock file
                left_out[name] = f"models do not accept it: {error[1]}"
                continue
            tools[name] = McpTool(_route_of(name, pin, settings), tool, pin, connections[server])
    _check_tool_settings(settings, {**tools, **left_out})
    for name, reason in left_out.items() if is_strict else ():
        _log.warning("mcp tool %s is not offered: %s", name, reason)
    known = dict.fromkeys(tools, "") | left_out
    agents = {
        name: agent.evolve(tools=tuple(_expand_tools(agent, settings, pins, known, is_strict=is_strict)))
        for name, agent in settings.agents.items()
    }
    return ToolOffer(tools, agents)


def _route_of(name: str, pin: Pin, settings: Settings) -> ToolRoute:
    local = settings.file.tools.get(name, McpToolSettings(kind="mcp"))
    if not isinstance(local, McpToolSettings):
        reason = 'it is a tool of an MCP server, so its kind must be "mcp"'
        raise ProjectError(f"{settings.at('tools', name, 'kind')}: {reason}")
    hinted = effect_of(pin.annotations)
    if local.effect is not None and is_looser(local.effect, hinted):
        reason = f"its server's annotations make it {hinted}, and {local.effect} would be looser"
        at = settings.at("tools", name, "effect")
        raise ProjectError(f"{at}: {reason}; read is loosest, then keyed, then once")
    return tool_route(name, local, effect=local.effect or hinted)


def _check_tool_settings(settings: Settings, tools: Mapping[str, object]) -> None:
    """Raises ProjectError if a `[tools.…]` section names a tool that no server has: it would have no effect."""
    for name, local in settings.file.tools.items():
        if not isinstance(local, McpToolSettings):
            continue
        server = server_of_tool(name)
        if server not in settings.servers:
            suggestion = format_suggestion(server or name, settings.servers)
            reason = f"there is no MCP server {server or name!r} in .mcp.json{suggestion}"
            raise ProjectError(f"{settings.at('tools', name)}: {reason}")
        if name not in tools and any(server_of_tool(tool) == server for tool in tools):
            raise ProjectError(f"{settings.at('tools', name)}: {_format_unknown_tool(name, server, tools)}")


def _expand_tools(
    agent: Agent, settings: Settings, pins: Pins, tools: Mapping[str, str], *, is_strict: bool
) -> Iterable[str]:
    """Yield an agent's tools, with `server__*` expanded and without `tools` that have a reason to be left out."""
    for name in dict.fromkeys(agent.tools):
        server = server_of_tool(name)
        if server not in settings.servers:
            yield name
        elif name == f"{server}{SEPARATOR}*":
            offered = (tool for tool, reason in tools.items() if server_of_tool(tool) == server and not reason)
            yield from (tool for tool in offered if tool not in agent.tools)
        elif name in tools:
            if not tools[name]:
                yield name
        elif is_strict or server in pins:
            raise ProjectError(
                f"{settings.roster.at(agent.name, 'tools', name)}: {_format_unknown_tool(name, server, tools)}"
            )


def _format_unknown_tool(name: str, server: str | None, tools: Mapping[str, object]) -> str:
    own = [tool for tool in tools if server_of_tool(tool) == server]
    missing = f"{LOCK_FILE_NAME} has no {name!r}{format_suggestion(name, own)}"
    existing = ", ".join(own) or "none"
    return f"{missing}; of {server} it has: {existing} (to accept new tools: perdure tools --accept {server})"


async def server_statuses(settings: Settings, person: str = "") -> list[ServerStatus]:
    """List the tools of all servers concurrently, with the person's own grants where each requester logs in.

    Raises LockFileError if the lock file is not readable.
    """
    pins = read_accepted(settings)
    connections = _create_connections(settings, pins, person=person)
    try:
        return _compare_tools(connections, await connections.list_tools_of(settings.servers), pins)
    finally:
        await connections.close()


def _own_name(name: str, statuses: Iterable[ServerStatus]) -> str:
    """Return the server's own name of a tool that is given by its name for models, or by its own."""
    tools = ((status.server, tool) for status in statuses for tool in status.tools)
    own = name.partition(SEPARATOR)[2]
    return next((tool for server, tool in tools if name == tool_name(server, tool)), own)


def _compare_tools(
    connections: "Connections", listed: "Mapping[str, Mapping[str, Pin] | McpUnreachableError]", pins: Pins
) -> list[ServerStatus]:
    statuses = []
    for name, tools in listed.items():
        pinned, is_seen = pins.get(name, {}), name in pins
        if not isinstance(tools, Mapping):
            statuses.append(ServerStatus(name, is_seen, down=str(tools)))
            continue
        now = pin_states(pinned, tools)
        changed = [tool for tool, state in now.items() if state is not PinState.pinned]
        differences = {tool: diff_pins(pinned.get(tool), tools.get(tool)) for tool in changed}
        added = {tool: tools[tool] for tool in changed if now[tool] is PinState.new}
        statuses.append(ServerStatus(name, is_seen, None, now, differences, added, connections[name].rejected_tools))
    return statuses


async def accept_tools(settings: Settings, what: str | None, person: str = "") -> list[ServerStatus]:
    """Accept the current tools of all servers, of one (`server`), or one tool (`server__tool`), as seen by the person.

    Return the comparison from before. A server that is down keeps its accepted tools. Raises ProjectError.
    """
    server = what and (server_of_tool(what) or what)
    if server and server not in settings.servers:
        known = ", ".join(settings.servers) or "none"
        near = format_suggestion(server, settings.servers)
        raise ProjectError(f"there is no MCP server {server!r} in .mcp.json{near}; the servers are: {known}")
    connections = _create_connections(settings, person=person)
    try:
        listed = await connections.list_tools_of([server] if server else settings.servers)
    finally:
        await connections.close()
    before = _compare_tools(connections, listed, read_accepted(settings))
    tool = _own_name(what, before) if what and what != server else None
    current = {name: tools for name, tools in listed.items() if isinstance(tools, Mapping)}
    if tool and not any(tool in status.tools for status in before if status.down is None):
        down = "; ".join(status.down for status in before if status.down)
        raise ProjectError(down or f"MCP server {server} has no tool {tool!r}, and had none when it was accepted")

    def accept_current(pins: AcceptedTools) -> None:
        pins.programs |= _programs_of(settings, current)
        for name, tools in current.items():
            if tool is None:
                pins[name] = dict(tools)
                continue
            pins.setdefault(name, {}).pop(tool, None)
            if tool in tools:
                pins[name][tool] = tools[tool]

    try:
        change_lock(lock_path(settings), accept_current)
    except OSError as error:
        raise ProjectError(f"{lock_path(settings)}: {error.strerror}") from None
    if tool is None:
        return before
    return [replace(status, tools={tool: status.tools[tool]}, refused={}) for status in before]
