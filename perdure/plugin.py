"""`PerdurePlugin`: Perdure in the client, worker and replayer of another program.

What can fail without a server fails while the client or the worker is created, in one line.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, cast
from weakref import WeakKeyDictionary

from temporalio.client import Client, ClientConfig
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import Interceptor, ReplayerConfig, Worker, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from perdure.activities.telemetry.metrics import MetricsInterceptor
from perdure.client.connection import (
    adopt_converter,
    configured_namespace,
    register_search_attributes,
)
from perdure.client.guard import watching_server, with_guard
from perdure.converter import TolerantPayloadConverter
from perdure.process.project import open_known_offer
from perdure.process.queue_marker import check_owner, set_marker
from perdure.process.worker import beside_worker, open_worker
from perdure.process.workflows import all_workflows, confirmation, workflow_runner
from perdure.settings import ProjectError, Settings, load_settings
from perdure.workflows.handlers import UnknownWorkflow

_LISTS = ("workflows", "activities", "interceptors")
_KEPT = ("client", "task_queue", "workflow_runner", "build_id", "deployment_config")  # the program's own
# The ledger relies on them: a call gets time to end, and the server knows of each heartbeat soon.
_BOUNDED: dict[str, Callable[[timedelta, timedelta], timedelta]] = {
    "graceful_shutdown_timeout": max,
    "max_heartbeat_throttle_interval": min,
    "default_heartbeat_throttle_interval": min,
}
_SDK_DEFAULTS = {name: option.default for name, option in inspect.signature(Worker).parameters.items()}


class PerdurePlugin(SimplePlugin):
    """Adds Perdure to a client and its workers, or to a replayer. Give it to the client: its workers then have it too.

    `settings` are by default those of the current folder and the environment. Raises ProjectError.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__("perdure")
        self._settings = settings or load_settings()
        self._opened: WeakKeyDictionary[Interceptor, AsyncExitStack] = WeakKeyDictionary()

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        config["data_converter"] = self._adopt_converter(config["data_converter"])
        return with_guard(config)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add the project's parts. An option at the SDK's default gets Perdure's value; others stay, within bounds."""
        client, settings = config["client"], self._settings
        self._check_place(client.namespace, config["task_queue"])
        self._check_converter(client)
        if set(_shared_workflows()) & set(config["workflows"]):
            raise ProjectError("this worker has Perdure already: give PerdurePlugin to the client alone")
        closing, observation = AsyncExitStack(), MetricsInterceptor()
        ours = open_worker(client, settings, open_known_offer(settings, closing), observation, closing)
        self._opened[observation] = closing
        ours["workflows"] = _shared_workflows()
        merged = {**config, **_options_left_open(config, ours)}
        merged |= {name: [*config[name], *ours[name]] for name in _LISTS}  # type: ignore[literal-required]
        merged["workflow_runner"] = _open_sandbox(
            config["workflow_runner"], client.data_converter, confirmation(client)
        )
        return cast("WorkerConfig", merged)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        converter = self._adopt_converter(config["data_converter"])
        config["data_converter"] = converter
        config["workflows"] = [*config["workflows"], *_shared_workflows()]
        config["workflow_runner"] = _open_sandbox(config["workflow_runner"], converter)
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 - the SDK's
        """Prepare the server, run the worker, and close the project's clients."""
        client, queue = worker.client, self._settings.task_queue
        async with AsyncExitStack() as closing:
            for interceptor in worker.config(active_config=True)["interceptors"]:
                if opened := self._opened.pop(interceptor, None):
                    await closing.enter_async_context(opened)
            try:
                await check_owner(client, self._settings.home, self._settings.name)
                await set_marker(client, queue, self._settings.codec, self._settings.name)
                if self._settings.file.worker.search_attributes and (
                    warning := await register_search_attributes(client)
                ):
                    logging.getLogger(__name__).warning(warning)
            except Exception:
                # `async with worker` waits for its shutdown, which ends only if the worker has run.
                stopping = asyncio.create_task(worker.shutdown())
                await next(worker)
                await stopping
                raise
            async with beside_worker(client, queue), watching_server(client):
                await next(worker)

    def _adopt_converter(self, existing: DataConverter) -> DataConverter:
        return adopt_converter(existing, self._settings.codec, self._settings.payloads)

    def _check_place(self, namespace: str, task_queue: str) -> None:
        own, configured = self._settings.task_queue, configured_namespace()
        if task_queue != own:
            raise ProjectError(
                f"this worker's task queue is {task_queue!r} and the project's is {own!r}: "
                "set PERDURE_TASK_QUEUE to the worker's, or connect its client without PerdurePlugin"
            )
        if configured not in (None, namespace):
            raise ProjectError(
                f"this worker's namespace is {namespace!r} and TEMPORAL_NAMESPACE is {configured!r}, "
                "where Perdure's commands look: set it to the worker's"
            )

    def _check_converter(self, client: Client) -> None:
        settings, converter = self._settings, client.data_converter
        kind = converter.payload_converter_class
        is_ours = issubclass(kind, TolerantPayloadConverter)
        lacks = (settings.codec and not converter.payload_codec) or (
            settings.payloads and not converter.external_storage
        )
        if not is_ours and self in client.config()["plugins"]:
            raise ProjectError(
                f"another plugin of this worker's client has replaced Perdure's converter by {kind.__name__}: "
                "put PerdurePlugin after it"
            )
        if not is_ours or lacks:
            raise ProjectError(
                "this worker's client does not have Perdure's converter: give PerdurePlugin to it instead"
            )


def _shared_workflows() -> tuple[type, ...]:
    """Return all but `UnknownWorkflow`: another worker of a shared task queue may know types that this one does not."""
    return tuple(workflow for workflow in all_workflows() if workflow is not UnknownWorkflow)


def _options_left_open(config: WorkerConfig, ours: WorkerConfig) -> dict[str, Any]:
    """Return Perdure's options where the worker has the SDK's defaults, and those of `_BOUNDED`."""
    options = {
        name: value
        for name, value in ours.items()
        if name not in (*_LISTS, *_KEPT) and config.get(name, _SDK_DEFAULTS[name]) == _SDK_DEFAULTS[name]
    }
    if config.get("tuner"):  # it decides about slots
        options = {name: value for name, value in options.items() if not name.startswith("max_concurrent_")}
    return {**options, **{name: choose(config[name], ours[name]) for name, choose in _BOUNDED.items()}}  # type: ignore[literal-required]


def _open_sandbox(
    runner: WorkflowRunner, converter: DataConverter, confirm: Callable[[], None] | None = None
) -> WorkflowRunner:
    """Return the runner, with Perdure's modules passed through if it is a sandbox."""
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    return workflow_runner(converter, runner.restrictions, confirm)
