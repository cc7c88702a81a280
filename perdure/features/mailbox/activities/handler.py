"""Messages: submitted to their lanes and brought to their end, or handed to the delegation that waits for a reply.

Each step is idempotent, so a bridge repeats the step that a killed one was at.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from perdure.activities.run.outcome import SubtaskOutcome
from perdure.activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace, folder_name
from perdure.activities.temporal import IgnoreMissing, await_update, submit_to_lane
from perdure.contracts.conversation import Choice, LaneFault, SubmitRequest
from perdure.contracts.people import MAILBOX
from perdure.decisions import ids
from perdure.decisions.text.formatting import truncate
from perdure.features.mailbox.activities.folder import PROCESSED, MailFolder
from perdure.features.mailbox.activities.inputs import InputsError, ResolvedInputs, read_input, resolve_inputs
from perdure.features.mailbox.activities.message import MessageError, parse_message
from perdure.features.mailbox.activities.pages import TaskPages
from perdure.features.mailbox.activities.records import TaskRecords
from perdure.features.mailbox.activities.server import (
    count_steps,
    result_without_run,
    run_outcome,
    wait_for_message_end,
)
from perdure.features.mailbox.activities.writer import MailWriter
from perdure.features.mailbox.contract import (
    Ack,
    DeliveryVerdict,
    InboxMessage,
    MailReply,
    MessageResult,
    ReplyHead,
    ReplyVerdict,
    Stage,
    TaskHead,
    TaskState,
)
from perdure.features.mailbox.rules.admission import (
    FILE_GONE,
    LOST,
    SKIPPED_DUPLICATE,
    FileJudgement,
    add_transition,
    bad_message_ending,
    close_message,
    may_retry,
    next_attempt,
    put_open,
    request_of,
    to_end,
)

TASK_FILE = f"{ARTIFACTS}/task.md"
GOAL_SHOWN = 100_000  # characters of a task in the conversation; a longer one is in a file
ANSWERED_WITHIN = 30.0  # seconds; a longer silence delays only the message itself
NOT_KEPT = "The task is done. Its result is not stored any more."
AT_ONCE = 8  # messages whose ends are written at once


class NotYetError(OSError):
    """The step is to be repeated after a pause."""


class MessageHandler:
    """The messages of one folder. Runs have their workspaces below `workspaces`, and their lanes on `task_queue`."""

    def __init__(self, client: Client, writer: MailWriter, pages: TaskPages, workspaces: Path, task_queue: str) -> None:
        self._client = client
        self._folder: MailFolder = writer.folder
        self._writer = writer
        self._pages = pages
        self._records = TaskRecords(writer.folder.below)
        self._workspaces = workspaces
        self._queue = task_queue
        self._copying = asyncio.Lock()  # inputs are large
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def advance(self, message: InboxMessage) -> InboxMessage | None:
        """Take the next step of a message. Return it as it is then; None once it has ended.

        Raises OSError, RPCError, WorkflowUpdateFailedError, ValueError: the step is to be repeated.
        """
        match message.stage:
            case Stage.admitted:
                after = await self._take(await self._consume(message))
            case Stage.running:
                return await self._await_end(message)
            case _:
                result = await run_outcome(self._client, message.run_id) if message.run_id else None
                async with self._slots:
                    await self._finish(message, result or result_without_run(message.ending or LOST))
                return None
        return await self.save(after)

    async def save(self, message: InboxMessage) -> InboxMessage:
        """Store an open message in the record of its task."""
        await asyncio.to_thread(self._records.update, message.task, lambda record: put_open(record, message))
        return message

    async def _consume(self, message: InboxMessage) -> InboxMessage:
        consumed = add_transition(message, TaskState.consumed, _utc_now())
        return message if consumed == message else await self.save(consumed)

    async def _take(self, message: InboxMessage) -> InboxMessage:
        """Take a message. The folder records it as consumed before anything else happens.

        Raises TimeoutError if its lane, or the delegation, does not answer.
        """
        try:
            data = await asyncio.to_thread(self._folder.read_message_file, message.plan, message.file)
            if sha256(data).hexdigest() != message.sha256:
                return _end_badly(message, "its file was changed after it had been claimed")
            head, body = parse_message(data, message.plan)
        except FileNotFoundError:
            return _end_badly(message, FILE_GONE)
        except MessageError as error:
            return _end_badly(message, str(error))
        await asyncio.to_thread(self._write_consumed, message, data)
        if isinstance(head, ReplyHead):
            return to_end(message, await self._hand_over(message, head, body), _utc_now())
        return await self._submit_task(message, head, body)

    def _write_consumed(self, message: InboxMessage, data: bytes) -> None:
        self._writer.archive_raw(message, data)
        self._writer.write_ack(message, Ack.consumed)
        self._writer.write_state(message)

    async def _submit_task(self, message: InboxMessage, head: TaskHead, body: str) -> InboxMessage:
        conversation_id, request_id, run_id = request_of(self._folder.agent, message)
        try:
            async with self._copying:
                resolved = await asyncio.to_thread(self._copy_inputs, head, body, self._workspace_of(run_id))
        except (InputsError, OutsideWorkspaceError) as error:
            return _end_badly(message, str(error))
        if resolved.missing:
            raise NotYetError("an input is being written")
        if resolved.undecided:
            await asyncio.to_thread(self._writer.write_request, message, run_id, resolved.undecided)
        request = SubmitRequest(
            request_id=request_id,
            goal=_format_goal(head, body, resolved),
            agent=self._folder.agent,
            raw=head.model_dump(mode="json", by_alias=True, exclude_none=True),
            choices=tuple(Choice(name=name, options=options) for name, options in resolved.undecided.items()),
            sender=MAILBOX,
            work=head.work,
        )
        try:
            await self._submit(conversation_id, request, head.plan_id)
        except WorkflowUpdateFailedError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
            if kind == LaneFault.invalid_input:
                return _end_badly(message, truncate(getattr(error.cause, "message", str(error.cause)), 300))
            if kind != LaneFault.request_reused:  # that run has begun, with the inputs of that time
                raise
        state = TaskState.blocked if resolved.undecided else TaskState.running
        begun = add_transition(message.evolve(run_id=run_id, stage=Stage.running), state, _utc_now())
        await asyncio.to_thread(self._writer.write_state, begun)
        await self._pages.begin_page(begun, body)
        if resolved.undecided:  # a person writes where nothing is watched
            self._folder.wake()
        return begun

    async def _submit(self, conversation_id: str, request: SubmitRequest, plan_id: str) -> None:
        update = submit_to_lane(self._client, self._queue, conversation_id, request, closes=True, shares_as=plan_id)
        await await_update(update, ANSWERED_WITHIN)

    def _copy_inputs(self, head: TaskHead, body: str, workspace: Workspace) -> ResolvedInputs:
        """Copy the inputs into the run's workspace. Inputs that are being written again are missing for now.

        Raises InputsError, OutsideWorkspaceError.
        """
        resolved = resolve_inputs(self._folder.below, head, self._folder.rests)
        if resolved.missing and resolved.is_early:
            return resolved
        if resolved.missing:
            raise InputsError(f"inputs: they are gone: {', '.join(resolved.missing)}")
        if head.inputs or len(body) > GOAL_SHOWN:
            workspace.create()
        if len(body) > GOAL_SHOWN:
            workspace.write(TASK_FILE, body.encode())
        sources = {name: (path,) for name, path in resolved.chosen.items()} | resolved.undecided
        for name, paths in sources.items():
            for path in paths:
                workspace.write(_input_path(name, path), read_input(self._folder.below, path))
        return resolved

    async def _hand_over(self, message: InboxMessage, head: ReplyHead, body: str) -> MessageResult:
        """Hand a reply to the delegation that waits for it. Repeating it returns the same verdict."""
        run_id, _, step = head.task_id.rpartition(".")
        verdict = ReplyVerdict.orphan
        if run_id and step.isascii() and step.isdigit() and head.subtask_id:
            own = head.model_dump(include={"sender", "subtask_id", "status", "artifacts"}, by_alias=False)
            reply = MailReply(**own, mailbox=self._folder.agent, body=body)
            handle = self._client.get_workflow_handle(ids.delegation_workflow_id(run_id, int(step)))
            sent = reply.model_dump(mode="json")
            update = handle.execute_update("reply", sent, id=f"mail:{message.key}", result_type=str)
            with suppress(WorkflowUpdateFailedError), IgnoreMissing():
                verdict = ReplyVerdict(await await_update(update, ANSWERED_WITHIN))
        return MessageResult(ack=Ack.succeeded, details=verdict)

    async def _await_end(self, message: InboxMessage) -> InboxMessage | None:
        """Wait for the run's end, and write it. Return the message if it gets another run."""
        ending, result = await wait_for_message_end(self._client, self._folder.agent, message)
        async with self._slots:
            if may_retry(result.fault, 0, message.attempt) and not await count_steps(
                self._client, message.run_id or ""
            ):
                return await self.save(next_attempt(message, _utc_now()))
            await self._finish(await self.save(to_end(message, ending, _utc_now())), result)
        return None

    async def _finish(self, message: InboxMessage, result: SubtaskOutcome) -> None:
        """Write the end of a message, and then put its file away."""
        workspace = None
        if message.run_id is not None:
            workspace = self._workspace_of(message.run_id)
            await self._pages.write_page(message, message.run_id, None, result.text)
        await asyncio.to_thread(self._write_end, message, result, workspace)

    def _write_end(self, message: InboxMessage, result: SubtaskOutcome, workspace: Workspace | None) -> None:
        ending = message.ending or LOST
        if not message.is_reply:
            self._writer.write_reply(message, result, workspace)
        self._writer.write_state(message)
        self._writer.write_ack(message, Ack(ending.ack), ending.details)
        self._writer.close_message_requests(message)
        self._records.update(message.task, lambda record: close_message(record, message))
        self._writer.put_away_finished(message, ending)

    def _workspace_of(self, run_id: str) -> Workspace:
        return Workspace(self._workspaces / folder_name(run_id))

    async def put_aside(self, judged: FileJudgement) -> None:
        """Move a file that is not carried: a repeated one with a note in its ack, a dead one with its reason.

        Raises OSError, RPCError.
        """
        message = judged.message
        async with self._slots:
            if judged.verdict is DeliveryVerdict.dead:
                await asyncio.to_thread(self._writer.bury_file, message, judged.why)
                return
            if judged.verdict is DeliveryVerdict.task_done:
                await self._send_reply_again(message.evolve(run_id=judged.run_id))
            await asyncio.to_thread(self._skip_file, message, judged.why)

    async def _send_reply_again(self, message: InboxMessage) -> None:
        """Write the reply of a finished task again: the stored one, or the result of its run."""
        if await asyncio.to_thread(self._writer.send_stored_reply, message):
            return
        run_id = message.run_id or ""
        result = await run_outcome(self._client, run_id)
        if result is None:
            done = MessageResult(ack=Ack.succeeded, details=NOT_KEPT)
            result = result_without_run(done)
        await asyncio.to_thread(self._writer.write_reply, message, result, self._workspace_of(run_id))

    def _skip_file(self, message: InboxMessage, why: str) -> None:
        if why == SKIPPED_DUPLICATE:
            self._writer.write_duplicate(message, why)
        elif why:
            with suppress(FileNotFoundError):
                self._writer.archive_raw(message, self._folder.read_message_file(message.plan, message.file))
            self._writer.write_ack(message, Ack.succeeded, why)
        self._folder.put_away(message.plan, message.file, PROCESSED)


def _end_badly(message: InboxMessage, reason: str) -> InboxMessage:
    return to_end(message, bad_message_ending(reason), _utc_now())


def _format_goal(head: TaskHead, body: str, resolved: ResolvedInputs) -> str:
    """Return the goal: the task's text, and the paths of its inputs."""
    whole = f"… The whole task, {len(body):,} characters, is in {TASK_FILE}: read it."
    lines = [body.strip() if len(body) <= GOAL_SHOWN else f"{body[:2000]}\n\n{whole}"]
    if head.expected_output:
        lines.append(f"Expected output: {head.expected_output}")
    if head.inputs:
        files = [f"- {name}: {_input_path(name, path)}" for name, path in resolved.chosen.items()]
        files += [f"- {name}: {_input_path(name, '<the file that a person picks>')}" for name in resolved.undecided]
        lines.append("Inputs:\n" + "\n".join(files))
    return "\n\n".join(lines)


def _input_path(name: str, path: str) -> str:
    return f"{ARTIFACTS}/inputs/{name}/{path}"


def _utc_now() -> datetime:
    return datetime.now(UTC)
