"""`task.md` in the folder: written from the state of runs and delegations, never from files (D8)."""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from itertools import product
from typing import TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from perdure.activities.storage.workspace import WrongFileTypeError, folder_name
from perdure.activities.temporal import QueryCache, VisibilityPace
from perdure.contracts.run.state import RunView
from perdure.decisions.ids import query_equals, run_workflow_id
from perdure.features.delegation.contract import DelegationState
from perdure.features.mailbox.activities.folder import ARCHIVE, PENDING, TASKS
from perdure.features.mailbox.activities.message import MAX_FRONT, MessageError, parse_message
from perdure.features.mailbox.activities.server import query_if_possible
from perdure.features.mailbox.activities.writer import PAGE, MailWriter, stem_of
from perdure.features.mailbox.contract import MAX_MESSAGE_BYTES, InboxMessage, Stage, TaskState
from perdure.features.mailbox.rules.files import render_task_page

MAX_AT_ONCE = 20  # runs that are queried in one cycle
MAX_DELEGATIONS = 20  # of a run
OVER = (b"\nstatus: done\n", b"\nstatus: failed\n")
NOT_STORED = "(The message is not stored any more.)"

V = TypeVar("V")

_log = logging.getLogger(__name__)


class TaskPages:
    def __init__(self, client: Client, writer: MailWriter) -> None:
        self._client = client
        self._writer = writer
        self._queries = QueryCache()
        self._pace = VisibilityPace()
        self._last = ""  # the key of the last page's message

    async def begin_page(self, message: InboxMessage, task: str) -> None:
        await self._store_page(message, render_task_page(message, task, None, (), ""))

    async def refresh_pages(self, messages: Collection[InboxMessage]) -> None:
        """Write the pages of some of the running tasks, in turn. Runs that do not answer are skipped."""
        for message in self._next_pages(messages):
            run_id = message.run_id or ""
            view = await self._query(run_workflow_id(run_id), "state", RunView)
            if view is not None:
                await self.write_page(message, run_id, view)

    async def write_page(self, message: InboxMessage, run_id: str, view: RunView | None, result: str = "") -> None:
        """Write the page of a task, with its delegations as far as the server still has them."""
        delegations = await self._query_delegations(run_id)
        task = await asyncio.to_thread(self._task_text, message)
        await self._store_page(message, render_task_page(message, task, view, delegations, result))

    def _next_pages(self, messages: Collection[InboxMessage]) -> list[InboxMessage]:
        at_work = [message for message in messages if message.run_id and message.stage is Stage.running]
        running = [message for message in at_work if message.transitions[-1].state is TaskState.running]
        running.sort(key=lambda message: message.key)
        chosen = [one for one in running if one.key > self._last][:MAX_AT_ONCE] or running[:MAX_AT_ONCE]
        self._last = chosen[-1].key if chosen else ""
        return chosen

    def _task_text(self, message: InboxMessage) -> str:
        """Return the task's text, of its file or from the archive.

        A plan's folder has the plan's name or its encoded form.
        """
        plans, folder = (message.plan_id, folder_name(message.plan_id)), self._writer.folder
        places = [(ARCHIVE, plan, f"{stem_of(message)}{suffix}") for plan, suffix in product(plans, (".md", ".json"))]
        own = [(folder.incoming, message.plan, PENDING, message.file)] if message.file else []
        for place in (*own, *places):
            with suppress(FileNotFoundError, WrongFileTypeError, MessageError, ValueError):
                return parse_message(folder.below.read(*place, most=MAX_MESSAGE_BYTES), place[1])[1]
        return NOT_STORED

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

    async def _store_page(self, message: InboxMessage, text: str) -> None:
        try:
            await asyncio.to_thread(self._replace_page, message, text.encode(errors="replace"))
        except WrongFileTypeError as error:  # a page is optional
            _log.debug("tasks/%s has no page: %s", stem_of(message), error)

    def _replace_page(self, message: InboxMessage, data: bytes) -> None:
        """Write a page, unless it would replace the end of the same run by an earlier state."""
        with self._writer.lock_task_folder(message) as task:
            before = self._writer.read_page(task)
            is_of_run = f"\nrun_id: {message.run_id}\n".encode() in before
            is_over = is_of_run and any(line in before[:MAX_FRONT] for line in OVER)
            if before != data and (message.ending is not None or not is_over):
                self._writer.folder.below.write(data, TASKS, task, PAGE)
