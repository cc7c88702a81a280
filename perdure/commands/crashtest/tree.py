"""The runs of a play as they grow: the run itself, and its subtasks, which its history leads to."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from decisions.ids import delegating_run_id, run_id_of_workflow, run_workflow_id
from perdure.client.errors import TemporalUnavailableError
from perdure.client.history import HistoryReader
from perdure.client.run_list import RunInfo, find_run

RETRY_SECONDS = 0.1  # between attempts to reach a killed server, or a run without a worker
AWAY = (RPCError, RuntimeError, TemporalUnavailableError)


@dataclass
class RunTree:
    """The runs of a play. A subtask has its id without that of the run `name`, such as `1-research`; the run has "".

    `on_event` gets each event of each run once or more: a server that was killed sends the earlier ones again.
    """

    client: Client
    name: str
    on_event: Callable[[str, HistoryEvent], None]
    subtasks: set[str] = field(default_factory=set)
    _followed: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)  # by workflow id

    def run_id(self, subtask: str) -> str:
        return f"{self.name}.{subtask}" if subtask else self.name

    async def follow(self) -> None:
        """Follow the run to its end, and what it delegates."""
        await self._follow(run_workflow_id(self.name))

    async def close(self) -> None:
        for task in self._followed.values():
            task.cancel()
        await asyncio.gather(*self._followed.values(), return_exceptions=True)

    async def read_histories(self) -> dict[str, list[list[dict[str, Any]]]]:
        """Return the events of each execution of each run, the run itself first."""
        histories = {}
        for subtask in ("", *sorted(self.subtasks)):
            run = await find_run(self.client, self.run_id(subtask))
            executions = await HistoryReader(self.client).read_executions(run)
            histories[subtask] = [execution.events for execution in executions]
        return histories

    async def _follow(self, workflow_id: str) -> None:
        while True:
            try:
                execution = await self.client.get_workflow_handle(workflow_id).describe()
                run = RunInfo(run_id_of_workflow(workflow_id), execution)
                async for _, event in HistoryReader(self.client).read_events(run, follow=True):
                    self._on_event(workflow_id, event)
            except AWAY:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _on_event(self, workflow_id: str, event: HistoryEvent) -> None:
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            child = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
            if child not in self._followed and self._is_own(child):
                self._followed[child] = asyncio.create_task(self._follow(child))
        if delegating_run_id(workflow_id) is None:
            self.on_event(self._subtask_of(workflow_id), event)

    def _is_own(self, child: str) -> bool:
        """Return whether the workflow is a delegation or a subtask of this tree, and note the subtask."""
        if delegating_run_id(child) is not None:
            return True
        subtask = self._subtask_of(child)
        if subtask:
            self.subtasks.add(subtask)
        return bool(subtask)

    def _subtask_of(self, workflow_id: str) -> str:
        """Return the id of a subtask; "" for the run itself, and for workflows that are no subtask."""
        start = f"{run_workflow_id(self.name)}."
        return workflow_id.removeprefix(start) if workflow_id.startswith(start) else ""
