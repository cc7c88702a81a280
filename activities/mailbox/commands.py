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

from activities.effects.heartbeat import beating
from activities.mailbox.folder import PROCESSED, MailFolder, told
from activities.mailbox.intake import Takes, over
from activities.mailbox.message import NotAMessage, clean, read
from activities.mailbox.pages import UNTOLD, Pages
from activities.mailbox.result import GONE, Result, result_of, steps_of, told_without_run
from activities.mailbox.writer import Told, stem_of
from activities.storage.safe_dir import must_be_name
from activities.storage.workspace import Workspace, folder_name
from contracts.mail.commands import Carried, CarryRequest, Done, Order, OrderKind
from contracts.mail.delivery import Ack, Letter, LetterEnding, TaskState, Transition
from decisions.mailbox.commands import LOST
from decisions.mailbox.delivery import BAD_MESSAGE, may_try_again
from decisions.mailbox.state import RESULT_SENT_AGAIN, SKIPPED_DUPLICATE
from decisions.text.formatting import cut

AT_ONCE = 8
DONE = LetterEnding(ack=Ack.succeeded, details=RESULT_SENT_AGAIN)  # the ending that a `resend` refers to

_log = logging.getLogger(__name__)


class Carrier:
    """The orders of one folder. Runs have their workspaces below `workspaces`, and their lanes on `task_queue`."""

    def __init__(self, client: Client, folder: MailFolder, workspaces: Path, task_queue: str) -> None:
        self._client = client
        self._folder = folder
        self._workspaces = workspaces
        self._writer = Told(folder, folder.agent)
        self._pages = Pages(client, self._writer)
        self._takes = Takes(client, self._writer, self._pages, workspaces, task_queue)
        self._acts: Mapping[OrderKind, Callable[[Order], Awaitable[Done]]] = {
            OrderKind.take: lambda order: self._takes.take(order.letter),
            OrderKind.finish: self._finish,
            OrderKind.resend: self._resend,
            OrderKind.dispatch: self._dispatch,
            OrderKind.write_state: partial(self._in_thread, lambda order: self._writer.state(order.letter)),
            OrderKind.skip: partial(self._in_thread, self._skip),
            OrderKind.bury: partial(self._in_thread, lambda order: self._writer.buried(order.letter, order.why)),
            OrderKind.restore: partial(self._in_thread, lambda it: folder.restore(it.letter.plan, it.letter.file)),
            OrderKind.withdraw: partial(self._in_thread, self._withdraw),
        }

    @activity.defn
    async def carry(self, request: CarryRequest) -> Carried:
        """Run the orders of a batch: those about one message in sequence, the others in parallel.

        If the disk rejects an order, it and the later orders about that message are reported as `later`. If the server
        cannot be reached, the whole batch fails.
        """
        done: dict[int, Done] = {}
        groups: dict[str, list[tuple[int, Order]]] = {}
        for number, order in enumerate(request.orders):
            groups.setdefault(order.letter.key or order.letter.file, []).append((number, order))
        slots = asyncio.Semaphore(AT_ONCE)

        async def act(group: list[tuple[int, Order]]) -> None:
            async with slots:
                is_later = False
                for number, order in group:
                    done[number] = Done(later=True) if is_later else await self._carried_out(order)
                    is_later = done[number].later

        async with beating(lambda: {"done": len(done), "of": len(request.orders)}):
            ends = await asyncio.gather(*map(act, groups.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        if any(result.is_blocked for result in done.values()):  # a person writes where nothing is watched
            self._folder.wake()
        if not any(result.later for result in done.values()):
            self._folder.undone = ""
        return Carried(done=tuple(done[number] for number in range(len(request.orders))))

    async def _carried_out(self, order: Order) -> Done:
        try:
            must_be_name(order.letter.plan if order.letter.delegation is None else folder_name(order.letter.plan))
            must_be_name(order.letter.file or "none")
        except ValueError:
            return over("it does not name a file") if order.kind is OrderKind.take else Done()
        try:
            return await self._acts[order.kind](order)
        except OSError as error:
            reason = f"{told(error)}; it will be retried"
        except (ValueError, RecursionError) as error:  # of another program's file
            reason = cut(str(error), 200)
        problem = f"{order.kind} of {cut(order.letter.file or order.letter.message_id, 100)}: {reason}"
        _log.warning("%s: %s", self._folder.root, problem)
        self._folder.undone = problem
        return Done(later=True)

    async def _in_thread(self, act: Callable[[Order], None], order: Order) -> Done:
        await asyncio.to_thread(act, order)
        return Done()

    # the end of a message

    async def _finish(self, order: Order) -> Done:
        letter = order.letter
        ending = letter.ending or LOST
        result, workspace = told_without_run(ending), None
        if not letter.is_reply and letter.run_id is not None and ending.fault != BAD_MESSAGE:
            result = await result_of(self._client, letter.run_id, ending)
            if not result.is_done and await self._may_try_again(letter, result):
                return Done(again=True)
            workspace = Workspace(self._workspaces / folder_name(letter.run_id))
            ending = _ending(ending, result)
        if not letter.is_reply and letter.run_id is not None:
            task = await asyncio.to_thread(self._body, letter)
            await self._pages.end(letter.model_copy(update={"ending": ending}), task, result.text)
        await asyncio.to_thread(self._tell_end, letter, ending, result, workspace)
        return Done(ending=ending)

    def _body(self, letter: Letter) -> str:
        try:
            return read(self._folder.read(letter.plan, letter.file), letter.plan)[1]
        except (FileNotFoundError, NotAMessage):
            return UNTOLD

    async def _may_try_again(self, letter: Letter, result: Result) -> bool:
        if not may_try_again(result.fault, 0, letter.attempt):
            return False
        return may_try_again(result.fault, await steps_of(self._client, letter.run_id or ""), letter.attempt)

    def _tell_end(self, letter: Letter, ending: LetterEnding, result: Result, workspace: Workspace | None) -> None:
        if not letter.is_reply:
            stored = self._writer.sent_before(letter, letter.run_id) if result.fault == GONE and letter.run_id else None
            if stored is not None:
                self._writer.send(letter, stored)
            else:
                self._writer.reply(letter, result, workspace)
        state = TaskState.succeeded if ending.ack is Ack.succeeded else TaskState.failed
        latest = letter.transitions[-1:]
        added = () if latest and latest[0].state is state else (Transition(state=state, at=datetime.now(UTC)),)
        self._writer.state(letter, *added)
        self._writer.ack(letter, Ack(ending.ack), ending.details)
        if not letter.is_reply:
            self._writer.over(letter)
        self._writer.away(letter, ending)

    async def _resend(self, order: Order) -> Done:
        letter, run_id = order.letter, order.run_id or ""
        stored = await asyncio.to_thread(self._writer.sent_before, letter, run_id)
        if stored is not None:
            await asyncio.to_thread(self._writer.send, letter, stored)
        else:
            result = await result_of(self._client, run_id, DONE)
            workspace = Workspace(self._workspaces / folder_name(run_id))
            again = letter.model_copy(update={"run_id": run_id})
            await asyncio.to_thread(self._writer.reply, again, result, workspace)
        await asyncio.to_thread(self._skip, order.model_copy(update={"why": order.why or RESULT_SENT_AGAIN}))
        return Done()

    # files

    def _skip(self, order: Order) -> None:
        letter = order.letter
        if order.why == SKIPPED_DUPLICATE:
            self._writer.duplicate(letter, order.why)
        elif order.why:
            if self._writer.is_pending(letter):
                self._writer.raw(letter, self._folder.read(letter.plan, letter.file))
            self._writer.ack(letter, Ack.succeeded, order.why)
        self._folder.keep(letter.plan, letter.file, PROCESSED)

    # peers outside

    async def _dispatch(self, order: Order) -> Done:
        letter = order.letter
        handle = self._client.get_workflow_handle(letter.delegation or "")
        try:
            text = await handle.query("message", {"subtask_id": letter.subtask_id}, result_type=Any)
        except WorkflowQueryFailedError as error:
            return over(f"the delegation cannot return the message: {cut(str(error), 200)}")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return over("its reply is not awaited any more")
        body = text if isinstance(text, str) else ""
        if not body.strip():
            return over("its reply is not awaited any more")
        await asyncio.to_thread(self._write_dispatch, letter, clean(body).encode())
        return Done()

    def _write_dispatch(self, letter: Letter, data: bytes) -> None:
        """Write the full message from the delegation."""
        plan = folder_name(letter.plan_id)
        self._writer.raw(letter.model_copy(update={"plan": plan}), data)
        self._folder.below.write(data, self._folder.outgoing, plan, f"{stem_of(letter)}.md")

    def _withdraw(self, order: Order) -> None:
        self._folder.below.remove(
            self._folder.outgoing, folder_name(order.letter.plan_id), f"{stem_of(order.letter)}.md"
        )


def _ending(ending: LetterEnding, result: Result) -> LetterEnding:
    """Return the ending as the run itself reports it."""
    if result.fault == GONE:
        return ending
    if result.is_done:
        return LetterEnding(
            ack=Ack.succeeded, details=ending.details if ending.ack is Ack.succeeded else "the run is completed"
        )
    return LetterEnding(ack=Ack.failed, details=cut(result.text, 300), fault=result.fault)
