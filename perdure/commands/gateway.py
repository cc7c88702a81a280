"""`gateway` and `token`."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from perdure.gateway.tokens import (
    TOKENS_VARIABLE,
    Scope,
    Token,
    Tokens,
    format_token_entry,
    new_token,
    read_tokens,
)
from perdure.registry import features, load
from perdure.session import Needs, open_session
from perdure.settings import ProjectError, current_home, load_settings
from perdure.settings.environment import is_loopback
from perdure.terminal.command import DurationType, as_json_option, async_command, console, format_examples
from perdure.terminal.follow import stop_event


@click.command("gateway", epilog=format_examples("gateway", "gateway --host 0.0.0.0 --behind-tls"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--behind-tls", is_flag=True, help="A proxy ends TLS: allow addresses other than loopback.")
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log to this file instead of standard error."
)
@async_command(stays=True)
async def gateway_command(host: str, port: int, log_file: Path | None, *, behind_tls: bool) -> int:
    """Serve runs over HTTP, with a web page, until Ctrl-C.

    If no Temporal server is configured, it starts an embedded one and a worker. Clients need a token (perdure token).
    """
    from perdure.gateway.auth import Gateway, TrustedProxy
    from perdure.gateway.server import open_listener, serve_gateway
    from perdure.gateway.sessions import open_sessions
    from perdure.gateway.tokens import read_tokens
    from perdure.telemetry import log_to_file, log_to_stderr

    settings = load_settings()
    tokens = read_tokens(settings.home, os.environ)
    proxy = TrustedProxy.of(settings.file.gateway)
    has_tokens = bool(tokens.read_all())
    if not is_loopback(host) and not ((has_tokens or proxy) and behind_tls):
        raise ProjectError(
            f"{host} is reachable from other machines: create a token (perdure token create), put a TLS proxy in front "
            "of the gateway, and set --behind-tls; without TLS, tokens are sent in clear text"
        )
    opened = {name: load(row.gateway) for name, row in features().items() if row.gateway}
    parts = {name: open_part(settings, os.environ) for name, open_part in opened.items()}
    stop = stop_event()
    with open_listener(host, port) as listener:
        async with open_session(settings, Needs.work) as session:
            if log_file is not None:
                log_to_file(log_file, settings.secrets)
            elif session.ui is None:  # else this process has a worker, which logs to its own file
                log_to_stderr(settings.secrets)
            served = Gateway(session, tokens, parts, open_sessions(settings), behind_tls, proxy, stop)
            shown = f"[{host}]" if ":" in host else host
            console.print(f"gateway    http://{shown}:{listener.getsockname()[1]}", soft_wrap=True)
            console.print(f"task queue {settings.task_queue}")
            if session.ui:
                console.print(f"Web UI     {session.ui}")
            if session.rehearsal_message:
                console.print(f"[yellow]{escape(session.rehearsal_message)}[/]", soft_wrap=True)
            if not has_tokens and proxy is None:
                console.print("no tokens yet; create one: perdure token create NAME --scope runs:read", soft_wrap=True)
            console.print("Ctrl-C stops it; runs continue on other workers.")
            await serve_gateway(served, listener)
    return 0


SCOPES = [scope.value for scope in Scope]


@click.group(
    "token", epilog=format_examples("token create ci --scope runs:read --expires 30d", "token list", "token revoke ci")
)
def token_command() -> None:
    """Create, list and revoke bearer tokens for the gateway."""


@token_command.command("create", epilog=format_examples("token create ci --scope runs:read --expires 30d"))
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help="A permission; repeatable."
)
@click.option(
    "--expires", type=DurationType(), metavar="TIME", help="Lifetime, such as 30d or 12h; unlimited by default."
)
@click.option(
    "--platform", "platforms", multiple=True, help="A platform whose events it may publish, such as slack; repeatable."
)
@click.option(
    "--env", "for_environment", is_flag=True, help=f"Store nothing; also print the entry for {TOKENS_VARIABLE}."
)
@as_json_option
@async_command()
async def create_token_command(
    name: str,
    scopes: tuple[str, ...],
    expires: timedelta | None,
    platforms: tuple[str, ...],
    *,
    for_environment: bool,
    as_json: bool,
) -> int:
    """Create a token and print it once.

    Only its SHA-256 hash is stored.
    """
    if for_environment and expires:
        raise click.UsageError(f"a token in {TOKENS_VARIABLE} does not expire: omit --expires")
    if (Scope.publish in scopes) != bool(platforms):
        raise click.UsageError(
            f"--scope {Scope.publish} and --platform require each other: name the platforms whose events it may publish"
        )
    secret, token = new_token(name, tuple(map(Scope, scopes)), expires, platforms)
    if not for_environment:
        _load_tokens().add(token)
    if as_json:
        entry = {"entry": format_token_entry(token)} if for_environment else {}
        click.echo(json.dumps({"token": secret, **_token_row(token, "environment" if entry else "file"), **entry}))
        return 0
    click.echo(secret)
    if for_environment:
        click.echo(f"{TOKENS_VARIABLE}={format_token_entry(token)}")
    return 0


@token_command.command("list", epilog=format_examples("token list"))
@as_json_option
@async_command()
async def list_tokens_command(as_json: bool) -> int:
    """List the tokens, without their secrets."""
    tokens = _load_tokens()
    rows = [_token_row(token, "environment" if token in tokens.fixed else "file") for token in tokens.read_all()]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "scopes", "expires", "from"):
        table.add_column(heading)
    for row in rows:
        until = "never" if row["expires_at"] is None else str(row["expires_at"])[:16].replace("T", " ") + " UTC"
        expired = " [red](expired)[/]" if row["expired"] else ""
        scopes = " ".join([*row["scopes"], *(f"({platform})" for platform in row["platforms"])])
        table.add_row(escape(str(row["name"])), scopes, until + expired, row["from"])
    console.print(table if rows else "no tokens; create one: perdure token create NAME --scope runs:read")
    return 0


@token_command.command("revoke", epilog=format_examples("token revoke ci"))
@click.argument("name")
@async_command()
async def revoke_token_command(name: str) -> int:
    """Revoke a token.

    A running gateway rejects it from the next request on.
    """
    _load_tokens().revoke(name)
    console.print("revoked")
    return 0


def _load_tokens() -> Tokens:
    return read_tokens(current_home(), os.environ)


def _token_row(token: Token, source: str) -> dict[str, Any]:
    return {
        "name": token.name,
        "scopes": list(token.scopes),
        "platforms": list(token.platforms),
        "created_at": token.created_at.isoformat() if token.created_at else None,
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
        "expired": token.is_expired(datetime.now(UTC)),
        "from": source,
    }
