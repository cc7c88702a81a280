"""Subtasks for an agent that lives outside: written to its folder, answered, withdrawn (D6).

Delegations ask for them by activities on the task queue of the agent, which wait until a bridge of its folder runs.
"""

import asyncio
import time
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.storage.workspace import folder_name
from perdure.activities.temporal import IgnoreMissing, QueryCache
from perdure.contracts.run.limits import SubtaskStatus
from perdure.decisions.text.formatting import truncate
from perdure.features.delegation.contract import DelegationState
from perdure.features.mailbox.activities.message import replace_forbidden
from perdure.features.mailbox.activities.records import TaskRecords
from perdure.features.mailbox.activities.server import gather_bounded, query_if_possible
from perdure.features.mailbox.activities.writer import MailWriter, stem_of
from perdure.features.mailbox.contract import InboxMessage, MailDispatch
from perdure.features.mailbox.rules.admission import close_message, put_open, sent_message

CHECK_INTERVAL = 300.0  # seconds between checks whether sent subtasks are still awaited: a withdrawal may be missed
CLOSED = "DelegationClosed"  # the error type of a subtask whose reply is not awaited


class OutsidePeer:
    """The subtasks in the folder of an agent that lives outside. `sent` has those that wait for replies, by key."""

    def __init__(self, client: Client, writer: MailWriter) -> None:
        self._client = client
        self._writer = writer
        self._records = TaskRecords(writer.folder.below)
        self._queries = QueryCache()
        self._next_check = 0.0
        self.sent: dict[str, InboxMessage] = {}

    @activity.defn
    async def dispatch_mail(self, request: MailDispatch) -> None:
        """Write a subtask as its delegation tells it. Repeating it changes nothing."""
        message = sent_message(request)
        text = await self._text_of(message)
        await asyncio.to_thread(self._write, message, replace_forbidden(text).encode())
        self.sent[message.key] = message

    @activity.defn
    async def withdraw_mail(self, request: MailDispatch) -> None:
        """Remove a subtask's file, if it still exists."""
        await self._withdraw(sent_message(request))

    async def _text_of(self, message: InboxMessage) -> str:
        handle = self._client.get_workflow_handle(message.delegation or "")
        text: Any = None
        try:
            with IgnoreMissing():
                text = await handle.query("message", {"subtask_id": message.subtask_id}, result_type=Any)
        except WorkflowQueryFailedError as error:
            reason = f"the delegation cannot return the message: {truncate(str(error), 200)}"
            raise ApplicationError(reason, type=CLOSED, non_retryable=True) from None
        if not isinstance(text, str) or not text.strip():
            raise ApplicationError("its reply is not awaited any more", type=CLOSED, non_retryable=True)
        return text

    def _write(self, message: InboxMessage, data: bytes) -> None:
        self._records.update(message.task, lambda record: put_open(record, message))
        self._writer.archive_raw(message.evolve(plan=folder_name(message.plan_id)), data)
        self._writer.folder.below.write(data, *self._place_of(message))

    def _place_of(self, message: InboxMessage) -> tuple[str, str, str]:
        return self._writer.folder.outgoing, folder_name(message.plan_id), f"{stem_of(message)}.md"

    async def _withdraw(self, message: InboxMessage) -> None:
        await asyncio.to_thread(self._writer.folder.below.remove, *self._place_of(message))
        await self._close(message)

    async def _close(self, message: InboxMessage) -> None:
        self.sent.pop(message.key, None)
        await asyncio.to_thread(self._records.update, message.task, lambda record: close_message(record, message))

    async def close_answered(self, reply: InboxMessage) -> None:
        """Close the subtasks that a reply answers. Their files stay."""
        named = (reply.task_id, reply.subtask_id)
        for message in [one for one in self.sent.values() if (one.task_id, one.subtask_id) == named]:
            await self._close(message)

    async def check_sent(self) -> None:
        """Withdraw, from time to time, the subtasks whose replies are not awaited any more. Raises OSError."""
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + CHECK_INTERVAL
            await gather_bounded(self._check_subtask, list(self.sent.values()))

    async def _check_subtask(self, message: InboxMessage) -> None:
        workflow_id = message.delegation or ""
        try:
            described = await self._client.get_workflow_handle(workflow_id).describe()
            is_open = described.status is WorkflowExecutionStatus.RUNNING
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                return
            is_open = False
        if is_open:
            state = await query_if_possible(self._client, workflow_id, "state", DelegationState, cache=self._queries)
            subtasks = state.subtasks if state is not None else ()
            status = next((one.status for one in subtasks if one.id == message.subtask_id), SubtaskStatus.running)
            is_open = status is SubtaskStatus.running
        if not is_open:
            await self._withdraw(message)
