"""`carry`: run a mailbox's orders in its folder. Every order is idempotent."""

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.attempts import heartbeating
from activities.mailbox.client import GONE, count_steps, result_of, result_without_run
from activities.mailbox.folder import PROCESSED, MailFolder, format_os_error
from activities.mailbox.intake import Intake, end_as_bad_message
from activities.mailbox.message import replace_forbidden
from activities.mailbox.pages import TaskPages
from activities.mailbox.writer import MailWriter, stem_of
from activities.run.outcome import SubtaskOutcome
from activities.storage.safe_dir import must_be_name
from activities.storage.workspace import Workspace, folder_name
from contracts.conversation import TurnEnd
from contracts.delegation import SubtaskStatus
from contracts.mail.commands import BridgeBatch, BridgeResult, BridgeResults, BridgeTask, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Transition
from decisions.mailbox.commands import LOST
from decisions.mailbox.delivery import BAD_MESSAGE, LAST_STATE, ending_of, may_try_again
from decisions.mailbox.state import RESULT_SENT_AGAIN, SKIPPED_DUPLICATE
from decisions.text.formatting import truncate

AT_ONCE = 8

_log = logging.getLogger(__name__)


class OrderRunner:
    """The orders of one folder. Runs have their workspaces below `workspaces`, and their lanes on `task_queue`."""

    def __init__(self, client: Client, folder: MailFolder, workspaces: Path, task_queue: str) -> None:
        self._client = client
        self._folder = folder
        self._workspaces = workspaces
        self._writer = MailWriter(folder)
        self._pages = TaskPages(client, self._writer)
        self._takes = Intake(client, self._writer, self._pages, workspaces, task_queue)

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
            is_take = order.kind is BridgeTaskKind.take
            return end_as_bad_message("it does not name a file") if is_take else BridgeResult()
        try:
            return await self._act(order)
        except OSError as error:
            reason = f"{format_os_error(error)}; it will be retried"
        except (ValueError, RecursionError) as error:  # of another program's file
            reason = truncate(str(error), 200)
        problem = f"{order.kind} of {truncate(order.letter.file or order.letter.message_id, 100)}: {reason}"
        _log.warning("%s: %s", self._folder.root, problem)
        self._folder.undone = problem
        return BridgeResult(later=True)

    async def _act(self, order: BridgeTask) -> BridgeResult:
        letter, writer, folder = order.letter, self._writer, self._folder
        match order.kind:
            case BridgeTaskKind.take:
                return await self._takes.take_message(letter)
            case BridgeTaskKind.finish:
                return await self._finish_message(letter)
            case BridgeTaskKind.dispatch:
                return await self._dispatch_subtask(letter)
            case BridgeTaskKind.resend:
                await self._resend_reply(letter, order)
            case BridgeTaskKind.write_state:
                await asyncio.to_thread(writer.write_state, letter)
            case BridgeTaskKind.skip:
                await asyncio.to_thread(self._skip_file, letter, order.why)
            case BridgeTaskKind.bury:
                await asyncio.to_thread(writer.bury_file, letter, order.why)
            case BridgeTaskKind.restore:
                await asyncio.to_thread(folder.restore_file, letter.plan, letter.file)
            case BridgeTaskKind.withdraw:
                await asyncio.to_thread(folder.below.remove, *self._subtask_place(letter))
        return BridgeResult()

    async def _finish_message(self, letter: InboxMessage) -> BridgeResult:
        ending = letter.ending or LOST
        run_id = None if letter.is_reply else letter.run_id
        result, workspace = result_without_run(ending), None
        if run_id is not None and ending.fault != BAD_MESSAGE:
            result = await result_of(self._client, run_id, ending)
            if may_try_again(result.fault, 0, letter.attempt) and not await count_steps(self._client, run_id):
                return BridgeResult(again=True)
            workspace = self._workspace_of(run_id)
            ending = _ending_from(ending, result)
        if run_id is not None:
            await self._pages.write_page(letter.model_copy(update={"ending": ending}), run_id, None, result.text)
        await asyncio.to_thread(self._write_end, letter, ending, result, workspace)
        return BridgeResult(ending=ending)

    def _workspace_of(self, run_id: str) -> Workspace:
        return Workspace(self._workspaces / folder_name(run_id))

    def _write_end(
        self, letter: InboxMessage, ending: MessageResult, result: SubtaskOutcome, workspace: Workspace | None
    ) -> None:
        is_stored = result.fault == GONE and self._writer.send_stored_reply(letter)
        if not letter.is_reply and not is_stored:
            self._writer.write_reply(letter, result, workspace)
        state = LAST_STATE[ending.ack]
        is_recorded = any(last.state is state for last in letter.transitions[-1:])
        self._writer.write_state(letter, *(() if is_recorded else (Transition(state=state, at=datetime.now(UTC)),)))
        self._writer.write_ack(letter, Ack(ending.ack), ending.details)
        self._writer.close_message_requests(letter)
        self._writer.put_away_finished(letter, ending)

    async def _resend_reply(self, letter: InboxMessage, order: BridgeTask) -> None:
        again = letter.model_copy(update={"run_id": order.run_id or ""})
        if not await asyncio.to_thread(self._writer.send_stored_reply, again):
            done = MessageResult(ack=Ack.succeeded, details=RESULT_SENT_AGAIN)
            result = await result_of(self._client, again.run_id or "", done)
            workspace = self._workspace_of(again.run_id or "")
            await asyncio.to_thread(self._writer.write_reply, again, result, workspace)
        await asyncio.to_thread(self._skip_file, letter, order.why or RESULT_SENT_AGAIN)

    def _skip_file(self, letter: InboxMessage, why: str) -> None:
        if why == SKIPPED_DUPLICATE:
            self._writer.write_duplicate(letter, why)
        elif why:
            with suppress(FileNotFoundError):
                self._writer.archive_raw(letter, self._folder.read_message_file(letter.plan, letter.file))
            self._writer.write_ack(letter, Ack.succeeded, why)
        self._folder.put_away(letter.plan, letter.file, PROCESSED)

    async def _dispatch_subtask(self, letter: InboxMessage) -> BridgeResult:
        handle = self._client.get_workflow_handle(letter.delegation or "")
        try:
            text = await handle.query("message", {"subtask_id": letter.subtask_id}, result_type=Any)
        except WorkflowQueryFailedError as error:
            return end_as_bad_message(f"the delegation cannot return the message: {truncate(str(error), 200)}")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            text = None
        if not isinstance(text, str) or not text.strip():
            return end_as_bad_message("its reply is not awaited any more")
        await asyncio.to_thread(self._write_dispatch, letter, replace_forbidden(text).encode())
        return BridgeResult()

    def _write_dispatch(self, letter: InboxMessage, data: bytes) -> None:
        """Write the full message from the delegation."""
        self._writer.archive_raw(letter.model_copy(update={"plan": folder_name(letter.plan_id)}), data)
        self._folder.below.write(data, *self._subtask_place(letter))

    def _subtask_place(self, letter: InboxMessage) -> tuple[str, str, str]:
        return self._folder.outgoing, folder_name(letter.plan_id), f"{stem_of(letter)}.md"


def _ending_from(ending: MessageResult, result: SubtaskOutcome) -> MessageResult:
    """Return the ending as the run itself reports it."""
    if result.fault == GONE:
        return ending
    if result.status is SubtaskStatus.done:
        return ending if ending.ack is Ack.succeeded else ending_of(TurnEnd.completed)
    return MessageResult(ack=Ack.failed, details=truncate(result.text, 300), fault=result.fault)
