"""`task.md` in the folder: written from the state of runs and delegations, never from files (D8)."""

import asyncio
import logging
from contextlib import suppress
from itertools import product
from typing import TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from activities.mailbox.client import query_if_possible
from activities.mailbox.folder import ARCHIVE, PENDING, TASKS
from activities.mailbox.message import MAX_FRONT, MessageError, parse_message
from activities.mailbox.writer import PAGE, MailWriter, stem_of
from activities.storage.safe_dir import WrongFileTypeError
from activities.storage.workspace import folder_name
from activities.temporal import QueryCache, VisibilityPace
from contracts.delegation import DelegationState
from contracts.mail.delivery import InboxMessage, Stage, TaskState
from contracts.mail.mailbox import AckView, MailboxView
from contracts.mail.message import MAX_MESSAGE_BYTES
from contracts.run.state import RunView
from decisions.ids import mailbox_workflow_id, query_equals, run_workflow_id, task_key
from decisions.mailbox.files import render_task_page

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
        self._queries = QueryCache()
        self._pace = VisibilityPace()
        self._last = ""  # the key of the last page's message

    async def begin_page(self, letter: InboxMessage, task: str) -> None:
        await self._store_page(letter, render_task_page(letter, task, None, (), ""))

    async def refresh_pages(self) -> None:
        """Write the pages of some running tasks, in turn. Runs that do not answer are skipped."""
        for message in await self._at_work():
            run_id = message.run_id or ""
            view = await self._query(run_workflow_id(run_id), "state", RunView)
            if view is not None:
                await self.write_page(_letter_from(message), run_id, view)

    async def write_page(self, letter: InboxMessage, run_id: str, view: RunView | None, result: str = "") -> None:
        """Write the page of a task, with its delegations as far as the server still has them."""
        delegations = await self._query_delegations(run_id)
        task = await asyncio.to_thread(self._task_text, letter)
        await self._store_page(letter, render_task_page(letter, task, view, delegations, result))

    async def _at_work(self) -> list[AckView]:
        view = await self._query(mailbox_workflow_id(self._writer.folder.agent), "acks", MailboxView)
        running = [one for one in (view.open if view else ()) if one.run_id and one.stage is Stage.running]
        running = sorted((one for one in running if one.state is TaskState.running), key=lambda one: one.key)
        chosen = [one for one in running if one.key > self._last][:MAX_AT_ONCE] or running[:MAX_AT_ONCE]
        self._last = chosen[-1].key if chosen else ""
        return chosen

    def _task_text(self, letter: InboxMessage) -> str:
        """Return the task's text, of its file or from the archive.

        A plan's folder has the plan's name or its encoded form.
        """
        plans, folder = (letter.plan_id, folder_name(letter.plan_id)), self._writer.folder
        places = [(ARCHIVE, plan, f"{stem_of(letter)}{suffix}") for plan, suffix in product(plans, (".md", ".json"))]
        own = [(folder.incoming, letter.plan, PENDING, letter.file)] if letter.file else []
        for place in (*own, *places):
            with suppress(FileNotFoundError, WrongFileTypeError, MessageError, ValueError):
                return parse_message(folder.below.read(*place, most=MAX_MESSAGE_BYTES), place[1])[1]
        return UNTOLD

    async def _query_delegations(self, run_id: str) -> list[DelegationState]:
        parent = run_workflow_id(run_id)
        query = f"WorkflowType = 'Delegation' AND {query_equals('ParentWorkflowId', parent)}"
        try:
            await self._pace.wait()
            listed = self._client.list_workflows(query, limit=MAX_DELEGATIONS)
            children = [child.id async for child in listed if child.parent_id == parent]
        except RPCError:
            return []
        states = [await self._query(child, "state", DelegationState) for child in sorted(children)]
        return [state for state in states if state is not None]

    async def _query(self, workflow_id: str, query: str, kind: type[V]) -> V | None:
        return await query_if_possible(self._client, workflow_id, query, kind, cache=self._queries)

    async def _store_page(self, letter: InboxMessage, text: str) -> None:
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
    known = view.model_dump(include={"key", "message_id", "plan_id", "task_id", "subtask_id", "run_id", "stage"})
    task = task_key(view.plan_id, view.task_id, view.subtask_id)
    return InboxMessage(**known, task=task, folder="", plan=view.plan_id, sender="", heard_at=view.at)
