"""`perdure worker`, `dev` and `doctor`."""

import asyncio
import dataclasses
import fcntl
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import get_completion_class
from rich.markup import escape

from perdure.process.streams import restore_streams
from perdure.session import Needs, open_session, worker_lock_path
from perdure.settings import Settings, load_settings
from perdure.settings.policy import POLICY_FILE
from perdure.terminal.command import as_json_option, async_command, console, format_examples, print_faults
from perdure.terminal.follow import stop_event

CHANGE_INTERVAL = 1.0  # seconds between checks of the project's files


@click.command("worker", epilog=format_examples("worker"))
def worker_command() -> None:
    """Run a worker for the configured Temporal server.

    Same as `python worker.py`.
    """
    from perdure.process.worker import run_worker_process

    run_worker_process()


@click.command("dev", epilog=format_examples("dev", "dev --port 7233 --ui-port 8233"))
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port of the Temporal server; by default 7233, or a free one."
)
@click.option("--ui-port", type=click.IntRange(1, 65535), help="Port of the Web UI; by default 8233, or a free one.")
@async_command(stays=True)
async def dev_command(port: int | None, ui_port: int | None) -> int:
    """Run Temporal, its Web UI and a worker until Ctrl-C.

    The server is embedded, unless one is configured. Changed files of the project are taken up.
    """
    settings = load_settings(strict=False)
    print_faults(*settings.roster.faults.values())
    files = _file_times(settings)
    stop = stop_event()  # before the start, which a signal can interrupt too
    console.print("starting …")
    async with open_session(settings, Needs.worker, port=port, ui_port=ui_port) as session:
        console.print(f"Temporal   {session.client.service_client.config.target_host}")
        if session.ui:
            console.print(f"Web UI     {session.ui}")
        console.print(f"worker     task queue {settings.task_queue}, model {settings.model}")
        console.print(f"state      {settings.home}", soft_wrap=True)
        console.print("Ctrl-C stops everything; runs continue at the next start.")
        if session.ui is None:  # a configured server has its own workers
            await stop.wait()
        elif await _is_changed(settings, {**_file_times(settings), **files}, stop):
            locks = _hold_locks(settings)
        if stop.is_set():
            console.print("stopping …")
    return 0 if stop.is_set() else _start_again(locks)


async def _is_changed(settings: Settings, files: Mapping[Path, tuple[int, int]], stop: asyncio.Event) -> bool:
    """Wait until files of the project have changed and load; False if `stop` is set before."""
    stopped = asyncio.create_task(stop.wait())
    while not (await asyncio.wait({stopped}, timeout=CHANGE_INTERVAL))[0]:
        now = await asyncio.to_thread(_file_times, settings)
        if now == files:
            continue
        changed = sorted({path for path, _ in now.items() ^ files.items()})
        files = now
        names = ", ".join(str(path.relative_to(settings.folder)) for path in changed)
        if fault := await _find_fault():
            console.print(f"{names} changed, and the worker goes on without: {fault}", markup=False, soft_wrap=True)
            continue
        console.print(f"{names} changed; the worker starts again with this", markup=False, soft_wrap=True)
        return True
    return False


async def _find_fault() -> str:
    """Return the reason that the project does not load in a new process, or ""."""
    check = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", "agents"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await check.communicate()
    return said.decode(errors="replace").strip() or "it does not load" if check.returncode else ""


def _file_times(settings: Settings) -> dict[Path, tuple[int, int]]:
    """Return time and size of each file that a worker reads at its start, and of the tools' modules in the folder."""
    folder = settings.folder
    files = {settings.path, folder / POLICY_FILE, *folder.glob("agents/*")}
    files |= {*folder.glob("*.json")}  # schemas, and servers of tools with what is accepted of them
    names = (getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != "perdure")
    files |= {path for name in names if name and (path := Path(name)).is_relative_to(folder)}
    times = {}
    for path in files:
        if path.is_file() and "site-packages" not in path.parts:
            status = path.stat()
            times[path] = (status.st_mtime_ns, status.st_size)
    return times


def _hold_locks(settings: Settings) -> list[int]:
    """Return locks that keep the embedded server running, and say that a worker starts, while this process starts
    again. It holds them from then on.
    """
    paths = (settings.home / "users.lock", worker_lock_path(settings, "starting"))
    locks = [os.open(path, os.O_RDWR) for path in paths]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_SH)
    return locks


def _start_again(locks: Sequence[int]) -> NoReturn:
    """Replace this process by the same command: tools' code that is imported cannot be taken up otherwise."""
    for lock in locks:
        os.set_inheritable(lock, True)
    restore_streams()
    os.execv(sys.executable, [sys.executable, "-m", "perdure.cli", *sys.argv[1:]])  # noqa: S606 - this very program


@click.command("doctor", epilog=format_examples("doctor", "doctor --quick"))
@click.option("--quick", is_flag=True, help="Only check that the server answers, and a worker with PERDURE_METRICS.")
@click.option("--gateway", metavar="URL", help="With --quick: check that the gateway at this address is ready, too.")
@as_json_option
@async_command()
async def doctor_command(quick: bool, gateway: str | None, as_json: bool) -> int:
    """Check everything a run needs, and say how to fix it.

    The exit code is 1 if a check fails. --quick is the health check of a container: it starts nothing.
    """
    from perdure.doctor import run_checks, run_quick_checks

    if gateway and not quick:
        raise click.UsageError("--gateway requires --quick")
    is_well = True
    async for check in run_quick_checks(gateway) if quick else run_checks():
        is_well = is_well and check.ok
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(check)))
        else:
            mark = "[green]✓[/]" if check.ok else "[red]✗[/]"
            console.print(f"{mark} {check.name:<18} {escape(check.found)}", soft_wrap=True)
    return 0 if is_well else 1


EXAMPLES = """\b
Examples:
  perdure completion bash >> ~/.bashrc
  perdure completion zsh >> ~/.zshrc
  perdure completion fish > ~/.config/fish/completions/perdure.fish"""


@click.command("completion", epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script.

    It completes commands, options, agents and, while a server is running, run ids. It never starts a server.
    """
    script = get_completion_class(shell)
    if script is not None:
        click.echo(script(ctx.find_root().command, {}, "perdure", "_PERDURE_COMPLETE").source())
