"""The MCP servers in `perdure tools`: their tools beside the accepted ones, and accepting them; and logins."""

import getpass
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from perdure.contracts.tool import Pin, PinState
from perdure.decisions.errors import ReportedError
from perdure.decisions.tools import schema_texts
from perdure.features.mcp.activities.config import HttpServer, McpServer
from perdure.features.mcp.activities.lock import LOCK_FILE_NAME
from perdure.features.mcp.offer import (
    ServerStatus,
    accept_tools,
    open_grants,
    read_accepted,
    server_statuses,
    servers_with_access,
)
from perdure.features.mcp.rules import effect_of, render_visible_line, tool_name
from perdure.registry import Check
from perdure.session import Needs, open_session
from perdure.settings import ProjectError, Settings, load_settings
from perdure.terminal.command import as_json_option, async_command, console, find_user, format_examples
from perdure.terminal.report import format_age

if TYPE_CHECKING:
    from perdure.features.mcp.activities.grants import Grant

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
    person = find_user()
    if take is None:
        servers = await server_statuses(settings, person)
    else:
        servers = await accept_tools(settings, take or None, person)
    if as_json:
        fields = ("server", "down", "tools", "differences", "refused")
        click.echo(json.dumps([{name: getattr(server, name) for name in fields} for server in servers]))
    else:
        for server in servers:
            _print_server(server, PIN_STATE_TEXTS if take is None else ACCEPTED_TEXTS)
        for row in await read_logins(settings):
            console.print(f"{row['server']}: {row['state']}", soft_wrap=True, markup=False, highlight=False)
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
        servers = await server_statuses(settings, find_user())
    except ReportedError as error:
        return [Check("MCP servers", ok=False, found=str(error))]
    found = "; ".join(map(_format_server_status, servers))
    personal = {name for name, server in servers_with_access(settings).items() if is_personal(server)}
    is_settled = all(each.is_settled or (each.down is not None and each.server in personal) for each in servers)
    checks = [Check("MCP servers", ok=is_settled, found=found)]
    if logins := await read_logins(settings):
        stated = "; ".join(f"{row['server']}: {row['state']}" for row in logins)
        checks.append(Check("MCP logins", ok=not any(row["needs_login"] for row in logins), found=stated))
    return checks


def _format_server_status(standing: ServerStatus) -> str:
    if standing.down:
        return standing.down
    if not standing.is_seen:
        return f"{standing.server}: not seen yet: perdure tools --accept {standing.server}"
    other = [f"{tool} {state}" for tool, state in standing.tools.items() if state is not PinState.pinned]
    refused = "".join(f"; {tool!a} is not offered: {reason}" for tool, reason in standing.refused.items())
    return f"{standing.server}: {', '.join(other) or f'{len(standing.tools)} tools as accepted'}{refused}"


@click.command("login", epilog=format_examples("mcp login tickets", "mcp login tickets --for ann"))
@click.argument("name", metavar="NAME")
@click.option("--browser/--no-browser", default=True, help="Open the link here; it is printed in any case.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port that the login comes back to.")
@click.option("--by", help="Your name, kept with the grant.")
@click.option("--for", "requester", help='With grant = "requester": whose runs use the login; by default yours.')
@async_command()
async def login_command(name: str, *, browser: bool, port: int, by: str | None, requester: str | None) -> int:
    """Log in to a remote MCP server by OAuth.

    The server is one of .mcp.json, with auth = "oauth" in [mcp.NAME] of perdure.toml. The login is for the project, or
    with grant = "requester" for one requester. Runs that wait for it go on.
    """
    from perdure.features.mcp.loopback import log_in
    from perdure.features.mcp.questions import settle_login

    settings = load_settings(strict=False)
    server = servers_with_access(settings).get(name)
    if not isinstance(server, HttpServer) or server.oauth is None:
        raise ProjectError(f'MCP server {name} has no auth = "oauth": write it to [mcp.{name}] of perdure.toml')
    if server.oauth.is_machine:
        raise ProjectError(f"MCP server {name} is used by client credentials, which need no login")
    if requester and not server.oauth.is_personal:
        raise ProjectError(f'MCP server {name} has one login for all: leave --for out, or set grant = "requester"')
    whose = (requester or find_user()) if server.oauth.is_personal else ""
    store = open_grants(settings)
    grant = await log_in(server, store, port, by or getpass.getuser(), _show_link(is_opened=browser), whose)
    console.print(f"logged in to {name}{f' as {render_visible_line(whose)}' if whose else ''}", markup=False)
    async with open_session(settings, Needs.nothing) as session:
        await settle_login(session.client, store, grant)
    return 0


def _show_link(*, is_opened: bool) -> Callable[[str], None]:
    def show(url: str) -> None:
        click.echo(f"open this link to log in:\n{url}")
        if is_opened:
            click.launch(url)

    return show


@click.command("logins", epilog=format_examples("mcp logins", "mcp logins --json"))
@as_json_option
@async_command()
async def logins_command(*, as_json: bool) -> int:
    """List the logins to remote MCP servers, without their secrets.

    The exit code is 1 if a server needs a login. Of a server that each requester logs in to, it is yours.
    """
    rows = await read_logins(load_settings(strict=False))
    for row in rows:
        click.echo(json.dumps(row) if as_json else f"{row['server']}: {row['state']}")
    if not rows and not as_json:
        console.print('no MCP server has auth = "oauth" in perdure.toml', markup=False)
    return 1 if any(row["needs_login"] for row in rows) else 0


async def read_logins(settings: Settings) -> list[dict[str, Any]]:
    """Return the logins as JSON, without secrets: of requesters, the terminal's person. Raises ReportedError."""
    servers = [each for each in servers_with_access(settings).values() if isinstance(each, HttpServer) and each.oauth]
    if not servers:
        return []
    store, rows = open_grants(settings), list[dict[str, Any]]()
    for server in servers:
        whose = find_user() if is_personal(server) else ""
        grant = await store.read(server.name, whose)
        needs = not (server.oauth and server.oauth.is_machine) and (
            grant is None or bool(grant.reason_for_login(server.url))
        )
        fields = {"by", "granted_at", "scope", "issuer", "generation"}
        known = grant.model_dump(mode="json", include=fields) if grant else {}
        state, more = _format_login(server, grant, whose, needs=needs), dict[str, str]()
        if is_personal(server):
            state, more = f"{state}; those of other requesters are not checked here", {"requester": whose}
        needs_login = needs and not is_personal(server)  # their runs ask them
        rows.append({"server": server.name, **more, "needs_login": needs_login, "state": state, **known})
    return rows


def is_personal(server: McpServer) -> bool:
    """Return whether each requester logs in to the server."""
    return isinstance(server, HttpServer) and server.oauth is not None and server.oauth.is_personal


def _format_login(server: HttpServer, grant: "Grant | None", whose: str, *, needs: bool) -> str:
    if needs:
        from perdure.features.mcp.activities.grants import format_login_command

        reason = f": {grant.reason_for_login(server.url)}" if grant else ""
        return f"needs a login{f' of {whose}' if whose else ''}{reason}: {format_login_command(server.name, whose)}"
    if grant is None:
        return "client credentials, not used yet"
    ends = (
        f"{datetime.fromtimestamp(grant.expires_at, UTC):%Y-%m-%d %H:%M:%S} UTC" if grant.expires_at else "no set time"
    )
    is_renewed = grant.refresh_token or grant.by == "client credentials"
    then = "renewed by itself" if is_renewed else "then it needs a login"
    return f"logged in by {grant.by}, {format_age(grant.granted_at)} ago; its token lasts until {ends}, {then}"
