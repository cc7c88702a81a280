"""Replays a history as a worker does before it handles the next workflow task."""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer

from perdure.process.workflows import WORKFLOWS, workflow_runner
from tests.waiting import PATIENCE

ATTEMPTS = 3  # the SDK's core sometimes never ends the shutdown of a worker, and a replayer is one


async def replay_history(
    history: WorkflowHistory, converter: DataConverter, workflows: Sequence[type] = WORKFLOWS, **options: Any
) -> None:
    """Raise NondeterminismError or RuntimeError if the code does not fit the history.

    `options` are the replayer's. Raises TimeoutError if no attempt ends.
    """
    for _ in range(ATTEMPTS):
        replayer = Replayer(
            workflows=workflows, workflow_runner=workflow_runner(converter), data_converter=converter, **options
        )
        replay = asyncio.create_task(replayer.replay_workflow(history))
        ended, _ = await asyncio.wait({replay}, timeout=PATIENCE)
        if ended:
            replay.result()
            return
        replay.cancel()  # not awaited: it may never end
    raise TimeoutError(f"no replay of {history.workflow_id} has ended")
