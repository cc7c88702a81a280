"""Messages on their way in: a claimed file as a delivery to the mailbox, and the order `take`.

`take` submits a message to its lane, with its inputs, or hands a reply to the delegation that waits for it.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.conversation import submit_to_lane
from activities.mailbox.folder import ClaimedFile, MailFolder, format_os_error
from activities.mailbox.inputs import InputsError, ResolvedInputs, read_input, resolve_inputs
from activities.mailbox.message import MAX_ENVELOPE, MessageError, parse_message, read_envelope
from activities.mailbox.pages import TaskPages
from activities.mailbox.writer import MailWriter
from activities.storage.safe_dir import WrongFileTypeError
from activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace, folder_name
from activities.temporal import await_update
from contracts.conversation import Choice, LaneFault, SubmitRequest
from contracts.mail.commands import BridgeResult
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, TaskState, Transition
from contracts.mail.mailbox import Delivery
from contracts.mail.message import ReplyHead, TaskHead
from contracts.mail.peers import MailReply, ReplyVerdict
from contracts.sender import MAILBOX
from decisions import ids
from decisions.mailbox.delivery import bad_message_ending
from decisions.text.formatting import truncate

TASK_FILE = f"{ARTIFACTS}/task.md"
GOAL_SHOWN = 100_000  # characters of a task in the conversation; a longer one is in a file
ANSWERED_WITHIN = 30.0  # seconds; a longer silence delays only the message itself
_MAX_KEY = 64  # bytes of a fairness key
MAX_BYTES = 1024 * 1024  # of a batch. A head has at most 800 KB, if each character of its file takes 12 bytes


@dataclass(frozen=True)
class PreparedDelivery:
    """A delivery, with a note about its envelope. If `is_early`, an input may be incomplete: look again soon."""

    claimed: ClaimedFile
    delivery: Delivery
    note: str = ""
    is_early: bool = False


def prepare_delivery(folder: MailFolder, claimed: ClaimedFile) -> PreparedDelivery:
    """Read a claimed file. Raises FileNotFoundError if it is gone, OSError if it can be read only later."""
    plan, file = claimed.plan, claimed.file
    try:
        data = folder.read_message_file(plan, file) if claimed.fault is None else b""
    except (WrongFileTypeError, PermissionError) as error:
        claimed = replace(claimed, fault=truncate(f"it cannot be read: {format_os_error(error)}", 1000))
    if claimed.fault is not None:
        return PreparedDelivery(claimed, Delivery(file=file, plan=plan, sha256="", fault=claimed.fault))
    note, resolved = _envelope_note(folder, claimed), ResolvedInputs()
    fields: dict[str, Any] = {"file": file, "plan": plan, "sha256": sha256(data).hexdigest()}
    try:
        head, _ = parse_message(data, plan)
        fields["head"] = head
        if isinstance(head, TaskHead) and head.inputs:
            resolved = resolve_inputs(folder.below, head, folder.rests)
    except (MessageError, InputsError) as error:
        fields["fault"] = truncate(str(error), 1000)
    delivery = Delivery(**fields, missing=resolved.missing, undecided=tuple(resolved.undecided))
    return PreparedDelivery(claimed, delivery, note, resolved.is_early)


def _envelope_note(folder: MailFolder, claimed: ClaimedFile) -> str:
    try:
        data = folder.read_envelope_file(claimed.plan, claimed.file, MAX_ENVELOPE)
        if data is None:
            return ""
        read_envelope(data)
    except OSError as error:
        return f"the envelope cannot be read: {format_os_error(error)}"
    except MessageError as error:
        return f"the envelope is not valid: {error}"
    return "with its envelope"


def batch_size(messages: Sequence[PreparedDelivery | None]) -> int:
    """Return how many messages, from the first one, fit into one delivery."""
    used = 0
    for number, message in enumerate(messages):
        delivery = message.delivery.model_dump(mode="json", by_alias=True, exclude_none=True) if message else None
        size = len(json.dumps(delivery)) if delivery else 0
        if used and used + size > MAX_BYTES:
            return number
        used += size
    return len(messages)


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
        plan = head.plan_id.encode(errors="replace")
        fair = head.plan_id if len(plan) <= _MAX_KEY else ids.digest(plan, 16)
        try:
            update = submit_to_lane(self._client, self._queue, conversation_id, request, closes=True, fairness_key=fair)
            await await_update(update, ANSWERED_WITHIN)
        except WorkflowUpdateFailedError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
            if kind == LaneFault.invalid_input:
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
            own = head.model_dump(include={"sender", "subtask_id", "status", "artifacts"}, by_alias=False)
            reply = MailReply(**own, mailbox=self._folder.agent, body=body)
            handle = self._client.get_workflow_handle(ids.delegation_workflow_id(run_id, int(step)))
            body_sent = reply.model_dump(mode="json")
            try:
                update = handle.execute_update("reply", body_sent, id=f"mail:{letter.key}", result_type=str)
                with suppress(WorkflowUpdateFailedError):
                    verdict = ReplyVerdict(await await_update(update, ANSWERED_WITHIN))
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
        return BridgeResult(ending=MessageResult(ack=Ack.succeeded, details=verdict))


def end_as_bad_message(reason: str) -> BridgeResult:
    return BridgeResult(ending=bad_message_ending(reason))


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
