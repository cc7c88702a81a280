"""A worker process that is cheap to start and made to be killed: forked from a process that has loaded it already."""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import httpx
import httpx2
from anthropic import AsyncAnthropic
from temporalio.client import Client

import perdure.commands.answer
import perdure.commands.gateway  # noqa: F401 - as above
from perdure import cli
from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.security import NO_SECRETS
from perdure.client.connection import connect
from perdure.client.errors import TemporalUnavailableError
from perdure.client.guard import guard_of
from perdure.contracts.bounds import Backoff
from perdure.features.batches import activities as batches
from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.commands import make_bridge
from perdure.features.mailbox.rules.poll_mode import PollPolicy
from perdure.process.project import build_project
from perdure.process.streams import die_with_starter, exit_now
from perdure.process.supervisor import HOME
from perdure.process.worker import build_worker, run_worker
from perdure.settings import Settings, load_settings
from perdure.telemetry import log_to, quiet_core
from perdure.testkit.rehearsal.model import RehearsalTransport
from tests.chaos.crash_points import Trap, arm, fill_disk_while

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__, "perdure.features.mcp.activities.connection", "PIL.PngImagePlugin", "pypdf"])


def home_of(client: Client) -> str:
    """The folder of the state of the embedded server that the client has met; "" for another server."""
    guard = guard_of(client)
    return str(guard.namespace.namespace_info.data.get(HOME, "")) if guard and guard.namespace else ""


@dataclass(frozen=True)
class Project:
    """`model` is the address of a Messages API; without one the rehearsal answers. Workers log into `logs`."""

    folder: Path
    address: str  # of Temporal
    model: str | None = None
    logs: Path | None = None
    full_disk: Path | None = None  # while this file exists, nothing can be stored
    home: str = ""  # the folder of the server's state, if it is an embedded one: it serves no other project

    @property
    def variables(self) -> dict[str, str]:
        runs = str(self.folder / ".perdure" / "runs")
        owned = {"PERDURE_HOME": self.home, "PERDURE_WORKSPACE": runs} if self.home else {}
        return owned | ({"ANTHROPIC_BASE_URL": self.model} if self.model else {})

    @property
    def settings(self) -> Settings:
        return load_settings(self.variables, self.folder)

    def worker(self, task_queue: str, trap: Trap | None = None) -> BaseProcess:
        """Starts one. It works until it is killed, or stopped by SIGTERM."""
        process = _forks.Process(target=_work, args=(self, task_queue, trap), daemon=True)
        process.start()
        return process

    def bridge(self, task_queue: str, folder: Path, agent: str, trap: Trap | None = None) -> BaseProcess:
        """Starts a bridge of a mailbox, which works until it is killed."""
        process = _forks.Process(target=_bridge, args=(self, task_queue, folder, agent, trap), daemon=True)
        process.start()
        return process

    def gateway(self, port: int) -> BaseProcess:
        """Starts `perdure gateway` at a port of this machine. It serves until it is killed."""
        return self.command("gateway", "--port", str(port))

    def command(self, *arguments: str) -> BaseProcess:
        """Starts a command, as a person does in the project's folder. What it prints is in the logs."""
        process = _forks.Process(target=_command, args=(self, arguments), daemon=True)
        process.start()
        return process


def _prepare(project: Project, trap: Trap | None) -> None:
    """In the new process."""
    die_with_starter()
    batches.CHECK_PAUSES = Backoff(1, 1)  # a scripted batch takes two seconds
    if project.logs is not None:
        _log_into(project.logs / f"{os.getpid()}.log")
    if trap is not None:
        arm(trap)


def _bridge(project: Project, task_queue: str, folder: Path, agent: str, trap: Trap | None) -> None:
    _prepare(project, trap)
    asyncio.run(_bridging(project, task_queue, folder, agent))
    exit_now(0)


async def _bridging(project: Project, task_queue: str, folder: Path, agent: str) -> None:
    """As `perdure mail`."""
    client = await connect(project.address)
    there = MailFolder(folder, agent)
    there.open_folder()
    settings = replace(project.settings, task_queue=task_queue)
    await make_bridge(client, settings, there, PollPolicy()).run(asyncio.Event())


def _command(project: Project, arguments: Sequence[str]) -> None:
    die_with_starter()
    if project.logs is not None:
        _print_into(project.logs / f"{os.getpid()}.log")
        os.dup2(2, 1)
    os.chdir(project.folder)
    for name in [name for name in os.environ if name.startswith(("TEMPORAL_", "PERDURE_", "ANTHROPIC_"))]:
        del os.environ[name]
    os.environ |= {"TEMPORAL_ADDRESS": project.address}
    os.environ |= {name: value for name, value in project.variables.items() if name.startswith("PERDURE_")}
    sys.argv = ["perdure", *arguments]
    cli.main()


def _work(project: Project, task_queue: str, trap: Trap | None) -> None:
    _prepare(project, trap)
    if project.full_disk is not None:
        fill_disk_while(project.full_disk)
    try:
        asyncio.run(_working(project, task_queue) if project.model else _rehearsing(project, task_queue))
    except TemporalUnavailableError as error:
        logging.getLogger(__name__).warning("no worker: %s", error)
        exit_now(1)
    exit_now(0)


def _print_into(path: Path) -> TextIO:
    """Send the output there: a panic of the core, or a traceback that nothing caught."""
    stream = path.open("a")
    os.dup2(stream.fileno(), 2)
    return stream


def _log_into(path: Path) -> None:
    stream = _print_into(path)
    log_to(logging.StreamHandler(stream), NO_SECRETS)
    quiet_core()


async def _working(project: Project, task_queue: str) -> None:
    """As `serve_worker`."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await connect(project.address)
    async with run_worker(client, replace(project.settings, task_queue=task_queue)):
        await stop.wait()


async def _rehearsing(project: Project, task_queue: str) -> None:
    """As `run_worker`, but the rehearsal model does not pause to look alive."""
    settings = replace(project.settings, task_queue=task_queue)
    client = await connect(project.address)
    transport = httpx2.AsyncClient(transport=RehearsalTransport(pause=0))
    model = MessagesModel(AsyncAnthropic(api_key="rehearsal", max_retries=0, http_client=transport))
    async with (
        httpx.AsyncClient(trust_env=False) as http,
        build_worker(client, build_project(settings, http), task_queue, model, sizes=settings.file.worker),
    ):
        await asyncio.Event().wait()
