"""A worker process of a play. It kills itself at one moment, by parts that no ordinary worker has.

The process is forked from one that has loaded the worker: starting Python and the SDK takes more than a play.
"""

import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
    WorkerConfig,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from perdure.activities.telemetry.metrics import MetricsInterceptor
from perdure.client.connection import connect
from perdure.decisions.errors import ReportedError
from perdure.decisions.ids import run_workflow_id
from perdure.features.follow_ups.settings import OUTBOX, OutboxSettings
from perdure.features.proof.contract import KillMoment
from perdure.process.project import open_offer
from perdure.process.streams import conceal_secrets, die_with_starter, exit_now
from perdure.process.worker import open_worker
from perdure.settings import Settings, load_settings
from perdure.settings.file import ProviderSettings
from perdure.settings.tables import feature_tables
from perdure.telemetry import log_to, quiet_core

HEARTBEAT = timedelta(seconds=4)  # a killed worker's calls are repeated after it
STICKY_TIMEOUT = timedelta(seconds=1)
_forks = multiprocessing.get_context("forkserver")


_forks.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class WorkerPlan:
    """A worker of the run `run_id`, in `folder`. It writes to `log`, and kills itself at `moment`, if that is given."""

    folder: Path
    environment: Mapping[str, str]
    address: str
    run_id: str
    log: Path
    moment: KillMoment | None = None

    def start(self) -> BaseProcess:
        process = _forks.Process(target=_work, args=(self,), daemon=True)
        process.start()
        return process


def remove_forks() -> None:
    """Remove the socket of the process that workers are forked from, which `exit_now` would leave. It ends with us."""
    shutil.rmtree(get_temp_dir(), ignore_errors=True)


def _work(plan: WorkerPlan) -> None:
    die_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends its workers
    os.chdir(plan.folder)
    os.environ.clear()
    os.environ.update(plan.environment)
    with plan.log.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        settings = _play_settings(load_settings())
        log_to(logging.StreamHandler(sys.stderr), settings.secrets)
        quiet_core()
        asyncio.run(_serve(plan, settings))
    except ReportedError as error:
        print(f"worker: {error}", file=sys.stderr)
        exit_now(1)
    exit_now(0)


def _play_settings(settings: Settings) -> Settings:
    """Return the settings with short times, the scripted model in place of every provider, and no way to people.

    Nothing is announced, and messages of follow-ups go to a file of the play.
    """
    scripted = ProviderSettings(kind="messages", base_url=settings.base_url)
    model = settings.file.model
    providers = {name: scripted for name in model.providers if name != "anthropic"}
    tables: dict[str, Any] = {name: table.default for name, table in feature_tables().items()}
    tables[OUTBOX.name] = OutboxSettings(channels=OUTBOX.of(settings.file).channels)
    worker = settings.file.worker.evolve(heartbeat=HEARTBEAT, sticky_timeout=STICKY_TIMEOUT)
    return replace(
        settings,
        file=settings.file.evolve(
            worker=worker,
            model=model.evolve(providers=providers),
            **tables,
        ),
        keys={},
    )


async def _serve(plan: WorkerPlan, settings: Settings) -> None:
    """Run a worker until SIGTERM, as `perdure.process.worker.serve_worker` does."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await connect(plan.address)
    with conceal_secrets(os.environ):
        async with AsyncExitStack() as closing:
            tools = await closing.enter_async_context(open_offer(settings))
            config = open_worker(client, settings, tools, MetricsInterceptor(), closing)
            if plan.moment is not None:
                run_id = f"{plan.run_id}.{plan.moment.subtask}" if plan.moment.subtask else plan.run_id
                _arm(config, run_workflow_id(run_id), plan.moment)
            async with Worker(**config):
                await stop.wait()


def _arm(config: WorkerConfig, workflow_id: str, moment: KillMoment) -> None:
    config["interceptors"] = [_KillInterceptor(workflow_id, moment), *config["interceptors"]]
    config["workflow_runner"] = _KillRunner(config["workflow_runner"], workflow_id, moment)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class _KillRunner(WorkflowRunner):
    """Kills the process when a workflow task has its commands and the server does not have them yet."""

    inner: WorkflowRunner
    workflow_id: str
    moment: KillMoment

    def prepare_workflow(self, defn: Any) -> None:
        self.inner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        self.inner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = self.inner.create_instance(det)
        if det.info.workflow_id != self.workflow_id or self.moment.kind != "task":
            return instance
        activate = instance.activate

        def activate_and_kill(act: Any) -> Any:
            completion = activate(act)
            if not act.is_replaying and act.history_length + 1 == self.moment.at:  # of its WorkflowTaskStarted
                _kill_self()
            return completion

        instance.activate = activate_and_kill  # type: ignore[method-assign]
        return instance


@dataclass(frozen=True)
class _KillInterceptor(Interceptor):
    """Kills the process before or after the work of an activity."""

    workflow_id: str
    moment: KillMoment

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002 - the SDK's
    ) -> ActivityInboundInterceptor:
        return _KillInbound(next, self)


class _KillInbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, plan: _KillInterceptor) -> None:
        super().__init__(inner)
        self._plan = plan

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        self._kill_at("begin")
        try:
            return await super().execute_activity(input)
        finally:
            self._kill_at("end")

    def _kill_at(self, kind: str) -> None:
        info, moment = activity.info(), self._plan.moment
        is_own = info.workflow_id == self._plan.workflow_id and not info.is_local
        if is_own and moment.kind == kind and info.activity_id == str(moment.at):
            _kill_self()
