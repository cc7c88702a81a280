"""Held activities, which wait on the server, paused. They are read, and released, without a worker."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import UnpauseActivityRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.decisions.ids import query_equals

IDENTITY = "perdure"  # of an activity that paused itself
RELEASES_AT_ONCE = 20


@dataclass(frozen=True)
class HeldActivity:
    """An activity that waits on the server, paused.

    `by` is the name of what holds it, and `why` its words. A person who paused it elsewhere is named in `why`.
    """

    workflow_id: str
    execution: str
    activity_id: str
    activity_type: str
    by: str
    why: str
    since: datetime


def held_activity(workflow_id: str, execution: str, pending: PendingActivityInfo) -> HeldActivity | None:
    """Return a pending activity if it is paused."""
    paused = pending.pause_info
    if not pending.paused:
        return None
    by, _, why = paused.manual.reason.partition(" ")
    if paused.manual.identity != IDENTITY:
        by, why = "", f"paused by {paused.manual.identity or 'a rule'}: {paused.manual.reason or 'no reason'}"
    since = paused.pause_time.ToDatetime(UTC)
    return HeldActivity(workflow_id, execution, pending.activity_id, pending.activity_type.name, by, why, since)


def held_query(task_queue: str) -> str:
    """Return the list filter for workflows of a task queue with a paused activity."""
    return f"ExecutionStatus = 'Running' AND TemporalPauseInfo IS NOT NULL AND {query_equals('TaskQueue', task_queue)}"


async def find_held(client: Client, task_queue: str, known: Iterable[str] = ()) -> AsyncIterator[HeldActivity]:
    """Yield the activities of a task queue that paused themselves. The list is about a second old. Raises RPCError.

    `known` are workflows that it may not have yet.
    """
    limit = asyncio.Semaphore(RELEASES_AT_ONCE)

    async def describe(workflow_id: str, execution: str) -> list[HeldActivity]:
        async with limit:
            try:
                described = await client.get_workflow_handle(workflow_id, run_id=execution).describe()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return []
                raise
        activities = described.raw_description.pending_activities
        found = (held_activity(workflow_id, execution, pending) for pending in activities)
        return [held for held in found if held is not None and held.by]

    seen = set(known)
    for listed in await asyncio.gather(*(describe(workflow_id, "") for workflow_id in seen)):
        for held in listed:
            yield held
    page = client.list_workflows(held_query(task_queue), page_size=200)
    while await _fetch_next(page):
        rows = [row for row in page.current_page or () if row.id not in seen]
        for listed in await asyncio.gather(*(describe(row.id, row.run_id) for row in rows)):
            for held in listed:
                yield held


async def _fetch_next(page: Any) -> bool:
    if page.current_page is not None and not page.next_page_token:
        return False
    await page.fetch_next_page()
    return True


async def release_held(client: Client, task_queue: str, by: str, known: Iterable[str] = ()) -> int:
    """Unpause the activities that `by` holds, and return their number. They begin again. Raises RPCError."""
    limit, released = asyncio.Semaphore(RELEASES_AT_ONCE), 0

    async def release(held: HeldActivity) -> None:
        async with limit:
            await unpause(client, held.workflow_id, held.execution, held.activity_id)

    found = find_held(client, task_queue, known)
    tasks = [asyncio.create_task(release(held)) async for held in found if held.by == by]
    released = len(tasks)
    await asyncio.gather(*tasks)
    return released


async def unpause(client: Client, workflow_id: str, execution: str, activity_id: str) -> None:
    """Let a paused activity begin again, unless it has ended. Raises RPCError."""
    run = WorkflowExecution(workflow_id=workflow_id, run_id=execution)
    request = UnpauseActivityRequest(namespace=client.namespace, execution=run, identity=IDENTITY, id=activity_id)
    try:
        await client.workflow_service.unpause_activity(request, retry=True)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
