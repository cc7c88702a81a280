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
from activities.mailbox.message import MOST_FRONT, NotAMessage, read
from activities.mailbox.result import LOOK_WITHIN
from activities.mailbox.writer import PAGE, Told, stem_of
from activities.storage.safe_dir import NotThere
from activities.storage.workspace import folder_name
from contracts.delegation import DelegationState
from contracts.mail.delivery import Letter, Stage, TaskState
from contracts.mail.mailbox import AckView, MailboxView
from contracts.mail.message import MOST_MESSAGE
from contracts.run.state import RunView
from decisions.ids import mailbox_workflow_id, named, run_workflow_id, task_key
from decisions.mailbox.task_file import page

MOST_AT_ONCE = 20  # runs that are queried in one cycle
MOST_DELEGATIONS = 20  # of a run
OVER = (b"\nstatus: done\n", b"\nstatus: failed\n")
UNTOLD = "(The message is not stored any more.)"

V = TypeVar("V")

_log = logging.getLogger(__name__)


class Pages:
    def __init__(self, client: Client, writer: Told) -> None:
        self._client = client
        self._writer = writer
        self._last = ""  # the key of the last page's message

    async def begin(self, letter: Letter, task: str) -> None:
        await self._write(letter, page(letter, task, None, (), ""))

    async def end(self, letter: Letter, task: str, result: str) -> None:
        """Write the last page of a task, with its delegations as far as the server still has them."""
        delegations = await self._delegations(letter.run_id) if letter.run_id else []
        await self._write(letter, page(letter, task, None, delegations, result))

    async def refresh(self) -> None:
        """Write the pages of some running tasks, in turn. Runs that do not answer are skipped."""
        for message in await self._at_work():
            letter = _letter(message)
            view = await self._asked(run_workflow_id(message.run_id or ""), RunView)
            if view is None:
                continue
            delegations = await self._delegations(message.run_id or "")
            task = await asyncio.to_thread(self._task, letter)
            await self._write(letter, page(letter, task, view, delegations, ""))

    async def _at_work(self) -> list[AckView]:
        view = await self._asked(mailbox_workflow_id(self._writer.agent), MailboxView, query="acks")
        running = [one for one in (view.open if view else ()) if one.run_id and one.stage is Stage.running]
        running = sorted((one for one in running if one.state is TaskState.running), key=lambda one: one.key)
        chosen = [one for one in running if one.key > self._last][:MOST_AT_ONCE] or running[:MOST_AT_ONCE]
        self._last = chosen[-1].key if chosen else ""
        return chosen

    def _task(self, letter: Letter) -> str:
        """Return the task's text from the archive. A plan's folder has the plan's name or its encoded form."""
        for plan, suffix in product((letter.plan_id, folder_name(letter.plan_id)), (".md", ".json")):
            with suppress(FileNotFoundError, NotThere, NotAMessage, ValueError):
                data = self._writer.folder.below.read(ARCHIVE, plan, f"{stem_of(letter)}{suffix}", most=MOST_MESSAGE)
                return read(data, plan)[1]
        return UNTOLD

    async def _delegations(self, run_id: str) -> list[DelegationState]:
        parent = run_workflow_id(run_id)
        query = f"WorkflowType = 'Delegation' AND {named('ParentWorkflowId', parent)}"
        try:
            listed = self._client.list_workflows(query, limit=MOST_DELEGATIONS)
            children = [child.id async for child in listed if child.parent_id == parent]
        except RPCError:
            return []
        states = [await self._asked(child, DelegationState) for child in sorted(children)]
        return [state for state in states if state is not None]

    async def _asked(self, workflow_id: str, kind: type[V], query: str = "state") -> V | None:
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            answer: V = await handle.query(query, result_type=kind, rpc_timeout=LOOK_WITHIN)
        except (RPCError, WorkflowQueryFailedError, ValidationError):
            return None
        return answer

    async def _write(self, letter: Letter, text: str) -> None:
        try:
            await asyncio.to_thread(self._replace, letter, text.encode(errors="replace"))
        except NotThere as error:  # a page is optional
            _log.debug("tasks/%s has no page: %s", stem_of(letter), error)

    def _replace(self, letter: Letter, data: bytes) -> None:
        """Write a page, unless it would replace the end of the same run by an earlier state."""
        with self._writer.place(letter) as task:
            before = self._writer.page(task)
            is_of_run = f"\nrun_id: {letter.run_id}\n".encode() in before
            is_over = is_of_run and any(line in before[:MOST_FRONT] for line in OVER)
            if before != data and (letter.ending is not None or not is_over):
                self._writer.folder.below.write(data, TASKS, task, PAGE)


def _letter(view: AckView) -> Letter:
    """Return the fields that a page shows."""
    fields: dict[str, Any] = view.model_dump(
        include={"key", "message_id", "plan_id", "task_id", "subtask_id", "run_id"}
    )
    task = task_key(view.plan_id, view.task_id, view.subtask_id)
    return Letter(
        **fields, task=task, folder="", plan=view.plan_id, sender="", stage=view.stage or Stage.ending, heard_at=view.at
    )
