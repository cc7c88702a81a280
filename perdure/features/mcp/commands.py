"""The MCP servers in `perdure tools`: comparing their tools with the accepted ones, and accepting them."""

import json
from collections.abc import Mapping

import click

from perdure.contracts.tool import Pin, PinState
from perdure.decisions.errors import ReportedError
from perdure.decisions.tools import schema_texts
from perdure.features.mcp.activities.lock import LOCK_FILE_NAME
from perdure.features.mcp.offer import ServerStatus, accept_tools, read_accepted, server_statuses
from perdure.features.mcp.rules import effect_of, render_visible_line, tool_name
from perdure.registry import Check
from perdure.settings import Settings
from perdure.terminal.command import console

PIN_STATE_TEXTS = {
    PinState.pinned: "as accepted",
    PinState.changed: "changed: a run asks a person before each call",
    PinState.gone: "removed: its calls fail",
    PinState.new: "new: not offered",
}
ACCEPTED_TEXTS = {
    PinState.pinned: "unchanged",
    PinState.changed: "change accepted",
    PinState.gone: "removed",
    PinState.new: "accepted",
}


async def print_servers(settings: Settings, take: str | None, *, as_json: bool) -> int:
    """Print the servers; with `take`, accept their tools first ("": of all). Return 1 if a server needs attention."""
    servers = await server_statuses(settings) if take is None else await accept_tools(settings, take or None)
    if as_json:
        fields = ("server", "down", "tools", "differences", "refused")
        click.echo(json.dumps([{name: getattr(server, name) for name in fields} for server in servers]))
    else:
        for server in servers:
            _print_server(server, PIN_STATE_TEXTS if take is None else ACCEPTED_TEXTS)
        if not servers:
            console.print("there is no MCP server in .mcp.json")
        elif take is not None and any(server.down is None for server in servers):
            console.print(f"{LOCK_FILE_NAME} records what was accepted; commit it", soft_wrap=True)
        elif take is None and not all(server.is_settled for server in servers if server.down is None):
            console.print("to accept the current tools of a server: perdure tools --accept SERVER", soft_wrap=True)
    settled = [server.down is None if take is not None else server.is_settled for server in servers]
    return 0 if all(settled) else 1


def print_unseen_servers(settings: Settings) -> None:
    """Print the servers that have no accepted tools yet, as they are not in the table."""
    pins = read_accepted(settings)
    if unseen := [name for name in settings.servers if name not in pins]:
        line = f"MCP servers without accepted tools: {', '.join(unseen)}; to accept them: perdure tools --accept"
        console.print(line, soft_wrap=True, markup=False)


def _describe_tool(tool: Pin) -> list[str]:
    """Return the effect, the parameters and all texts of a tool that a model would read."""
    properties = tool.input_schema.get("properties")
    parameters = render_visible_line(", ".join(properties)) if isinstance(properties, dict) else ""
    first, *rest = tool.description.strip().splitlines() or [""]
    rest += [f"{place}: {' '.join(words.split())}" for place, words in schema_texts(tool.input_schema)]
    return [
        f"{effect_of(tool.annotations)} ({parameters})  {render_visible_line(first)}".rstrip(),
        *map(render_visible_line, rest),
    ]


def _print_server(standing: ServerStatus, words: Mapping[PinState, str]) -> None:
    """Print a server and its tools; texts of the server are printed without markup."""
    lines = [f"{standing.server}: {standing.down}" if standing.down else standing.server]
    for tool, state in standing.tools.items():
        name = tool_name(standing.server, tool)
        renamed = "" if name.endswith(tool) else f"  ({render_visible_line(tool)} there)"
        lines.append(f"  {name}{renamed}  {words[state]}")
        if state is PinState.new:
            lines += [f"    {line}" for line in _describe_tool(standing.added[tool])]
        if state is PinState.changed:
            lines += [f"    {line}" for line in standing.differences[tool].splitlines()[2:]]  # without the file names
    lines += [f"  {tool!r}  cannot be offered: {reason}" for tool, reason in standing.refused.items()]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


async def check_servers(settings: Settings) -> list[Check]:
    """Compare the servers' current tools with the accepted ones, if there are servers."""
    if not settings.servers:
        return []
    try:
        servers = await server_statuses(settings)
    except ReportedError as error:
        return [Check("MCP servers", ok=False, found=str(error))]
    found = "; ".join(map(_format_server_status, servers))
    return [Check("MCP servers", ok=all(server.is_settled for server in servers), found=found)]


def _format_server_status(standing: ServerStatus) -> str:
    if standing.down:
        return standing.down
    if not standing.is_seen:
        return f"{standing.server}: not seen yet: perdure tools --accept {standing.server}"
    other = [f"{tool} {state}" for tool, state in standing.tools.items() if state is not PinState.pinned]
    refused = "".join(f"; {tool!a} is not offered: {reason}" for tool, reason in standing.refused.items())
    return f"{standing.server}: {', '.join(other) or f'{len(standing.tools)} tools as accepted'}{refused}"
