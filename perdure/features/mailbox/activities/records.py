"""The memory of a folder, in `.records/`: the open messages of each task, all its messages, and its result.

A file for each task, in subfolders by the first digits of its digest. A name in `open/` stands for each task with open
messages: written before the record has one, and removed after it has none.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

from pydantic import ValidationError

from perdure.activities.storage.workspace import SafeDir
from perdure.features.mailbox.contract import InboxMessage, TaskRecord

RECORDS, OPEN = ".records", "open"
MAX_RECORD = 4 * 1024 * 1024  # bytes


class TaskRecords:
    """The records of a folder. Methods raise OSError."""

    def __init__(self, below: SafeDir) -> None:
        self._below = below

    def read(self, task: str) -> TaskRecord:
        """Return the record of a task. One that cannot be read any more is a new one."""
        with suppress(FileNotFoundError, ValidationError):
            data = self._below.read(RECORDS, task[:2], f"{task}.json", most=MAX_RECORD)
            return TaskRecord.model_validate_json(data)
        return TaskRecord()

    def update(self, task: str, change: Callable[[TaskRecord], TaskRecord]) -> TaskRecord:
        """Change the record of a task. Processes take turns."""
        with self._below.lock_folder(RECORDS, task[:2]):
            before = self.read(task)
            after = change(before)
            if after == before:
                return after
            if after.open and not before.open:
                with suppress(FileExistsError):
                    self._below.create(b"", RECORDS, OPEN, task)
            self._below.write(after.model_dump_json().encode(), RECORDS, task[:2], f"{task}.json")
            if before.open and not after.open:
                self._below.remove(RECORDS, OPEN, task)
            return after

    def open_messages(self) -> Iterator[InboxMessage]:
        """Yield all open messages."""
        for task in self._below.names(RECORDS, OPEN):
            if not task.startswith("."):
                yield from self.read(task).open
