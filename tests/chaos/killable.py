"""A worker process that is cheap to start and made to be killed: forked from a process that has loaded it already."""

import asyncio
import multiprocessing
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import httpx2
from anthropic import AsyncAnthropic

from activities.model import MessagesModel
from activities.rehearsal import RehearsalTransport
from runs import connect
from settings import Settings, load
from worker import build, project_of

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Project:
    folder: Path
    address: str  # of Temporal

    @property
    def settings(self) -> Settings:
        return load({}, self.folder)

    def worker(self, task_queue: str) -> BaseProcess:
        """Starts one. It works until it is killed."""
        process = _forks.Process(target=_work, args=(self, task_queue), daemon=True)
        process.start()
        return process


def _work(project: Project, task_queue: str) -> None:
    asyncio.run(_working(project, task_queue))


async def _working(project: Project, task_queue: str) -> None:
    """As `worker.working`, but the rehearsal model does not pause to look alive."""
    settings = replace(project.settings, task_queue=task_queue)
    client = await connect(project.address)
    transport = httpx2.AsyncClient(transport=RehearsalTransport(pause=0))
    model = MessagesModel(AsyncAnthropic(api_key="rehearsal", max_retries=0, http_client=transport))
    async with httpx.AsyncClient(trust_env=False) as http, build(client, project_of(settings, http), task_queue, model):
        await asyncio.Event().wait()
