"""The files that a mailbox writes about a message: its ack, its task state, the reply, and raw copies."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain
from typing import Any

from perdure.activities.run.outcome import SubtaskOutcome, read_named_files
from perdure.activities.storage.workspace import Workspace, WrongFileTypeError, folder_name
from perdure.contracts.run.limits import SubtaskStatus
from perdure.features.mailbox.activities.folder import ARCHIVE, DEAD, PROCESSED, TASKS, MailFolder
from perdure.features.mailbox.activities.message import MessageError, format_message, parse_message
from perdure.features.mailbox.contract import (
    MAX_MESSAGE_BYTES,
    Ack,
    InboxMessage,
    MessageResult,
    ReplyHead,
    ReplyStatus,
    TaskHead,
    Transition,
)
from perdure.features.mailbox.rules.files import add_duplicate, is_of_another, update_ack, update_task_state

MAX_BODY = 200 * 1024  # bytes of an outcome in its reply; a longer one is in a separate file
MAX_READ = 1024 * 1024  # bytes of an ack or state file that are read
ASKED = ".asked"  # the folder of open questions, by task
REQUEST = "human_intervention_request.json"
PAGE = "task.md"


@dataclass(frozen=True)
class MailWriter:
    """Writes the files of a mailbox. All writes are idempotent. Methods raise OSError."""

    folder: MailFolder

    def write_ack(self, message: InboxMessage, status: Ack, details: str = "") -> None:
        self._change_ack(message, lambda before: update_ack(before, message, status, _utc_now(), details))

    def write_duplicate(self, message: InboxMessage, details: str) -> None:
        self._change_ack(message, lambda before: add_duplicate(before, message, details, _utc_now()))

    def _change_ack(self, message: InboxMessage, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
        """Change the message's ack file. If another message of the same id has one, use a second name."""
        if not message.message_id or not message.sha256:
            return
        stem = f"ack_{folder_name(message.message_id)}"
        names = (f"{stem}.json", f"{stem}.{message.sha256[:12]}.json")
        self._change_file(message.plan, names, {"sha256": message.sha256}, change)

    def write_state(self, message: InboxMessage, *added: Transition) -> None:
        if message.is_reply or not message.task_id or message.delegation is not None:
            return
        stem, own = f"task_state_{stem_of(message)}", {"task_id": message.task_id, "subtask_id": message.subtask_id}
        names = (f"{stem}.json", f"{stem}.{message.task[:8]}.json")
        self._change_file(message.plan, names, own, lambda before: update_task_state(before, message, *added))

    def _change_file(
        self,
        plan: str,
        names: tuple[str, str],
        own: dict[str, str | None],
        change: Callable[[dict[str, Any] | None], dict[str, Any]],
    ) -> None:
        """Change the first file that is missing or has the `own` fields, or else the last one."""
        below, outgoing = self.folder.below, self.folder.outgoing
        with below.lock_folder(outgoing, plan):
            for name in names:
                before = self._read_object(outgoing, plan, name)
                is_own = before is not None and _has_fields(before, own)
                if before is None or is_own or name == names[-1]:
                    after = change(before if is_own else None)
                    if after != before:
                        below.write(_to_json_bytes(after), outgoing, plan, name)
                    return

    def _read_object(self, *names: str) -> dict[str, Any] | None:
        """Return the contents of a JSON file, if it exists; empty if it is not an object."""
        try:
            value = json.loads(self.folder.below.read(*names, most=MAX_READ))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def archive_raw(self, message: InboxMessage, data: bytes) -> None:
        """Archive a message as it arrived. Another message about the same task gets a second name."""
        kind = "-reply" if message.is_reply else ""
        suffix = ".json" if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else ".md"
        self._archive_file(message.plan, f"{stem_of(message)}{kind}", suffix, data)

    def _archive_file(self, plan: str, stem: str, suffix: str, data: bytes) -> None:
        below = self.folder.below
        for name in (f"{stem}{suffix}", f"{stem}.{sha256(data).hexdigest()[:12]}{suffix}"):
            try:
                below.create(data, ARCHIVE, plan, name)
            except FileExistsError:
                if below.read(ARCHIVE, plan, name, most=MAX_MESSAGE_BYTES) == data:
                    return
            else:
                return

    def write_reply(self, message: InboxMessage, result: SubtaskOutcome, workspace: Workspace | None) -> None:
        """Write the reply: the result of a task, and the files that its run produced."""
        stem, body, files = stem_of(message), result.text, list[str]()
        whole = body.encode(errors="replace")
        outcome = [("outcome.md", whole)] if len(whole) > MAX_BODY else []
        if outcome:
            body = f"{body[: MAX_BODY // 8]}\n\n… The full text is in {stem}-files/outcome.md."
        made = read_named_files(workspace, result.artifacts) if workspace is not None else ()
        for path, data in chain(outcome, made):
            files.append(f"{stem}-files/{path}")
            parts = [part for part in files[-1].split("/") if part not in {"", "."}]
            self.folder.below.write(data, self.folder.outgoing, message.plan, *parts)
        head = ReplyHead(
            **message.model_dump(include={"plan_id", "task_id", "subtask_id", "run_id"}),
            type="reply",
            message_id=f"{message.key}-reply",
            sender=self.folder.agent,
            to=message.sender,
            in_reply_to=message.message_id or None,
            status=ReplyStatus.done if result.status is SubtaskStatus.done else ReplyStatus.failed,
            artifacts=tuple(files),
        )
        reply = format_message(head, body if body.endswith("\n") else f"{body}\n").encode(errors="replace")
        self._archive_file(message.plan, f"{stem}-reply", ".md", reply)
        self._send_reply(message, reply)

    def _send_reply(self, message: InboxMessage, data: bytes) -> None:
        """Write a reply into the outgoing folder, once."""
        below, outgoing, stem = self.folder.below, self.folder.outgoing, stem_of(message)
        with below.lock_folder(outgoing, message.plan):
            first, last = f"{stem}-reply.md", f"{stem}-reply.{message.task[:8]}.md"
            for name in (first, last):
                before = self._read_bytes(outgoing, message.plan, name)
                if before == data:
                    return
                if before is None or name == last or _is_about(before, message):
                    below.write(data, outgoing, message.plan, name)
                    return

    def send_stored_reply(self, message: InboxMessage) -> bool:
        """Send the archived reply of the message's run again, if there is one."""
        for name in self.folder.below.names(ARCHIVE, message.plan):
            if name.startswith(f"{stem_of(message)}-reply.") and name.endswith(".md"):
                data = self.folder.below.read(ARCHIVE, message.plan, name, most=MAX_MESSAGE_BYTES)
                head = _read_head(data, message.plan)
                if isinstance(head, ReplyHead) and (head.run_id, head.sender) == (message.run_id, self.folder.agent):
                    self._send_reply(message, data)
                    return True
        return False

    def put_away_finished(self, message: InboxMessage, ending: MessageResult) -> None:
        """Move the message's file to `.processed/` or `.deadletter/`."""
        is_well = ending.ack is Ack.succeeded
        if message.file:
            reason = None if is_well else _format_reason(ending.details, ending.fault)
            self.folder.put_away(message.plan, message.file, PROCESSED if is_well else DEAD, reason)

    def bury_file(self, message: InboxMessage, reason: str) -> None:
        self.folder.put_away(message.plan, message.file, DEAD, _format_reason(reason, None))

    def write_request(self, message: InboxMessage, run_id: str, undecided: dict[str, tuple[str, ...]]) -> None:
        """Write a request for a person, who fills in `pick`. An existing request stays unchanged."""
        question = {
            **_ids_of(message),
            "run_id": run_id,
            "key": message.key,
            "asks": "Several files fit. Write the one to use for each input into `pick`.",
            "choices": [{"name": name, "options": list(options)} for name, options in undecided.items()],
            "pick": dict.fromkeys(undecided),
            "at": _timestamp(),
        }
        with self.lock_task_folder(message) as task:
            before = self._read_object(TASKS, task, REQUEST)
            if before is None or before.get("run_id") != run_id:
                self.folder.below.write(_to_json_bytes(question), TASKS, task, REQUEST)
            self.folder.below.write(_to_json_bytes(question), TASKS, ASKED, task)

    @contextmanager
    def lock_task_folder(self, message: InboxMessage) -> Iterator[str]:
        """Lock and return the task's folder below `tasks/`.

        Tasks of two plans may share a name: the first one keeps it, the other gets a second name.
        """
        usual, other = _task_folders(message)
        with self.folder.below.lock_folder(TASKS, usual):
            is_other = self.folder.below.status(TASKS, other) is not None or self._is_of_another(usual, message)
            yield other if is_other else usual

    def _is_of_another(self, task: str, message: InboxMessage) -> bool:
        question = self.read_question(task)
        if question and not _has_fields(question, _ids_of(message)):
            return True
        with suppress(WrongFileTypeError):  # nor can it have a page
            return is_of_another(self.read_page(task), message)
        return False

    def read_page(self, task: str) -> bytes:
        """Return the task's page, or empty bytes."""
        return self._read_bytes(TASKS, task, PAGE) or b""

    def _read_bytes(self, *names: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self.folder.below.read(*names, most=MAX_MESSAGE_BYTES)
        return None

    def list_open_requests(self) -> list[str]:
        """Return the folders of the tasks that wait for a person."""
        return [name for name in self.folder.below.names(TASKS, ASKED) if not name.startswith(".")]

    def read_question(self, task: str) -> dict[str, Any]:
        """Return the question as it was asked, regardless of edits to the request. Empty if it is not known."""
        return self._read_object(TASKS, ASKED, task) or {}

    def read_request(self, task: str) -> dict[str, Any] | None:
        """Return the request as it is on disk, if it exists; empty if it is incomplete or not valid."""
        return self._read_object(TASKS, task, REQUEST)

    def rewrite_request(self, task: str, request: dict[str, Any]) -> None:
        self.folder.below.write(_to_json_bytes(request), TASKS, task, REQUEST)

    def ask_again(self, task: str, request: dict[str, Any]) -> None:
        """Write a removed request again. An existing one stays."""
        with suppress(FileExistsError):
            self.folder.below.create(_to_json_bytes(request), TASKS, task, REQUEST)

    def close_message_requests(self, message: InboxMessage) -> None:
        """Remove the questions of this message."""
        for task in _task_folders(message):
            if self.read_question(task).get("key") == message.key:
                self.remove_request(task)

    def remove_request(self, task: str) -> None:
        self.folder.below.remove(TASKS, task, REQUEST)
        self.folder.below.remove(TASKS, ASKED, task)


def stem_of(message: InboxMessage) -> str:
    """Return the stem of the names of a task's files."""
    sub = f"-{folder_name(message.subtask_id)}" if message.subtask_id else ""
    return f"{folder_name(message.task_id)}{sub}"


def _task_folders(message: InboxMessage) -> tuple[str, str]:
    """Return the two candidates for a task's folder below `tasks/`."""
    stem = stem_of(message)
    return stem, f"{stem}.{message.task[:8]}"


def _ids_of(message: InboxMessage) -> dict[str, str | None]:
    return {"task_id": message.task_id, "subtask_id": message.subtask_id, "plan_id": message.plan_id}


def _has_fields(stored: dict[str, Any], own: dict[str, str | None]) -> bool:
    return all(stored.get(name) == value for name, value in own.items())


def _read_head(data: bytes, plan: str) -> TaskHead | ReplyHead | None:
    with suppress(MessageError):
        return parse_message(data, plan)[0]
    return None


def _is_about(data: bytes, message: InboxMessage) -> bool:
    head = _read_head(data, message.plan)
    return head is not None and (head.task_id, head.subtask_id) == (message.task_id, message.subtask_id)


def _format_reason(reason: str, error: str | None) -> bytes:
    return _to_json_bytes({"why": reason, **({"fault": error} if error else {}), "at": _timestamp()})


def _to_json_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode(errors="replace") + b"\n"


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _timestamp() -> str:
    return _utc_now().isoformat(timespec="milliseconds")
