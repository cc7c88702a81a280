"""`perdure worker`, `dev` and `doctor`."""

import dataclasses
import json

import click
from rich.markup import escape

from perdure.session import Needs, open_session
from perdure.terminal.command import as_json_option, async_command, console, format_examples
from perdure.terminal.follow import stop_event
from settings import load_settings


@click.command("worker", epilog=format_examples("worker"))
def worker_command() -> None:
    """Run a worker for the configured Temporal server.

    Same as `python worker.py`.
    """
    from worker import run_worker_process

    run_worker_process()


@click.command("dev", epilog=format_examples("dev", "dev --port 7233 --ui-port 8233"))
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port of the Temporal server; by default 7233, or a free one."
)
@click.option("--ui-port", type=click.IntRange(1, 65535), help="Port of the Web UI; by default 8233, or a free one.")
@async_command(stays=True)
async def dev_command(port: int | None, ui_port: int | None) -> int:
    """Run Temporal, its Web UI and a worker until Ctrl-C.

    The server is embedded, unless one is configured.
    """
    settings = load_settings()
    stop = stop_event()  # before the start, which a signal can interrupt too
    console.print("starting …")
    async with open_session(settings, Needs.work, port=port, ui_port=ui_port) as session:
        console.print(f"Temporal   {session.client.service_client.config.target_host}")
        if session.ui:
            console.print(f"Web UI     {session.ui}")
        console.print(f"worker     task queue {settings.task_queue}, model {settings.model}")
        console.print(f"state      {settings.home}", soft_wrap=True)
        console.print("Ctrl-C stops everything; runs continue at the next start.")
        await stop.wait()
        console.print("stopping …")
    return 0


@click.command("doctor", epilog=format_examples("doctor"))
@as_json_option
@async_command()
async def doctor_command(as_json: bool) -> int:
    """Check everything a run needs, and say how to fix it.

    The exit code is 1 if a check fails.
    """
    from perdure.doctor import run_checks

    is_well = True
    async for check in run_checks():
        is_well = is_well and check.ok
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(check)))
        else:
            mark = "[green]✓[/]" if check.ok else "[red]✗[/]"
            console.print(f"{mark} {check.name:<18} {escape(check.found)}", soft_wrap=True)
    return 0 if is_well else 1
