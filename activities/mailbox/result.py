"""The result of a task's run, from the server."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from activities.run.outcome import wait_for_outcome
from activities.telemetry.attributes import AGENT_STEP
from contracts.delegation import SubtaskStatus
from contracts.mail.delivery import Ack, MessageResult
from decisions.ids import run_workflow_id

LOOK_WITHIN = timedelta(seconds=20)
GONE = "RunGone"
NOT_KEPT = "The task is done. Its result is not stored any more."


@dataclass(frozen=True)
class TaskResult:
    """A run's result: `text` is its outcome or failure, `fault` the type of failure, `artifacts` paths of its files."""

    is_done: bool
    text: str
    fault: str | None = None
    artifacts: tuple[str, ...] = ()


async def result_of(client: Client, run_id: str, known: MessageResult) -> TaskResult:
    """Return the result of a run, once it has ended.

    If the server has forgotten the run, `fault` is `RunGone` and the result comes from its `known` ending.

    Raises RPCError.
    """
    end = await wait_for_outcome(client.get_workflow_handle(run_workflow_id(run_id), result_type=dict[str, Any]))
    if end is None:
        is_done = known.ack is Ack.succeeded
        return TaskResult(is_done, NOT_KEPT if is_done else known.details, GONE)
    return TaskResult(end.status is SubtaskStatus.done, end.text, end.fault, end.artifacts)


def result_without_run(ending: MessageResult) -> TaskResult:
    """Return the result of a task that has no known run."""
    return TaskResult(is_done=ending.ack is Ack.succeeded, text=ending.details, fault=ending.fault)


async def steps_of(client: Client, run_id: str) -> int:
    """Return the number of steps of a run, from its search attributes."""
    described = await client.get_workflow_handle(run_workflow_id(run_id)).describe(rpc_timeout=LOOK_WITHIN)
    return described.typed_search_attributes.get(AGENT_STEP) or 0
