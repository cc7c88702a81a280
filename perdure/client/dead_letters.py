"""Dead letters: workflows of features that failed to begin or deliver something, and were not started again since."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from itertools import islice

from temporalio.client import Client, WorkflowExecution, WorkflowFailureError
from temporalio.service import RPCError

from perdure.client.errors import convert_rpc_errors
from perdure.contracts.models import FrozenModel
from perdure.decisions import ids
from perdure.decisions.text.formatting import truncate
from perdure.registry import features

MAX_DEAD_LETTERS = 1000  # that are looked at
IDS_IN_QUERY = 50  # ids of one list, whose query has them all
CONCURRENT_READS = 10  # of reasons, each of which reads a history


class DeadLetter(FrozenModel):
    """A failed delivery. It is the workflow `id`, which `perdure redeliver` starts again."""

    id: str
    kind: str  # the workflow's type
    failed_at: datetime | None
    reason: str


class DeadLetterList(FrozenModel):
    """Dead letters, the latest first. `is_partial`: there are more."""

    dead_letters: tuple[DeadLetter, ...]
    is_partial: bool


def dead_letter_inputs() -> dict[str, str]:
    """Return the inputs of workflows that are dead letters when they fail, by workflow type."""
    return {kind: target for row in features().values() for kind, target in row.dead_letters.items()}


async def find_dead_letters(client: Client, limit: int = MAX_DEAD_LETTERS) -> list[WorkflowExecution]:
    """Return the dead letters among the latest 1,000 failures, the latest first and up to `limit`.

    Raises TemporalUnavailableError.
    """
    quoted = ", ".join(f"'{kind}'" for kind in sorted(dead_letter_inputs()))
    kinds = f"WorkflowType IN ({quoted})"
    failed = dict[str, WorkflowExecution]()
    with convert_rpc_errors("the dead letters"):
        query = f"{kinds} AND ExecutionStatus = 'Failed'"
        async for execution in client.list_workflows(query, limit=MAX_DEAD_LETTERS):
            failed.setdefault(execution.id, execution)
        again, latest = set[str](), list(failed.values())
        for first in range(0, len(latest), IDS_IN_QUERY):
            again |= await _find_started_again(client, kinds, latest[first : first + IDS_IN_QUERY])
    return list(islice((execution for name, execution in failed.items() if name not in again), limit))


async def _find_started_again(client: Client, kinds: str, failed: Iterable[WorkflowExecution]) -> set[str]:
    """Return the ids of those that were started again after their failure. Raises RPCError."""
    times = {execution.id: execution.start_time for execution in failed}
    named = " OR ".join(ids.query_equals("WorkflowId", name) for name in times)
    others = client.list_workflows(f"{kinds} AND ExecutionStatus != 'Failed' AND ({named})", limit=MAX_DEAD_LETTERS)
    return {other.id async for other in others if other.id in times and other.start_time > times[other.id]}


async def read_dead_letters(client: Client, limit: int) -> DeadLetterList:
    """Return up to `limit` dead letters with their reasons. Raises TemporalUnavailableError."""
    slots = asyncio.Semaphore(CONCURRENT_READS)

    async def describe(execution: WorkflowExecution) -> DeadLetter:
        async with slots:
            reason = await _read_reason(client, execution)
        return DeadLetter(id=execution.id, kind=execution.workflow_type, failed_at=execution.close_time, reason=reason)

    dead = await find_dead_letters(client, limit + 1)
    letters = await asyncio.gather(*map(describe, dead[:limit]))
    return DeadLetterList(dead_letters=tuple(letters), is_partial=len(dead) > limit)


async def _read_reason(client: Client, execution: WorkflowExecution) -> str:
    """Return the message of the failure; "" if its history is gone."""
    with suppress(RPCError):
        try:
            await client.get_workflow_handle(execution.id, run_id=execution.run_id).result()
        except WorkflowFailureError as error:
            return truncate(str(error.cause), 400)
    return ""
