"""`take`: submit a message to its lane, with its inputs, or hand a reply to the delegation that waits for it."""

import asyncio
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.conversation import submit_to_lane
from activities.mailbox.inputs import InputsError, ResolvedInputs, read_input, resolve_inputs
from activities.mailbox.message import MessageError, parse_message
from activities.mailbox.pages import TaskPages
from activities.mailbox.writer import MailWriter
from activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace, folder_name
from activities.temporal import await_update
from contracts.conversation import Choice, LaneFault, SubmitRequest
from contracts.mail.commands import BridgeResult
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, TaskState, Transition
from contracts.mail.message import ReplyHead, TaskHead
from contracts.mail.peers import MailReply, ReplyVerdict
from contracts.sender import MAILBOX
from decisions import ids
from decisions.mailbox.delivery import BAD_MESSAGE
from decisions.text.formatting import truncate

TASK_FILE = f"{ARTIFACTS}/task.md"
GOAL_SHOWN = 100_000  # characters of a task in the conversation; a longer one is in a file
ANSWERED_WITHIN = 30.0  # seconds; a longer silence delays only the message itself
_MAX_KEY = 64  # bytes of a fairness key
_FINAL = (LaneFault.invalid_input,)


class Intake:
    def __init__(self, client: Client, writer: MailWriter, pages: TaskPages, workspaces: Path, task_queue: str) -> None:
        self._client = client
        self._folder = writer.folder
        self._writer = writer
        self._pages = pages
        self._workspaces = workspaces
        self._queue = task_queue
        self._copying = asyncio.Lock()  # inputs are large

    async def take_message(self, letter: InboxMessage) -> BridgeResult:
        """Take a message. The folder records it as consumed before anything else happens.

        Raises TimeoutError if its lane, or the delegation, does not answer. Taking it again is safe.
        """
        try:
            data = await asyncio.to_thread(self._folder.read_message_file, letter.plan, letter.file)
            if sha256(data).hexdigest() != letter.sha256:
                return end_as_bad_message("its file was changed after it had been claimed")
            head, body = parse_message(data, letter.plan)
        except FileNotFoundError:
            return end_as_bad_message("its file is gone")
        except MessageError as error:
            return end_as_bad_message(str(error))
        await asyncio.to_thread(self._record_consumed, letter, data)
        if isinstance(head, ReplyHead):
            return await self._hand_over(letter, head, body)
        return await self._submit_task(letter, head, body)

    def _record_consumed(self, letter: InboxMessage, data: bytes) -> None:
        """Record that the message is consumed."""
        self._writer.archive_raw(letter, data)
        self._writer.write_ack(letter, Ack.consumed)
        self._writer.write_state(letter)

    async def _submit_task(self, letter: InboxMessage, head: TaskHead, body: str) -> BridgeResult:
        conversation_id = ids.mail_conversation_id(self._folder.agent, letter.task)
        request_id = ids.mail_request_id(letter.key, letter.attempt)
        run_id = ids.turn_run_id(conversation_id, request_id)
        workspace = Workspace(self._workspaces / folder_name(run_id))
        try:
            async with self._copying:
                resolved = await asyncio.to_thread(self._copy_inputs, head, body, workspace)
        except (InputsError, OutsideWorkspaceError) as error:
            return end_as_bad_message(str(error))
        if resolved.missing:
            return BridgeResult(later=True)
        if resolved.undecided:
            await asyncio.to_thread(self._writer.write_request, letter, run_id, resolved.undecided)
        request = SubmitRequest(
            request_id=request_id,
            goal=_format_goal(head, body, resolved),
            agent=self._folder.agent,
            raw=head.model_dump(mode="json", by_alias=True, exclude_none=True),
            choices=tuple(Choice(name=name, options=options) for name, options in resolved.undecided.items()),
            mailbox=self._folder.agent,
            sender=MAILBOX,
        )
        fairness_key = _fairness_key(head.plan_id)
        try:
            update = submit_to_lane(
                self._client, self._queue, conversation_id, request, closes=True, fairness_key=fairness_key
            )
            await await_update(update, ANSWERED_WITHIN)
        except WorkflowUpdateFailedError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
            if kind in _FINAL:
                return end_as_bad_message(truncate(getattr(error.cause, "message", str(error.cause)), 300))
            if kind != LaneFault.request_reused:  # that run has begun, with the inputs of that time
                return BridgeResult()
        at = datetime.now(UTC)
        state = TaskState.blocked if resolved.undecided else TaskState.running
        begun = letter.model_copy(update={"run_id": run_id})
        await asyncio.to_thread(self._writer.write_state, begun, Transition(state=state, at=at))
        await self._pages.begin_page(begun, body)
        return BridgeResult(run_id=run_id, is_blocked=bool(resolved.undecided), at=at)

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

    async def _hand_over(self, letter: InboxMessage, head: ReplyHead, body: str) -> BridgeResult:
        """Hand a reply to the delegation that waits for it. Repeating it returns the same verdict."""
        run_id, _, step = head.task_id.rpartition(".")
        verdict = ReplyVerdict.orphan
        if run_id and step.isascii() and step.isdigit() and head.subtask_id:
            reply = MailReply(
                mailbox=self._folder.agent,
                sender=head.sender,
                subtask_id=head.subtask_id,
                status=head.status,
                body=body,
                artifacts=head.artifacts,
            )
            handle = self._client.get_workflow_handle(ids.delegation_workflow_id(run_id, int(step)))
            try:
                update = handle.execute_update(
                    "reply", reply.model_dump(mode="json"), id=f"mail:{letter.key}", result_type=str
                )
                verdict = ReplyVerdict(await await_update(update, ANSWERED_WITHIN))
            except WorkflowUpdateFailedError:
                verdict = ReplyVerdict.orphan
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
        return BridgeResult(ending=MessageResult(ack=Ack.succeeded, details=verdict))


def end_as_bad_message(reason: str) -> BridgeResult:
    return BridgeResult(ending=MessageResult(ack=Ack.failed, details=reason, fault=BAD_MESSAGE))


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


def _fairness_key(plan_id: str) -> str:
    if len(plan_id.encode(errors="replace")) <= _MAX_KEY:
        return plan_id
    return ids.digest(plan_id.encode(errors="replace"), 16)
