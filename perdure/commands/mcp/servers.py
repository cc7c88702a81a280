"""What `perdure tools` says of MCP servers: whether their tools are what was accepted, and what was taken."""

import json
from collections.abc import Mapping

import click

from activities.mcp.lock import NAME
from contracts.mcp import Pin, PinState
from decisions.mcp import effect_of, remarks, tool_name, visible
from perdure.process.mcp_tools import Standing, accept, accepted, standings
from perdure.terminal.command import console
from settings import Settings

WORDS = {
    PinState.pinned: "as accepted",
    PinState.changed: "changed: a run asks a person before each call",
    PinState.gone: "gone: its calls fail",
    PinState.new: "new: not offered",
}
TAKEN = {
    PinState.pinned: "as before",
    PinState.changed: "accepted as it is now",
    PinState.gone: "taken out",
    PinState.new: "accepted",
}


async def tell_servers(settings: Settings, take: str | None, *, as_json: bool) -> int:
    """Asks the servers; with `take` what they say is accepted ("": of all). 1 where something is left to see to."""
    if take is None:
        found = await standings(settings)
    else:
        found = await accept(settings, take or None)
    if as_json:
        click.echo(json.dumps([_row(each) for each in found]))
    else:
        for each in found:
            _print(each, WORDS if take is None else TAKEN)
        if not found:
            console.print("there is no MCP server in .mcp.json")
        elif take is not None and any(each.down is None for each in found):
            console.print(f"{NAME} holds what was accepted, and is meant to be committed", soft_wrap=True)
        elif take is None and not all(each.is_settled for each in found if each.down is None):
            console.print("to take what a server says now: perdure tools --accept SERVER", soft_wrap=True)
    settled = [each.down is None if take is not None else each.is_settled for each in found]
    return 0 if all(settled) else 1


def tell_unseen(settings: Settings) -> None:
    """Servers whose tools nobody has seen yet are in no table."""
    pins = accepted(settings)
    if unseen := [name for name in settings.servers if name not in pins]:
        told = f"MCP servers that were not seen yet: {', '.join(unseen)}; perdure tools --accept takes their tools"
        console.print(told, soft_wrap=True, markup=False)


def _row(standing: Standing) -> dict[str, object]:
    return {
        "server": standing.server,
        "down": standing.down,
        "tools": standing.tools,
        "differences": standing.differences,
        "refused": standing.refused,
    }


def _introduced(tool: Pin) -> list[str]:
    """What its effect would be, what it takes, and all words of it that a model would read."""
    properties = tool.input_schema.get("properties")
    takes = visible(", ".join(properties)) if isinstance(properties, dict) else ""
    first, *rest = tool.description.strip().splitlines() or [""]
    rest += [f"{place}: {' '.join(words.split())}" for place, words in remarks(tool.input_schema)]
    return [f"{effect_of(tool.annotations)} ({takes})  {visible(first)}".rstrip(), *map(visible, rest)]


def _print(standing: Standing, words: Mapping[PinState, str]) -> None:
    """All that comes from a server is printed as plain text."""
    lines = [f"{standing.server}: {standing.down}" if standing.down else standing.server]
    for tool, state in standing.tools.items():
        lines.append(f"  {visible(tool_name(standing.server, tool))}  {words[state]}")
        if state is PinState.new:
            lines += [f"    {line}" for line in _introduced(standing.added[tool])]
        if state is PinState.changed:
            lines += [f"    {line}" for line in standing.differences[tool].splitlines()[2:]]  # without its file names
    lines += [f"  {tool!r}  cannot be offered: {why}" for tool, why in standing.refused.items()]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
