"""No workflow reads a clock, randomness, the environment or a file: the strict sandbox replays every stored history."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, Worker

from perdure.converter import data_converter
from perdure.process.workflows import all_workflows
from tests.replay.impure import CALLS, Impure
from tests.replay.strict import strict_runner
from tests.replay.test_stored_histories import FILES, history, name_of

# What a run has of features is loaded on use; a worker's sandbox lets it pass.
pytestmark = pytest.mark.filterwarnings("ignore:Module perdure.features")
AT_A_TIME = 12  # histories of a test, at about half a second each


def chunks() -> list[list[Path]]:
    return [FILES[first : first + AT_A_TIME] for first in range(0, len(FILES), AT_A_TIME)]


@pytest.mark.parametrize("paths", chunks(), ids=lambda paths: name_of(paths[0]))
async def test_stored_histories_replay_in_the_strict_sandbox(paths: list[Path]) -> None:
    async def histories() -> AsyncIterator[WorkflowHistory]:
        for path in paths:
            yield history(path)

    replayer = Replayer(workflows=all_workflows(), workflow_runner=strict_runner(), data_converter=data_converter)
    results = await replayer.replay_workflows(histories(), raise_on_replay_failure=False)
    assert results.replay_failures == {}


@pytest.mark.parametrize("call", CALLS)
async def test_the_strict_sandbox_catches_what_no_workflow_may_call(client: Client, call: str) -> None:
    queue = f"q-{uuid4().hex[:8]}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Impure],
        workflow_runner=strict_runner(),
        workflow_failure_exception_types=[Exception],
    ):
        running = client.execute_workflow("Impure", call, id=queue, task_queue=queue)
        if call == "nothing":
            await running
            return
        with pytest.raises(WorkflowFailureError) as failed:
            await running
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "RestrictedWorkflowAccessError"
