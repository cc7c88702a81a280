"""Shell completion of names: agents, and runs if a server is up. A lookup that takes too long yields nothing."""

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from perdure.client.run_list import RunInfo
    from perdure.settings import Settings

COMPLETION_SECONDS = 0.3  # seconds for the server: a person pressed a key and is waiting
MAX_COMPLETIONS = 50
ANSWERING_COMMANDS = ("answer", "approve", "deny")
# Click's script for bash does not quote completions: no spaces, and nothing that the shell expands.
COMPLETABLE = re.compile(r"[\w.:@%+=/-]+", re.ASCII)


def complete_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Return the project's agents whose name starts with `incomplete`."""
    settings = _load_settings()
    return [name for name in settings.agents if name.startswith(incomplete)] if settings else []


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:  # noqa: ARG001
    """Return matching run ids, the latest first; for a command that answers, only runs that wait for a person."""
    settings = _load_settings()
    if settings is None:
        return []
    runs: list[RunInfo] = []
    with suppress(Exception):  # completion never prints an error
        asyncio.run(
            asyncio.wait_for(
                _list_runs(settings, runs, waiting=ctx.info_name in ANSWERING_COMMANDS), COMPLETION_SECONDS
            )
        )
    matches = {run.run_id: run for run in runs if run.run_id.startswith(incomplete)}
    return [CompletionItem(run_id, help=run.status) for run_id, run in matches.items() if COMPLETABLE.fullmatch(run_id)]


def _load_settings() -> "Settings | None":
    from perdure.settings import ProjectError, load_settings

    try:
        return load_settings(strict=False)
    except (ProjectError, OSError):
        return None


async def _list_runs(settings: "Settings", runs: "list[RunInfo]", *, waiting: bool) -> None:
    """Append runs to `runs` as they arrive, so that a timeout keeps those already listed."""
    from perdure.client.connection import configured_address, connect
    from perdure.client.run_list import iterate_runs
    from perdure.devserver import address_of
    from perdure.telemetry import quiet_core

    address = None if configured_address() else address_of(settings.home)
    if address or configured_address():
        quiet_core(None)
        async for run in iterate_runs(await connect(address), waiting=waiting, limit=MAX_COMPLETIONS):
            runs.append(run)
