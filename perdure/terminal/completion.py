"""Shell completion of names: agents, and runs if a server is up. A lookup that takes too long yields nothing."""

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from perdure.client.run_list import Found
    from settings import Settings

PATIENCE = 0.3  # seconds for the server: a person has pressed a key and waits
MOST_OFFERED = 50
ANSWERING = ("answer", "approve", "deny")
# Click's script for bash leaves what it is given unquoted: no spaces, and nothing that the shell would expand.
COMPLETABLE = re.compile(r"[\w.:@%+=/-]+", re.ASCII)


def agent_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """The agents of the project that begin so."""
    settings = _settings()
    return [name for name in settings.agents if name.startswith(incomplete)] if settings else []


def run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:  # noqa: ARG001
    """The runs that begin so, the latest first: those that wait for a person, for a command that answers."""
    settings = _settings()
    if settings is None:
        return []
    found: list[Found] = []
    with suppress(Exception):  # whatever it is, a person who completes a word is told nothing of it
        asyncio.run(asyncio.wait_for(_listed(settings, found, waiting=ctx.info_name in ANSWERING), PATIENCE))
    named = {each.run_id: each for each in found if each.run_id.startswith(incomplete)}
    return [CompletionItem(run_id, help=each.status) for run_id, each in named.items() if COMPLETABLE.fullmatch(run_id)]


def _settings() -> "Settings | None":
    from settings import ProjectError, load

    try:
        return load(strict=False)
    except (ProjectError, OSError):
        return None


async def _listed(settings: "Settings", found: "list[Found]", *, waiting: bool) -> None:
    """Adds what there is to `found`, as it comes: what came in time counts."""
    from devserver import address_of
    from perdure.client.connection import configured_address, connect
    from perdure.client.run_list import listing
    from telemetry import quiet_core

    address = None if configured_address() else address_of(settings.home)
    if address or configured_address():
        quiet_core(None)
        async for each in listing(await connect(address), waiting=waiting, limit=MOST_OFFERED):
            found.append(each)
