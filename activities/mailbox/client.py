"""What a mailbox asks the server: how its runs have ended. And how a subtask gets into the mailbox of a peer."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.run.outcome import end_of
from activities.update_with_start import update_with_start
from contracts.conversation import TurnEnd
from contracts.mail.mailbox import Delivered, DeliverRequest, Looked, LookRequest, Redeliver
from contracts.mail.peers import Dispatch, MailDispatch
from decisions import ids
from decisions.text.formatting import cut, markdown

AT_A_TIME = 10
LOOK_WITHIN = timedelta(seconds=5)

_OPEN = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)


class Mailboxes:
    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue

    @activity.defn
    async def look_at_turns(self, request: LookRequest) -> Looked:
        """How each run has ended, over its continue-as-new; None while it is open, or may still begin."""
        turn = asyncio.Semaphore(AT_A_TIME)

        async def one(run_id: str, conversation_id: str) -> TurnEnd | None:
            async with turn:
                return await self._end_of(run_id, conversation_id)

        named = zip(request.run_ids, request.lanes, strict=True)
        return Looked(ends=tuple(await asyncio.gather(*(one(*each) for each in named))))

    async def _end_of(self, run_id: str, conversation_id: str) -> TurnEnd | None:
        """A run that is nowhere is not there yet, as long as its lane is open."""
        workflow_id = ids.run_workflow_id(run_id)
        status = await self._status(workflow_id)
        if status is None:
            if await self._status(ids.conversation_workflow_id(conversation_id)) is WorkflowExecutionStatus.RUNNING:
                return None
            status = await self._status(workflow_id)  # it may have begun and ended in between
            if status is None:
                return TurnEnd.dropped
        return None if status in _OPEN else (await end_of(self._client.get_workflow_handle(workflow_id))).of_turn.end

    async def _status(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """None where the server does not know it."""
        try:
            return (await self._client.get_workflow_handle(workflow_id).describe()).status
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None

    @activity.defn
    async def dispatch_mail(self, request: MailDispatch) -> None:
        """Tells the mailbox of the peer, which is opened where there is none. Over again it changes nothing."""
        name = "withdraw" if request.withdraw else "dispatch"
        await tell(self._client, self._task_queue, request.agent, name, request.dispatch)


async def tell(client: Client, task_queue: str, agent: str, name: str, body: Dispatch | Redeliver) -> None:
    """Sends a signal to the mailbox of the agent, which is opened where there is none. Raises RPCError."""
    await client.start_workflow(
        **_mailbox(task_queue, agent),
        start_signal=name,
        start_signal_args=[body.model_dump(mode="json", exclude_none=True)],
    )


async def deliver(client: Client, task_queue: str, agent: str, request: DeliverRequest) -> Delivered:
    """Hands what has come to the mailbox of the agent, which is opened where there is none.

    Raises WorkflowUpdateFailedError with the mailbox's reason, and RPCError: then it can be delivered again.
    """
    body = request.model_dump(mode="json", by_alias=True, exclude_none=True)
    return await update_with_start(client, "deliver", body, _mailbox(task_queue, agent), Delivered)


async def opened(client: Client, agent: str) -> str | None:
    """Which mailbox of the agent is open, as `Delivered` names it; None where none is. Raises RPCError."""
    try:
        box = await client.get_workflow_handle(ids.mailbox_workflow_id(agent)).describe(rpc_timeout=LOOK_WITHIN)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    if box.status is not WorkflowExecutionStatus.RUNNING:
        return None
    return box.raw_description.workflow_execution_info.first_run_id


def _mailbox(task_queue: str, agent: str) -> dict[str, Any]:
    """How the one mailbox of the agent is found, or opened."""
    return {
        "workflow": "Mailbox",
        "args": [{"agent": agent}],
        "id": ids.mailbox_workflow_id(agent),
        "task_queue": task_queue,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "static_summary": markdown(cut(f"mailbox of {agent}", 200)),
    }
