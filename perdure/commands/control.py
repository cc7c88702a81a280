"""`worker`, `dev`, `doctor`: what runs need to go on, and whether it is there."""

import dataclasses
import json

import click
from rich.markup import escape

from perdure.session import Needs, session
from perdure.terminal.command import as_json_option, console, examples, go
from perdure.terminal.follow import stopping
from settings import load


@click.command(epilog=examples("worker"))
def worker() -> None:
    """Run a worker against the configured Temporal.

    The same as `python worker.py`.
    """
    from worker import main

    main()


@click.command(epilog=examples("dev", "dev --port 7233 --ui-port 8233"))
@click.option("--port", type=click.IntRange(1, 65535), help="Of the Temporal server; 7233 or a free one.")
@click.option("--ui-port", type=click.IntRange(1, 65535), help="Of the Web UI; 8233 or a free one.")
def dev(port: int | None, ui_port: int | None) -> None:
    """Run Temporal, its Web UI and a worker here, until Ctrl-C.

    The server is the embedded one, unless one is configured.
    """

    async def main() -> int:
        settings = load()
        stop = stopping()  # a signal while it is still starting counts too
        console.print("starting …")
        async with session(settings, Needs.work, port=port, ui_port=ui_port) as here:
            console.print(f"Temporal   {here.client.service_client.config.target_host}")
            if here.ui:
                console.print(f"Web UI     {here.ui}")
            console.print(f"worker     task queue {settings.task_queue}, model {settings.model}")
            console.print(f"state      {settings.home}", soft_wrap=True)
            console.print("Ctrl-C stops all of it; runs go on at the next start.")
            await stop.wait()
            console.print("stopping …")
        return 0

    go(main, stays=True)


@click.command(epilog=examples("doctor"))
@as_json_option
def doctor(as_json: bool) -> None:
    """Check that everything a run needs is there; say what to do.

    The exit code is 1 where something is missing.
    """
    from perdure.doctor import examine

    async def main() -> int:
        well = True
        async for check in examine():
            well = well and check.ok
            if as_json:
                click.echo(json.dumps(dataclasses.asdict(check)))
            else:
                mark = "[green]✓[/]" if check.ok else "[red]✗[/]"
                console.print(f"{mark} {check.name:<18} {escape(check.found)}", soft_wrap=True)
        return 0 if well else 1

    go(main)
