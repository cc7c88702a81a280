"""The files that a mailbox writes about a message: its ack, its task state, the reply, and raw copies."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from activities.mailbox.folder import ARCHIVE, DEAD, PENDING, PROCESSED, TASKS, MailFolder
from activities.mailbox.message import NotAMessage, read, written
from activities.mailbox.result import Result
from activities.run.outcome import files_of
from activities.storage.safe_dir import NotThere
from activities.storage.workspace import Workspace, folder_name
from contracts.mail.delivery import Ack, Letter, LetterEnding, Transition
from contracts.mail.message import MOST_MESSAGE, ReplyHead, ReplyStatus
from decisions.mailbox.ack import acked, duplicated, stated
from decisions.mailbox.task_file import is_of_another

MOST_BODY = 200 * 1024  # bytes of an outcome in its reply; a longer one is in a separate file
MOST_TOLD = 1024 * 1024  # bytes of an ack or state file that are read
ASKED = ".asked"  # the folder of open questions, by task
REQUEST = "human_intervention_request.json"
PAGE = "task.md"


@dataclass(frozen=True)
class Told:
    """Writes the files of a mailbox. All writes are idempotent. Methods raise OSError."""

    folder: MailFolder
    agent: str

    def ack(self, letter: Letter, status: Ack, details: str = "") -> None:
        self._acked(letter, lambda before: acked(before, letter, status, _now(), details))

    def duplicate(self, letter: Letter, details: str) -> None:
        self._acked(letter, lambda before: duplicated(before, letter, details, _now()))

    def _acked(self, letter: Letter, change: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
        """Change the message's ack file. If another message of the same id has one, use a second name."""
        if not letter.message_id or not letter.sha256:
            return
        stem = f"ack_{folder_name(letter.message_id)}"
        names = (f"{stem}.json", f"{stem}.{letter.sha256[:12]}.json")
        self._change(letter.plan, names, lambda ack: ack.get("sha256") == letter.sha256, change)

    def state(self, letter: Letter, *added: Transition) -> None:
        if letter.is_reply or not letter.task_id or letter.delegation is not None:
            return
        stem = f"task_state_{stem_of(letter)}"
        ids = (letter.task_id, letter.subtask_id)
        self._change(
            letter.plan,
            (f"{stem}.json", f"{stem}.{letter.task[:8]}.json"),
            lambda state: (state.get("task_id"), state.get("subtask_id")) == ids,
            lambda before: stated(before, letter, *added),
        )

    def _change(
        self,
        plan: str,
        names: tuple[str, str],
        is_own: Callable[[dict[str, Any]], bool],
        change: Callable[[dict[str, Any] | None], dict[str, Any]],
    ) -> None:
        below, outgoing = self.folder.below, self.folder.outgoing
        with below.locked(outgoing, plan):
            for name in names:
                before = self._read(outgoing, plan, name)
                if before is None or is_own(before) or name == names[-1]:
                    after = change(before if before and is_own(before) else None)
                    if after != before:
                        below.write(_json(after), outgoing, plan, name)
                    return

    def _read(self, *names: str) -> dict[str, Any] | None:
        """Return the contents of a JSON file, if it exists; empty if it is not an object."""
        try:
            value = json.loads(self.folder.below.read(*names, most=MOST_TOLD))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def raw(self, letter: Letter, data: bytes) -> None:
        """Archive a message as it arrived. Another message about the same task gets a second name."""
        kind = "-reply" if letter.is_reply else ""
        suffix = ".json" if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else ".md"
        self._archive(letter.plan, f"{stem_of(letter)}{kind}", suffix, data)

    def _archive(self, plan: str, stem: str, suffix: str, data: bytes) -> None:
        below = self.folder.below
        for name in (f"{stem}{suffix}", f"{stem}.{sha256(data).hexdigest()[:12]}{suffix}"):
            try:
                below.create(data, ARCHIVE, plan, name)
            except FileExistsError:
                if below.read(ARCHIVE, plan, name, most=MOST_MESSAGE) == data:
                    return
            else:
                return

    def reply(self, letter: Letter, result: Result, workspace: Workspace | None) -> None:
        """Write the reply: the result of a task, and the files that its run produced."""
        stem, body, files = stem_of(letter), result.text, list[str]()
        if len(body.encode(errors="replace")) > MOST_BODY:
            files.append(f"{stem}-files/outcome.md")
            self.folder.below.write(body.encode(errors="replace"), self.folder.outgoing, letter.plan, *_parts(files[0]))
            body = f"{body[: MOST_BODY // 8]}\n\n… The full text is in {files[0]}."
        if workspace is not None:
            files += self._copied(letter.plan, f"{stem}-files", result.artifacts, workspace)
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
        data = written(head, body if body.endswith("\n") else f"{body}\n").encode(errors="replace")
        self._archive(letter.plan, f"{stem}-reply", ".md", data)
        self.send(letter, data)

    def _copied(self, plan: str, into: str, names: tuple[str, ...], workspace: Workspace) -> list[str]:
        """Copy the named regular files of a workspace. Return their paths."""
        copied: list[str] = []
        for path, data in files_of(workspace, names):
            target = f"{into}/{path}"
            self.folder.below.write(data, self.folder.outgoing, plan, *_parts(target))
            copied.append(target)
        return copied

    def send(self, letter: Letter, data: bytes) -> None:
        """Write a reply into the outgoing folder, once."""
        below, outgoing = self.folder.below, self.folder.outgoing
        stem = stem_of(letter)
        with below.locked(outgoing, letter.plan):
            for name in (f"{stem}-reply.md", f"{stem}-reply.{letter.task[:8]}.md"):
                try:
                    before = below.read(outgoing, letter.plan, name, most=MOST_MESSAGE)
                except FileNotFoundError:
                    before = None
                if before == data:
                    return
                is_last = name != f"{stem}-reply.md"
                if before is None or is_last or _is_about(before, letter):
                    below.write(data, outgoing, letter.plan, name)
                    return

    def sent_before(self, letter: Letter, run_id: str) -> bytes | None:
        """Return the archived reply of this run, if any."""
        below, stem = self.folder.below, stem_of(letter)
        for name in below.names(ARCHIVE, letter.plan):
            if name.startswith(f"{stem}-reply.") and name.endswith(".md"):
                data = below.read(ARCHIVE, letter.plan, name, most=MOST_MESSAGE)
                with suppress(NotAMessage):
                    head, _ = read(data, letter.plan)
                    if isinstance(head, ReplyHead) and head.run_id == run_id and head.sender == self.agent:
                        return data
        return None

    def away(self, letter: Letter, ending: LetterEnding) -> None:
        """Move the message's file to `.processed/` or `.deadletter/`."""
        is_well = ending.ack is Ack.succeeded
        if letter.file:
            reason = None if is_well else _reason(ending.details, ending.fault)
            self.folder.keep(letter.plan, letter.file, PROCESSED if is_well else DEAD, reason)

    def buried(self, letter: Letter, reason: str) -> None:
        self.folder.keep(letter.plan, letter.file, DEAD, _reason(reason, None))

    def is_pending(self, letter: Letter) -> bool:
        return self.folder.below.status(self.folder.incoming, letter.plan, PENDING, letter.file) is not None

    def ask(self, letter: Letter, run_id: str, undecided: dict[str, tuple[str, ...]]) -> None:
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
            "at": _when(_now()),
        }
        with self.place(letter) as task:
            before = self._read(TASKS, task, REQUEST)
            if before is None or before.get("run_id") != run_id:
                self.folder.below.write(_json(question), TASKS, task, REQUEST)
            self.folder.below.write(_json(question), TASKS, ASKED, task)

    @contextmanager
    def place(self, letter: Letter) -> Iterator[str]:
        """Lock and return the task's folder below `tasks/`.

        Tasks of two plans may share a name: the first one keeps it, the other gets a second name.
        """
        usual, other = _places(letter)
        with self.folder.below.locked(TASKS, usual):
            is_other = self.folder.below.status(TASKS, other) is not None or self._is_of_another(usual, letter)
            yield other if is_other else usual

    def _is_of_another(self, task: str, letter: Letter) -> bool:
        question = self.question(task)
        own = {"plan_id": letter.plan_id, "task_id": letter.task_id, "subtask_id": letter.subtask_id}
        if question and any(question.get(name) != value for name, value in own.items()):
            return True
        with suppress(NotThere):  # nor can it have a page
            return is_of_another(self.page(task), letter)
        return False

    def page(self, task: str) -> bytes:
        """Return the task's page, or empty bytes."""
        with suppress(FileNotFoundError):
            return self.folder.below.read(TASKS, task, PAGE, most=MOST_MESSAGE)
        return b""

    def asked(self) -> list[str]:
        """Return the folders of the tasks that wait for a person."""
        return [name for name in self.folder.below.names(TASKS, ASKED) if not name.startswith(".")]

    def question(self, task: str) -> dict[str, Any]:
        """Return the question as it was asked, regardless of edits to the request. Empty if it is not known."""
        return self._read(TASKS, ASKED, task) or {}

    def request(self, task: str) -> dict[str, Any] | None:
        """Return the request as it is on disk, if it exists; empty if it is incomplete or not valid."""
        status = self.folder.below.status(TASKS, task, REQUEST)
        if status is None:
            return None
        return self._read(TASKS, task, REQUEST) if status.st_size <= MOST_TOLD else {}

    def note(self, task: str, request: dict[str, Any]) -> None:
        self.folder.below.write(_json(request), TASKS, task, REQUEST)

    def ask_again(self, task: str, request: dict[str, Any]) -> None:
        """Write a removed request again. An existing one stays."""
        with suppress(FileExistsError):
            self.folder.below.create(_json(request), TASKS, task, REQUEST)

    def over(self, letter: Letter) -> None:
        """Remove the questions of this message."""
        for task in _places(letter):
            if self.question(task).get("key") == letter.key:
                self.answered(task)

    def answered(self, task: str) -> None:
        self.folder.below.remove(TASKS, task, REQUEST)
        self.folder.below.remove(TASKS, ASKED, task)


def stem_of(letter: Letter) -> str:
    """Return the stem of the names of a task's files."""
    sub = f"-{folder_name(letter.subtask_id)}" if letter.subtask_id else ""
    return f"{folder_name(letter.task_id)}{sub}"


def _places(letter: Letter) -> tuple[str, str]:
    """Return the two candidates for a task's folder below `tasks/`."""
    stem = stem_of(letter)
    return stem, f"{stem}.{letter.task[:8]}"


def _is_about(data: bytes, letter: Letter) -> bool:
    try:
        head, _ = read(data, letter.plan)
    except NotAMessage:
        return False
    return (head.task_id, head.subtask_id) == (letter.task_id, letter.subtask_id)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _reason(reason: str, error: str | None) -> bytes:
    return _json({"why": reason, **({"fault": error} if error else {}), "at": _when(_now())})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode(errors="replace") + b"\n"


def _now() -> datetime:
    return datetime.now(UTC)


def _when(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
