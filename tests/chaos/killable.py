"""A worker process that is cheap to start and made to be killed: forked from a process that has loaded it already."""

import asyncio
import logging
import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import httpx2
from anthropic import AsyncAnthropic

from activities.demo.model import RehearsalTransport
from activities.mailbox.folder import MailFolder
from activities.providers.anthropic import MessagesModel
from activities.security.secrets import NO_SECRETS
from perdure.client.connection import connect
from perdure.client.errors import TemporalUnavailableError
from perdure.commands.mail import bridge_worker
from perdure.process.mailbox_bridge import Bridge
from perdure.process.project import build_project
from perdure.process.shutdown import exit_now
from perdure.process.supervisor import _die_with_parent
from settings import Settings, load_settings
from telemetry import log_to, quiet_core
from tests.chaos.crash_points import Trap, arm, fill_disk_while
from worker import build_worker, run_worker

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Project:
    """`model` is the address of a Messages API; without one the rehearsal answers. Workers log into `logs`."""

    folder: Path
    address: str  # of Temporal
    model: str | None = None
    logs: Path | None = None
    full_disk: Path | None = None  # while this file exists, nothing can be stored

    @property
    def settings(self) -> Settings:
        return load_settings({"ANTHROPIC_BASE_URL": self.model} if self.model else {}, self.folder)

    def worker(self, task_queue: str, trap: Trap | None = None) -> BaseProcess:
        """Starts one. It works until it is killed, or told to stop by SIGTERM."""
        process = _forks.Process(target=_work, args=(self, task_queue, trap), daemon=True)
        process.start()
        return process

    def bridge(self, task_queue: str, folder: Path, agent: str, trap: Trap | None = None) -> BaseProcess:
        """Starts a bridge of a mailbox, which works until it is killed."""
        process = _forks.Process(target=_bridge, args=(self, task_queue, folder, agent, trap), daemon=True)
        process.start()
        return process


def _prepare(project: Project, trap: Trap | None) -> None:
    """In the new process."""
    _die_with_parent()
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
    async with bridge_worker(client, settings, there):
        await Bridge(client, task_queue, there).run(asyncio.Event())


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


def _log_into(path: Path) -> None:
    """What is printed goes there too: a panic of the core, or a traceback that nobody caught."""
    stream = path.open("a")
    os.dup2(stream.fileno(), 2)
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
