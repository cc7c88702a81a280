"""The files that a mailbox writes about a message: its ack, its task state, the reply, and raw copies."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from activities.mailbox.folder import ARCHIVE, DEAD, PENDING, PROCESSED, TASKS, MailFolder
from activities.mailbox.message import MessageError, format_message, parse_message
from activities.mailbox.result import TaskResult
from activities.run.outcome import read_named_files
from activities.storage.safe_dir import WrongFileTypeError
from activities.storage.workspace import Workspace, folder_name
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Transition
from contracts.mail.message import MAX_MESSAGE_BYTES, ReplyHead, ReplyStatus
from decisions.mailbox.ack import add_duplicate, update_ack, update_task_state
from decisions.mailbox.task_file import is_of_another

MAX_BODY = 200 * 1024  # bytes of an outcome in its reply; a longer one is in a separate file
MAX_READ = 1024 * 1024  # bytes of an ack or state file that are read
ASKED = ".asked"  # the folder of open questions, by task
REQUEST = "human_intervention_request.json"
PAGE = "task.md"


@dataclass(frozen=True)
class MailWriter:
    """Writes the files of a mailbox. All writes are idempotent. Methods raise OSError."""

    folder: MailFolder
    agent: str

    def write_ack(self, letter: InboxMessage, status: Ack, details: str = "") -> None:
        self._change_ack(letter, lambda before: update_ack(before, letter, status, _utc_now(), details))

    def write_duplicate(self, letter: InboxMessage, details: str) -> None:
        self._change_ack(letter, lambda before: add_duplicate(before, letter, details, _utc_now()))

    def _change_ack(self, letter: InboxMessage, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
        """Change the message's ack file. If another message of the same id has one, use a second name."""
        if not letter.message_id or not letter.sha256:
            return
        stem = f"ack_{folder_name(letter.message_id)}"
        names = (f"{stem}.json", f"{stem}.{letter.sha256[:12]}.json")
        self._change_file(letter.plan, names, lambda ack: ack.get("sha256") == letter.sha256, change)

    def write_state(self, letter: InboxMessage, *added: Transition) -> None:
        if letter.is_reply or not letter.task_id or letter.delegation is not None:
            return
        stem = f"task_state_{stem_of(letter)}"
        ids = (letter.task_id, letter.subtask_id)
        self._change_file(
            letter.plan,
            (f"{stem}.json", f"{stem}.{letter.task[:8]}.json"),
            lambda state: (state.get("task_id"), state.get("subtask_id")) == ids,
            lambda before: update_task_state(before, letter, *added),
        )

    def _change_file(
        self,
        plan: str,
        names: tuple[str, str],
        is_own: Callable[[dict[str, Any]], bool],
        change: Callable[[dict[str, Any] | None], dict[str, Any]],
    ) -> None:
        below, outgoing = self.folder.below, self.folder.outgoing
        with below.lock_folder(outgoing, plan):
            for name in names:
                before = self._read_object(outgoing, plan, name)
                if before is None or is_own(before) or name == names[-1]:
                    after = change(before if before and is_own(before) else None)
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

    def archive_raw(self, letter: InboxMessage, data: bytes) -> None:
        """Archive a message as it arrived. Another message about the same task gets a second name."""
        kind = "-reply" if letter.is_reply else ""
        suffix = ".json" if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else ".md"
        self._archive_file(letter.plan, f"{stem_of(letter)}{kind}", suffix, data)

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

    def write_reply(self, letter: InboxMessage, result: TaskResult, workspace: Workspace | None) -> None:
        """Write the reply: the result of a task, and the files that its run produced."""
        stem, body, files = stem_of(letter), result.text, list[str]()
        if len(body.encode(errors="replace")) > MAX_BODY:
            files.append(f"{stem}-files/outcome.md")
            self.folder.below.write(
                body.encode(errors="replace"), self.folder.outgoing, letter.plan, *_path_parts(files[0])
            )
            body = f"{body[: MAX_BODY // 8]}\n\n… The full text is in {files[0]}."
        if workspace is not None:
            files += self._copy_artifacts(letter.plan, f"{stem}-files", result.artifacts, workspace)
        head = ReplyHead(
            type="reply",
            message_id=f"{letter.key}-reply",
            plan_id=letter.plan_id,
            task_id=letter.task_id,
            subtask_id=letter.subtask_id,
            sender=self.agent,
            to=letter.sender,
            in_reply_to=letter.message_id or None,
            status=ReplyStatus.done if result.is_done else ReplyStatus.failed,
            run_id=letter.run_id,
            artifacts=tuple(files),
        )
        data = format_message(head, body if body.endswith("\n") else f"{body}\n").encode(errors="replace")
        self._archive_file(letter.plan, f"{stem}-reply", ".md", data)
        self.send_reply(letter, data)

    def _copy_artifacts(self, plan: str, into: str, names: tuple[str, ...], workspace: Workspace) -> list[str]:
        """Copy the named regular files of a workspace. Return their paths."""
        copied: list[str] = []
        for path, data in read_named_files(workspace, names):
            target = f"{into}/{path}"
            self.folder.below.write(data, self.folder.outgoing, plan, *_path_parts(target))
            copied.append(target)
        return copied

    def send_reply(self, letter: InboxMessage, data: bytes) -> None:
        """Write a reply into the outgoing folder, once."""
        below, outgoing = self.folder.below, self.folder.outgoing
        stem = stem_of(letter)
        with below.lock_folder(outgoing, letter.plan):
            for name in (f"{stem}-reply.md", f"{stem}-reply.{letter.task[:8]}.md"):
                try:
                    before = below.read(outgoing, letter.plan, name, most=MAX_MESSAGE_BYTES)
                except FileNotFoundError:
                    before = None
                if before == data:
                    return
                is_last = name != f"{stem}-reply.md"
                if before is None or is_last or _is_about(before, letter):
                    below.write(data, outgoing, letter.plan, name)
                    return

    def find_sent_reply(self, letter: InboxMessage, run_id: str) -> bytes | None:
        """Return the archived reply of this run, if any."""
        below, stem = self.folder.below, stem_of(letter)
        for name in below.names(ARCHIVE, letter.plan):
            if name.startswith(f"{stem}-reply.") and name.endswith(".md"):
                data = below.read(ARCHIVE, letter.plan, name, most=MAX_MESSAGE_BYTES)
                with suppress(MessageError):
                    head, _ = parse_message(data, letter.plan)
                    if isinstance(head, ReplyHead) and head.run_id == run_id and head.sender == self.agent:
                        return data
        return None

    def put_away_finished(self, letter: InboxMessage, ending: MessageResult) -> None:
        """Move the message's file to `.processed/` or `.deadletter/`."""
        is_well = ending.ack is Ack.succeeded
        if letter.file:
            reason = None if is_well else _format_reason(ending.details, ending.fault)
            self.folder.put_away(letter.plan, letter.file, PROCESSED if is_well else DEAD, reason)

    def bury_file(self, letter: InboxMessage, reason: str) -> None:
        self.folder.put_away(letter.plan, letter.file, DEAD, _format_reason(reason, None))

    def is_pending(self, letter: InboxMessage) -> bool:
        return self.folder.below.status(self.folder.incoming, letter.plan, PENDING, letter.file) is not None

    def write_request(self, letter: InboxMessage, run_id: str, undecided: dict[str, tuple[str, ...]]) -> None:
        """Write a request for a person, who fills in `pick`. An existing request stays unchanged."""
        question = {
            "task_id": letter.task_id,
            "subtask_id": letter.subtask_id,
            "plan_id": letter.plan_id,
            "run_id": run_id,
            "key": letter.key,
            "asks": "Several files fit. Write the one to use for each input into `pick`.",
            "choices": [{"name": name, "options": list(options)} for name, options in undecided.items()],
            "pick": dict.fromkeys(undecided),
            "at": _format_time(_utc_now()),
        }
        with self.lock_task_folder(letter) as task:
            before = self._read_object(TASKS, task, REQUEST)
            if before is None or before.get("run_id") != run_id:
                self.folder.below.write(_to_json_bytes(question), TASKS, task, REQUEST)
            self.folder.below.write(_to_json_bytes(question), TASKS, ASKED, task)

    @contextmanager
    def lock_task_folder(self, letter: InboxMessage) -> Iterator[str]:
        """Lock and return the task's folder below `tasks/`.

        Tasks of two plans may share a name: the first one keeps it, the other gets a second name.
        """
        usual, other = _task_folders(letter)
        with self.folder.below.lock_folder(TASKS, usual):
            is_other = self.folder.below.status(TASKS, other) is not None or self._is_of_another(usual, letter)
            yield other if is_other else usual

    def _is_of_another(self, task: str, letter: InboxMessage) -> bool:
        question = self.read_question(task)
        own = {"plan_id": letter.plan_id, "task_id": letter.task_id, "subtask_id": letter.subtask_id}
        if question and any(question.get(name) != value for name, value in own.items()):
            return True
        with suppress(WrongFileTypeError):  # nor can it have a page
            return is_of_another(self.read_page(task), letter)
        return False

    def read_page(self, task: str) -> bytes:
        """Return the task's page, or empty bytes."""
        with suppress(FileNotFoundError):
            return self.folder.below.read(TASKS, task, PAGE, most=MAX_MESSAGE_BYTES)
        return b""

    def list_open_requests(self) -> list[str]:
        """Return the folders of the tasks that wait for a person."""
        return [name for name in self.folder.below.names(TASKS, ASKED) if not name.startswith(".")]

    def read_question(self, task: str) -> dict[str, Any]:
        """Return the question as it was asked, regardless of edits to the request. Empty if it is not known."""
        return self._read_object(TASKS, ASKED, task) or {}

    def read_request(self, task: str) -> dict[str, Any] | None:
        """Return the request as it is on disk, if it exists; empty if it is incomplete or not valid."""
        status = self.folder.below.status(TASKS, task, REQUEST)
        if status is None:
            return None
        return self._read_object(TASKS, task, REQUEST) if status.st_size <= MAX_READ else {}

    def rewrite_request(self, task: str, request: dict[str, Any]) -> None:
        self.folder.below.write(_to_json_bytes(request), TASKS, task, REQUEST)

    def ask_again(self, task: str, request: dict[str, Any]) -> None:
        """Write a removed request again. An existing one stays."""
        with suppress(FileExistsError):
            self.folder.below.create(_to_json_bytes(request), TASKS, task, REQUEST)

    def close_message_requests(self, letter: InboxMessage) -> None:
        """Remove the questions of this message."""
        for task in _task_folders(letter):
            if self.read_question(task).get("key") == letter.key:
                self.remove_request(task)

    def remove_request(self, task: str) -> None:
        self.folder.below.remove(TASKS, task, REQUEST)
        self.folder.below.remove(TASKS, ASKED, task)


def stem_of(letter: InboxMessage) -> str:
    """Return the stem of the names of a task's files."""
    sub = f"-{folder_name(letter.subtask_id)}" if letter.subtask_id else ""
    return f"{folder_name(letter.task_id)}{sub}"


def _task_folders(letter: InboxMessage) -> tuple[str, str]:
    """Return the two candidates for a task's folder below `tasks/`."""
    stem = stem_of(letter)
    return stem, f"{stem}.{letter.task[:8]}"


def _is_about(data: bytes, letter: InboxMessage) -> bool:
    try:
        head, _ = parse_message(data, letter.plan)
    except MessageError:
        return False
    return (head.task_id, head.subtask_id) == (letter.task_id, letter.subtask_id)


def _path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _format_reason(reason: str, error: str | None) -> bytes:
    return _to_json_bytes({"why": reason, **({"fault": error} if error else {}), "at": _format_time(_utc_now())})


def _to_json_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode(errors="replace") + b"\n"


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
