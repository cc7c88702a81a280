"""`task.md` in the folder: written from the state of runs and delegations, never from files (D8)."""

import asyncio
import logging
from contextlib import suppress
from itertools import product
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.mailbox.folder import ARCHIVE, TASKS
from activities.mailbox.message import MAX_FRONT, MessageError, parse_message
from activities.mailbox.result import LOOK_WITHIN
from activities.mailbox.writer import PAGE, MailWriter, stem_of
from activities.storage.safe_dir import WrongFileTypeError
from activities.storage.workspace import folder_name
from contracts.delegation import DelegationState
from contracts.mail.delivery import InboxMessage, Stage, TaskState
from contracts.mail.mailbox import AckView, MailboxView
from contracts.mail.message import MAX_MESSAGE_BYTES
from contracts.run.state import RunView
from decisions.ids import mailbox_workflow_id, query_equals, run_workflow_id, task_key
from decisions.mailbox.task_file import render_task_page

MAX_AT_ONCE = 20  # runs that are queried in one cycle
MAX_DELEGATIONS = 20  # of a run
OVER = (b"\nstatus: done\n", b"\nstatus: failed\n")
UNTOLD = "(The message is not stored any more.)"

V = TypeVar("V")

_log = logging.getLogger(__name__)


class TaskPages:
    def __init__(self, client: Client, writer: MailWriter) -> None:
        self._client = client
        self._writer = writer
        self._last = ""  # the key of the last page's message

    async def begin_page(self, letter: InboxMessage, task: str) -> None:
        await self._write_page(letter, render_task_page(letter, task, None, (), ""))

    async def end_page(self, letter: InboxMessage, task: str, result: str) -> None:
        """Write the last page of a task, with its delegations as far as the server still has them."""
        delegations = await self._query_delegations(letter.run_id) if letter.run_id else []
        await self._write_page(letter, render_task_page(letter, task, None, delegations, result))

    async def refresh_pages(self) -> None:
        """Write the pages of some running tasks, in turn. Runs that do not answer are skipped."""
        for message in await self._at_work():
            letter = _letter_from(message)
            view = await self._query_state(run_workflow_id(message.run_id or ""), RunView)
            if view is None:
                continue
            delegations = await self._query_delegations(message.run_id or "")
            task = await asyncio.to_thread(self._task_text, letter)
            await self._write_page(letter, render_task_page(letter, task, view, delegations, ""))

    async def _at_work(self) -> list[AckView]:
        view = await self._query_state(mailbox_workflow_id(self._writer.agent), MailboxView, query="acks")
        running = [one for one in (view.open if view else ()) if one.run_id and one.stage is Stage.running]
        running = sorted((one for one in running if one.state is TaskState.running), key=lambda one: one.key)
        chosen = [one for one in running if one.key > self._last][:MAX_AT_ONCE] or running[:MAX_AT_ONCE]
        self._last = chosen[-1].key if chosen else ""
        return chosen

    def _task_text(self, letter: InboxMessage) -> str:
        """Return the task's text from the archive. A plan's folder has the plan's name or its encoded form."""
        for plan, suffix in product((letter.plan_id, folder_name(letter.plan_id)), (".md", ".json")):
            with suppress(FileNotFoundError, WrongFileTypeError, MessageError, ValueError):
                data = self._writer.folder.below.read(
                    ARCHIVE, plan, f"{stem_of(letter)}{suffix}", most=MAX_MESSAGE_BYTES
                )
                return parse_message(data, plan)[1]
        return UNTOLD

    async def _query_delegations(self, run_id: str) -> list[DelegationState]:
        parent = run_workflow_id(run_id)
        query = f"WorkflowType = 'Delegation' AND {query_equals('ParentWorkflowId', parent)}"
        try:
            listed = self._client.list_workflows(query, limit=MAX_DELEGATIONS)
            children = [child.id async for child in listed if child.parent_id == parent]
        except RPCError:
            return []
        states = [await self._query_state(child, DelegationState) for child in sorted(children)]
        return [state for state in states if state is not None]

    async def _query_state(self, workflow_id: str, kind: type[V], query: str = "state") -> V | None:
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            answer: V = await handle.query(query, result_type=kind, rpc_timeout=LOOK_WITHIN)
        except (RPCError, WorkflowQueryFailedError, ValidationError):
            return None
        return answer

    async def _write_page(self, letter: InboxMessage, text: str) -> None:
        try:
            await asyncio.to_thread(self._replace_page, letter, text.encode(errors="replace"))
        except WrongFileTypeError as error:  # a page is optional
            _log.debug("tasks/%s has no page: %s", stem_of(letter), error)

    def _replace_page(self, letter: InboxMessage, data: bytes) -> None:
        """Write a page, unless it would replace the end of the same run by an earlier state."""
        with self._writer.lock_task_folder(letter) as task:
            before = self._writer.read_page(task)
            is_of_run = f"\nrun_id: {letter.run_id}\n".encode() in before
            is_over = is_of_run and any(line in before[:MAX_FRONT] for line in OVER)
            if before != data and (letter.ending is not None or not is_over):
                self._writer.folder.below.write(data, TASKS, task, PAGE)


def _letter_from(view: AckView) -> InboxMessage:
    """Return the fields that a page shows."""
    fields: dict[str, Any] = view.model_dump(
        include={"key", "message_id", "plan_id", "task_id", "subtask_id", "run_id"}
    )
    task = task_key(view.plan_id, view.task_id, view.subtask_id)
    return InboxMessage(
        **fields, task=task, folder="", plan=view.plan_id, sender="", stage=view.stage or Stage.ending, heard_at=view.at
    )
