"""A mailbox's requests to the server: the ends of its runs, deliveries, and signals to the mailboxes of peers."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.run.outcome import read_run_end
from activities.temporal import update_with_start
from contracts.conversation import TurnEnd
from contracts.mail.mailbox import Delivered, DeliverRequest, Redeliver, TurnLookup, TurnLookupRequest
from contracts.mail.peers import Dispatch, MailDispatch
from decisions import ids
from decisions.text.formatting import escape_markdown, truncate

AT_A_TIME = 10
LOOK_WITHIN = timedelta(seconds=5)

_OPEN = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)


class Mailboxes:
    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue

    @activity.defn
    async def look_at_turns(self, request: TurnLookupRequest) -> TurnLookup:
        """Return the end of each run, over continue-as-new, unless it is open or may still begin."""
        slots = asyncio.Semaphore(AT_A_TIME)

        async def look_at_turn(run_id: str, conversation_id: str) -> TurnEnd | None:
            async with slots:
                return await self._end_of(run_id, conversation_id)

        pairs = zip(request.run_ids, request.lanes, strict=True)
        return TurnLookup(ends=tuple(await asyncio.gather(*(look_at_turn(*pair) for pair in pairs))))

    async def _end_of(self, run_id: str, conversation_id: str) -> TurnEnd | None:
        """Return the end of a run. A run that the server does not know may still begin while its lane is open."""
        workflow_id = ids.run_workflow_id(run_id)
        status = await self._status_of(workflow_id)
        if status is None:
            if await self._status_of(ids.conversation_workflow_id(conversation_id)) is WorkflowExecutionStatus.RUNNING:
                return None
            status = await self._status_of(workflow_id)  # it may have begun and ended in between
            if status is None:
                return TurnEnd.dropped
        return (
            None
            if status in _OPEN
            else (await read_run_end(self._client.get_workflow_handle(workflow_id))).turn_end.end
        )

    async def _status_of(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """Return the status of a workflow, if the server knows it."""
        try:
            return (await self._client.get_workflow_handle(workflow_id).describe()).status
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None

    @activity.defn
    async def dispatch_mail(self, request: MailDispatch) -> None:
        """Signal the peer's mailbox, which is started if necessary. Repeating it changes nothing."""
        name = "withdraw" if request.withdraw else "dispatch"
        await signal_mailbox(self._client, self._task_queue, request.agent, name, request.dispatch)


async def signal_mailbox(client: Client, task_queue: str, agent: str, name: str, body: Dispatch | Redeliver) -> None:
    """Signal the agent's mailbox, which is started if necessary. Raises RPCError."""
    await client.start_workflow(
        **_start_arguments(task_queue, agent),
        start_signal=name,
        start_signal_args=[body.model_dump(mode="json", exclude_none=True)],
    )


async def deliver_files(client: Client, task_queue: str, agent: str, request: DeliverRequest) -> Delivered:
    """Deliver files to the agent's mailbox, which is started if necessary.

    Raises WorkflowUpdateFailedError with the mailbox's reason, and RPCError. Delivering again after an error is safe.
    """
    body = request.model_dump(mode="json", by_alias=True, exclude_none=True)
    return await update_with_start(client, "deliver", body, _start_arguments(task_queue, agent), Delivered)


async def open_mailbox_run_id(client: Client, agent: str) -> str | None:
    """Return the first run id of the agent's mailbox, as in `Delivered`, if it is open. Raises RPCError."""
    try:
        box = await client.get_workflow_handle(ids.mailbox_workflow_id(agent)).describe(rpc_timeout=LOOK_WITHIN)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    if box.status is not WorkflowExecutionStatus.RUNNING:
        return None
    return box.raw_description.workflow_execution_info.first_run_id


def _start_arguments(task_queue: str, agent: str) -> dict[str, Any]:
    """Return the arguments that start the agent's mailbox, or use the existing one."""
    return {
        "workflow": "Mailbox",
        "args": [{"agent": agent}],
        "id": ids.mailbox_workflow_id(agent),
        "task_queue": task_queue,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "static_summary": escape_markdown(truncate(f"mailbox of {agent}", 200)),
    }
