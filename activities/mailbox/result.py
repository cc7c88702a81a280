"""What became of the run that did a task, as the server has it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from activities.run.outcome import outcome_of
from activities.telemetry.attributes import AGENT_STEP
from contracts.delegation import SubtaskStatus
from contracts.mail.delivery import Ack, LetterEnding
from decisions.ids import run_workflow_id

LOOK_WITHIN = timedelta(seconds=20)
GONE = "RunGone"
NOT_KEPT = "It is done. What came of it is not kept any more."


@dataclass(frozen=True)
class Result:
    """`text` is the outcome, or why there is none; `fault` the type of a failure. `artifacts` lie in its workspace."""

    is_done: bool
    text: str
    fault: str | None = None
    artifacts: tuple[str, ...] = ()


async def result_of(client: Client, run_id: str, known: LetterEnding) -> Result:
    """Of a run that has ended; waits for one that has not.

    `fault` is `RunGone` where the server has forgotten it: all there is then is what is `known` of its end.

    Raises RPCError.
    """
    end = await outcome_of(client.get_workflow_handle(run_workflow_id(run_id), result_type=dict[str, Any]))
    if end is None:
        is_done = known.ack is Ack.succeeded
        return Result(is_done, NOT_KEPT if is_done else known.details, GONE)
    return Result(end.status is SubtaskStatus.done, end.text, end.fault, end.artifacts)


def told_without_run(ending: LetterEnding) -> Result:
    """Of a task that no run was begun for, or none that is known."""
    return Result(is_done=ending.ack is Ack.succeeded, text=ending.details, fault=ending.fault)


async def steps_of(client: Client, run_id: str) -> int:
    """As the run has told the server."""
    described = await client.get_workflow_handle(run_workflow_id(run_id)).describe(rpc_timeout=LOOK_WITHIN)
    return described.typed_search_attributes.get(AGENT_STEP) or 0
