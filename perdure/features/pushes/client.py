"""Pushes from outside: start, read, list and stop. The methods raise RPCError."""

from collections.abc import AsyncIterator

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.temporal import IgnoreMissing
from perdure.decisions import ids
from perdure.features.pushes.contract import PushStart, PushTarget

MAX_LISTED = 100


async def start_push(client: Client, task_queue: str, push: PushStart) -> None:
    """Start a push, in place of one of the same id; it begins with the state that the run has now."""
    await client.start_workflow(
        "Push",
        push,
        id=ids.push_workflow_id(push.run_id, push.target.id),
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
        static_summary=f"states of {push.run_id}",
    )


async def read_push(client: Client, run_id: str, push_id: str) -> PushTarget | None:
    """Return the address of a push; None if there is none, or it was stopped."""
    with IgnoreMissing():
        handle = client.get_workflow_handle(ids.push_workflow_id(run_id, push_id))
        if (await handle.describe()).status is not WorkflowExecutionStatus.TERMINATED:
            return await _read_target(client, handle.id)
    return None


async def list_pushes(client: Client, run_id: str) -> AsyncIterator[PushTarget]:
    """Yield the addresses that are sent to. The list is about a second old."""
    begin = ids.query_begins("WorkflowId", ids.push_workflow_id(run_id, ""))
    query = f"WorkflowType = 'Push' AND ExecutionStatus = 'Running' AND {begin}"
    async for execution in client.list_workflows(query, limit=MAX_LISTED):
        with IgnoreMissing():
            yield await _read_target(client, execution.id)


async def _read_target(client: Client, workflow_id: str) -> PushTarget:
    first = await anext(client.get_workflow_handle(workflow_id).fetch_history_events(page_size=1))
    started = first.workflow_execution_started_event_attributes
    [push] = await client.data_converter.decode(started.input.payloads, [PushStart])
    target: PushTarget = push.target
    return target


async def stop_push(client: Client, run_id: str, push_id: str) -> None:
    """Stop a push, if there is one. It needs no worker."""
    try:
        await client.get_workflow_handle(ids.push_workflow_id(run_id, push_id)).terminate("its owner has deleted it")
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
