"""Replays a history as a worker does before it handles the next workflow task."""

from collections.abc import Sequence
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer

from perdure.process.workflows import all_workflows, workflow_runner


async def replay_history(
    history: WorkflowHistory, converter: DataConverter, workflows: Sequence[type] = all_workflows(), **options: Any
) -> None:
    """Raise NondeterminismError or RuntimeError if the code does not fit the history.

    `options` are the replayer's.
    """
    if not _has_task(history):
        return  # nothing is decided yet, and the replayer would wait for ever
    replayer = Replayer(
        workflows=workflows,
        workflow_runner=workflow_runner(converter),
        data_converter=converter,
        debug_mode=True,  # a workflow that stands still for two seconds, on a busy machine, is not taken for deadlocked
        **options,
    )
    await replayer.replay_workflow(history)


def _has_task(history: WorkflowHistory) -> bool:
    """Return False for an execution that waits for its first task, as after two continue-as-new within a second."""
    return any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED for event in history.events)
