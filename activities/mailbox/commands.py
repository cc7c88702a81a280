"""`carry`: run a mailbox's orders in its folder. Every order is idempotent."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.attempts import heartbeating
from activities.mailbox.folder import PROCESSED, MailFolder, format_os_error
from activities.mailbox.intake import Intake, end_as_bad_message
from activities.mailbox.message import MessageError, parse_message, replace_forbidden
from activities.mailbox.pages import UNTOLD, TaskPages
from activities.mailbox.result import GONE, TaskResult, result_of, result_without_run, steps_of
from activities.mailbox.writer import MailWriter, stem_of
from activities.storage.safe_dir import must_be_name
from activities.storage.workspace import Workspace, folder_name
from contracts.mail.commands import BridgeBatch, BridgeResult, BridgeResults, BridgeTask, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, TaskState, Transition
from decisions.mailbox.commands import LOST
from decisions.mailbox.delivery import BAD_MESSAGE, may_try_again
from decisions.mailbox.state import RESULT_SENT_AGAIN, SKIPPED_DUPLICATE
from decisions.text.formatting import truncate

AT_ONCE = 8
DONE = MessageResult(ack=Ack.succeeded, details=RESULT_SENT_AGAIN)  # the ending that a `resend` refers to

_log = logging.getLogger(__name__)


class OrderRunner:
    """The orders of one folder. Runs have their workspaces below `workspaces`, and their lanes on `task_queue`."""

    def __init__(self, client: Client, folder: MailFolder, workspaces: Path, task_queue: str) -> None:
        self._client = client
        self._folder = folder
        self._workspaces = workspaces
        self._writer = MailWriter(folder, folder.agent)
        self._pages = TaskPages(client, self._writer)
        self._takes = Intake(client, self._writer, self._pages, workspaces, task_queue)
        self._acts: Mapping[BridgeTaskKind, Callable[[BridgeTask], Awaitable[BridgeResult]]] = {
            BridgeTaskKind.take: lambda order: self._takes.take_message(order.letter),
            BridgeTaskKind.finish: self._finish_message,
            BridgeTaskKind.resend: self._resend_reply,
            BridgeTaskKind.dispatch: self._dispatch_subtask,
            BridgeTaskKind.write_state: partial(self._in_thread, lambda order: self._writer.write_state(order.letter)),
            BridgeTaskKind.skip: partial(self._in_thread, self._skip_file),
            BridgeTaskKind.bury: partial(
                self._in_thread, lambda order: self._writer.bury_file(order.letter, order.why)
            ),
            BridgeTaskKind.restore: partial(
                self._in_thread, lambda it: folder.restore_file(it.letter.plan, it.letter.file)
            ),
            BridgeTaskKind.withdraw: partial(self._in_thread, self._withdraw_subtask),
        }

    @activity.defn
    async def carry(self, request: BridgeBatch) -> BridgeResults:
        """Run the orders of a batch: those about one message in sequence, the others in parallel.

        If the disk rejects an order, it and the later orders about that message are reported as `later`. If the server
        cannot be reached, the whole batch fails.
        """
        done: dict[int, BridgeResult] = {}
        groups: dict[str, list[tuple[int, BridgeTask]]] = {}
        for number, order in enumerate(request.orders):
            groups.setdefault(order.letter.key or order.letter.file, []).append((number, order))
        slots = asyncio.Semaphore(AT_ONCE)

        async def run_group(group: list[tuple[int, BridgeTask]]) -> None:
            async with slots:
                is_later = False
                for number, order in group:
                    done[number] = BridgeResult(later=True) if is_later else await self._run_order(order)
                    is_later = done[number].later

        async with heartbeating(lambda: {"done": len(done), "of": len(request.orders)}):
            ends = await asyncio.gather(*map(run_group, groups.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        if any(result.is_blocked for result in done.values()):  # a person writes where nothing is watched
            self._folder.wake()
        if not any(result.later for result in done.values()):
            self._folder.undone = ""
        return BridgeResults(done=tuple(done[number] for number in range(len(request.orders))))

    async def _run_order(self, order: BridgeTask) -> BridgeResult:
        try:
            must_be_name(order.letter.plan if order.letter.delegation is None else folder_name(order.letter.plan))
            must_be_name(order.letter.file or "none")
        except ValueError:
            return (
                end_as_bad_message("it does not name a file") if order.kind is BridgeTaskKind.take else BridgeResult()
            )
        try:
            return await self._acts[order.kind](order)
        except OSError as error:
            reason = f"{format_os_error(error)}; it will be retried"
        except (ValueError, RecursionError) as error:  # of another program's file
            reason = truncate(str(error), 200)
        problem = f"{order.kind} of {truncate(order.letter.file or order.letter.message_id, 100)}: {reason}"
        _log.warning("%s: %s", self._folder.root, problem)
        self._folder.undone = problem
        return BridgeResult(later=True)

    async def _in_thread(self, act: Callable[[BridgeTask], None], order: BridgeTask) -> BridgeResult:
        await asyncio.to_thread(act, order)
        return BridgeResult()

    # the end of a message

    async def _finish_message(self, order: BridgeTask) -> BridgeResult:
        letter = order.letter
        ending = letter.ending or LOST
        result, workspace = result_without_run(ending), None
        if not letter.is_reply and letter.run_id is not None and ending.fault != BAD_MESSAGE:
            result = await result_of(self._client, letter.run_id, ending)
            if not result.is_done and await self._may_try_again(letter, result):
                return BridgeResult(again=True)
            workspace = Workspace(self._workspaces / folder_name(letter.run_id))
            ending = _ending_from(ending, result)
        if not letter.is_reply and letter.run_id is not None:
            task = await asyncio.to_thread(self._task_text, letter)
            await self._pages.end_page(letter.model_copy(update={"ending": ending}), task, result.text)
        await asyncio.to_thread(self._write_end, letter, ending, result, workspace)
        return BridgeResult(ending=ending)

    def _task_text(self, letter: InboxMessage) -> str:
        try:
            return parse_message(self._folder.read_message_file(letter.plan, letter.file), letter.plan)[1]
        except (FileNotFoundError, MessageError):
            return UNTOLD

    async def _may_try_again(self, letter: InboxMessage, result: TaskResult) -> bool:
        if not may_try_again(result.fault, 0, letter.attempt):
            return False
        return may_try_again(result.fault, await steps_of(self._client, letter.run_id or ""), letter.attempt)

    def _write_end(
        self, letter: InboxMessage, ending: MessageResult, result: TaskResult, workspace: Workspace | None
    ) -> None:
        if not letter.is_reply:
            stored = (
                self._writer.find_sent_reply(letter, letter.run_id) if result.fault == GONE and letter.run_id else None
            )
            if stored is not None:
                self._writer.send_reply(letter, stored)
            else:
                self._writer.write_reply(letter, result, workspace)
        state = TaskState.succeeded if ending.ack is Ack.succeeded else TaskState.failed
        latest = letter.transitions[-1:]
        added = () if latest and latest[0].state is state else (Transition(state=state, at=datetime.now(UTC)),)
        self._writer.write_state(letter, *added)
        self._writer.write_ack(letter, Ack(ending.ack), ending.details)
        if not letter.is_reply:
            self._writer.close_message_requests(letter)
        self._writer.put_away_finished(letter, ending)

    async def _resend_reply(self, order: BridgeTask) -> BridgeResult:
        letter, run_id = order.letter, order.run_id or ""
        stored = await asyncio.to_thread(self._writer.find_sent_reply, letter, run_id)
        if stored is not None:
            await asyncio.to_thread(self._writer.send_reply, letter, stored)
        else:
            result = await result_of(self._client, run_id, DONE)
            workspace = Workspace(self._workspaces / folder_name(run_id))
            again = letter.model_copy(update={"run_id": run_id})
            await asyncio.to_thread(self._writer.write_reply, again, result, workspace)
        await asyncio.to_thread(self._skip_file, order.model_copy(update={"why": order.why or RESULT_SENT_AGAIN}))
        return BridgeResult()

    # files

    def _skip_file(self, order: BridgeTask) -> None:
        letter = order.letter
        if order.why == SKIPPED_DUPLICATE:
            self._writer.write_duplicate(letter, order.why)
        elif order.why:
            if self._writer.is_pending(letter):
                self._writer.archive_raw(letter, self._folder.read_message_file(letter.plan, letter.file))
            self._writer.write_ack(letter, Ack.succeeded, order.why)
        self._folder.put_away(letter.plan, letter.file, PROCESSED)

    # peers outside

    async def _dispatch_subtask(self, order: BridgeTask) -> BridgeResult:
        letter = order.letter
        handle = self._client.get_workflow_handle(letter.delegation or "")
        try:
            text = await handle.query("message", {"subtask_id": letter.subtask_id}, result_type=Any)
        except WorkflowQueryFailedError as error:
            return end_as_bad_message(f"the delegation cannot return the message: {truncate(str(error), 200)}")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return end_as_bad_message("its reply is not awaited any more")
        body = text if isinstance(text, str) else ""
        if not body.strip():
            return end_as_bad_message("its reply is not awaited any more")
        await asyncio.to_thread(self._write_dispatch, letter, replace_forbidden(body).encode())
        return BridgeResult()

    def _write_dispatch(self, letter: InboxMessage, data: bytes) -> None:
        """Write the full message from the delegation."""
        plan = folder_name(letter.plan_id)
        self._writer.archive_raw(letter.model_copy(update={"plan": plan}), data)
        self._folder.below.write(data, self._folder.outgoing, plan, f"{stem_of(letter)}.md")

    def _withdraw_subtask(self, order: BridgeTask) -> None:
        self._folder.below.remove(
            self._folder.outgoing, folder_name(order.letter.plan_id), f"{stem_of(order.letter)}.md"
        )


def _ending_from(ending: MessageResult, result: TaskResult) -> MessageResult:
    """Return the ending as the run itself reports it."""
    if result.fault == GONE:
        return ending
    if result.is_done:
        return MessageResult(
            ack=Ack.succeeded, details=ending.details if ending.ack is Ack.succeeded else "the run is completed"
        )
    return MessageResult(ack=Ack.failed, details=truncate(result.text, 300), fault=result.fault)
