"""`perdure token`: who may do what at the gateway."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape
from rich.table import Table

from contracts.duration import Duration
from gateway.tokens import VARIABLE, Scope, Token, Tokens, Unreadable, entry_of, new_token, tokens_of
from perdure.terminal.command import as_json_option, console, examples, go
from settings import ProjectError, load

SCOPES = [scope.value for scope in Scope]


@click.group(epilog=examples("token create ci --scope runs:read --expires 30d", "token list", "token revoke ci"))
def token() -> None:
    """Make, list and revoke the bearer tokens of the gateway."""


@token.command(epilog=examples("token create ci --scope runs:read --expires 30d"))
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help="May be repeated.")
@click.option("--expires", metavar="TIME", help="As 30d or 12h; it does not expire where this is left out.")
@click.option("--platform", "platforms", multiple=True, help="Whose events it may publish, as slack. May be repeated.")
@click.option("--env", "for_environment", is_flag=True, help=f"Store nothing: print the entry for {VARIABLE} too.")
@as_json_option
def create(
    name: str,
    scopes: tuple[str, ...],
    expires: str | None,
    platforms: tuple[str, ...],
    *,
    for_environment: bool,
    as_json: bool,
) -> None:
    """Make a token and print it: this once.

    Only its SHA-256 is kept.
    """
    if for_environment and expires:
        raise click.UsageError(f"a token of {VARIABLE} does not expire: leave --expires out")
    if (Scope.publish in scopes) != bool(platforms):
        raise click.UsageError(
            f"--scope {Scope.publish} and --platform belong together: name whose events it publishes"
        )
    lifetime = _lifetime(expires)

    async def main() -> int:
        written, made = new_token(name, tuple(map(Scope, scopes)), lifetime, platforms)
        if not for_environment:
            _change(lambda tokens: tokens.add(made))
        if as_json:
            entry = {"entry": entry_of(made)} if for_environment else {}
            click.echo(json.dumps({"token": written, **_row(made, "file" if not entry else "environment"), **entry}))
            return 0
        click.echo(written)
        if for_environment:
            click.echo(f"{VARIABLE}={entry_of(made)}")
        return 0

    go(main)


@token.command("list", epilog=examples("token list"))
@as_json_option
def list_(as_json: bool) -> None:
    """List the tokens, without what only their owners have."""

    async def main() -> int:
        tokens = _tokens()
        try:
            rows = [_row(each, "environment" if each in tokens.fixed else "file") for each in tokens.all()]
        except Unreadable as error:
            raise ProjectError(str(error)) from None
        if as_json:
            for row in rows:
                click.echo(json.dumps(row))
            return 0
        table = Table(box=None, pad_edge=False)
        for heading in ("name", "scopes", "expires", "from"):
            table.add_column(heading)
        for row in rows:
            until = "never" if row["expires_at"] is None else str(row["expires_at"])[:16].replace("T", " ") + " UTC"
            ended = " [red](expired)[/]" if row["expired"] else ""
            scopes = " ".join([*row["scopes"], *(f"({platform})" for platform in row["platforms"])])
            table.add_row(escape(str(row["name"])), scopes, until + ended, row["from"])
        console.print(table if rows else "no tokens; make one: perdure token create NAME --scope runs:read")
        return 0

    go(main)


@token.command(epilog=examples("token revoke ci"))
@click.argument("name")
def revoke(name: str) -> None:
    """End a token.

    A gateway that runs sees it at its next request.
    """

    async def main() -> int:
        _change(lambda tokens: tokens.revoke(name))
        console.print("revoked")
        return 0

    go(main)


def _tokens() -> Tokens:
    return tokens_of(load().home, os.environ)


def _change(change: Callable[[Tokens], None]) -> None:
    try:
        change(_tokens())
    except Unreadable as error:
        raise ProjectError(str(error)) from None


def _row(token: Token, source: str) -> dict[str, Any]:
    return {
        "name": token.name,
        "scopes": list(token.scopes),
        "platforms": list(token.platforms),
        "created_at": token.created_at.isoformat() if token.created_at else None,
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
        "expired": token.is_expired(datetime.now(UTC)),
        "from": source,
    }


def _lifetime(expires: str | None) -> timedelta | None:
    if expires is None:
        return None
    try:
        lifetime: timedelta = TypeAdapter(Duration).validate_python(expires)
    except ValidationError as error:
        raise click.UsageError(f"--expires: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    return lifetime
