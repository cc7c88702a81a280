"""A mailbox's folder: its identity, the files that arrived, and the moves of each file.

A claim is a rename: of several claimants one gets the file, under a name that is never used again.
"""

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from perdure.activities.storage.workspace import SafeDir, WrongFileTypeError
from perdure.contracts.models import is_utf8
from perdure.features.mailbox.activities.message import (
    MAX_PENDING,
    RestTracker,
    envelope_of,
    is_skipped,
    message_size_error,
    new_name,
    reason_of,
)
from perdure.features.mailbox.activities.records import RECORDS
from perdure.features.mailbox.contract import MAX_MESSAGE_BYTES

PENDING, PROCESSED, DEAD = ".pending", ".processed", ".deadletter"
IDENTITY, DELIVERIES, STATE = ".mailbox.json", "deliveries.jsonl", "agent_state.json"
INPUTS, ARCHIVE, TASKS = "inputs", "archive", "tasks"
MAX_SCANNED = 5000  # names of a plan's folder that one scan reads without a result
MAX_PLANS = 10_000
CROWD = f"only {MAX_PLANS:,} plans are read, and there are more"
MAX_LEFT_OPEN = 64  # plans whose listing continues in the next scan
_OVER = object()  # the end of a plan's listing
# Errors of the whole folder or the machine. All other errors of a claim belong to its plan.
_OF_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_CLAIMED = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}~")

_log = logging.getLogger(__name__)


class MailFolderError(OSError):
    """The folder cannot be this agent's mailbox. The message is one line."""


@dataclass(frozen=True)
class ArrivedFile:
    """A file that arrived. `fault` is the reason why it is not a message, if its metadata shows that."""

    plan: str
    name: str
    fault: str | None = None


@dataclass(frozen=True, order=True)
class ClaimedFile:
    """A file in `.pending/`, under its own new name."""

    plan: str
    file: str
    fault: str | None = field(default=None, compare=False)


@dataclass
class MailFolder:
    """The folder of an agent. An `outside` agent writes its messages to `outbox/` and reads them from `inbox/`.

    Methods raise OSError.
    """

    root: Path
    agent: str
    outside: bool = False
    id: str = ""
    is_through: bool = True  # the latest scan has seen all files
    has_fresh: bool = False  # and skipped files that may still be being written
    wake: Callable[[], None] = field(default=lambda: None)  # wakes the bridge
    rests: RestTracker = field(default_factory=RestTracker)
    undone: str = ""  # the latest step that failed, and why
    refused: dict[str, str] = field(default_factory=dict)  # by folder, why its files cannot be read
    _scans: dict[str, Iterator[ArrivedFile | None]] = field(default_factory=dict)
    _unclaimed: dict[str, dict[str, None]] = field(default_factory=dict)  # by plan, the least recently tried file first
    _last: str = ""
    _lead: tuple[int, tuple[int, int]] | None = None  # the locked folder: its descriptor, device and inode

    @property
    def below(self) -> SafeDir:
        return SafeDir(self.root)

    @property
    def has_unclaimed(self) -> bool:
        """Return whether files could not be claimed. No event reports when they can be."""
        return any(self._unclaimed.values())

    @property
    def incoming(self) -> str:
        return "outbox" if self.outside else "inbox"

    @property
    def outgoing(self) -> str:
        return "inbox" if self.outside else "outbox"

    def open_folder(self) -> None:
        """Create the missing folders, and read or create the folder's permanent id. Raises MailFolderError."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for name in (self.incoming, self.outgoing, INPUTS, TASKS, ARCHIVE):
                with self.below.open_folder(name, create=True):
                    pass
        except FileExistsError:
            raise MailFolderError(f"{self.root} is not a folder") from None
        except WrongFileTypeError as error:
            raise MailFolderError(f"{self.root}: {error.filename}: {error.strerror}") from None
        self._set_identity()

    def _set_identity(self) -> None:
        identity = {"id": self.id or secrets.token_hex(8), "agent": self.agent}
        try:
            self.below.create(json.dumps(identity).encode() + b"\n", IDENTITY)
        except FileExistsError:
            identity = self._read_identity()
        if identity["agent"] != self.agent:
            raise MailFolderError(f"{self.root} is the mailbox of agent {identity['agent']!r}, not of {self.agent!r}")
        if self.id not in ("", identity["id"]):
            raise MailFolderError(f"{self.root} has become another mailbox, {identity['id']}: restart this bridge")
        self.id = identity["id"]

    def check_identity(self) -> None:
        """Check that the folder is still the same mailbox; restore a removed identity. Raises MailFolderError."""
        if not self.root.is_dir():
            self.open_folder()
        self._set_identity()

    def _read_identity(self) -> dict[str, str]:
        try:
            stored = json.loads(self.below.read(IDENTITY, most=4096))
            if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", stored["id"]) and isinstance(stored["agent"], str):
                return {"id": stored["id"], "agent": stored["agent"]}
        except (ValueError, KeyError, TypeError):
            pass
        where = self.root / IDENTITY
        raise MailFolderError(f"{where} is not a valid mailbox identity: remove it, and a new one is created")

    def lead(self) -> bool:
        """Return whether this bridge serves the folder: of several, the one that has locked it.

        The kernel releases the lock if the process dies.
        """
        with self.below.open_folder(RECORDS, create=True) as folder:
            status = os.fstat(folder)
            place = status.st_dev, status.st_ino
            if self._lead is not None and self._lead[1] == place:
                return True
            self.resign()
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._lead = os.dup(folder), place
            return True

    def resign(self) -> None:
        """Let another bridge serve the folder."""
        if self._lead is not None:
            os.close(self._lead[0])
            self._lead = None

    def scan(self, limit: int) -> list[ArrivedFile]:
        """Return up to `limit` files that arrived, from the plans in turn. Continues after the previous scan."""
        self.has_fresh = False
        try:
            plans = self.list_plans()
        except FileNotFoundError:
            self.open_folder()
            plans = []
        self._scans = {plan: scan for plan, scan in self._scans.items() if plan in set(plans)}
        self._unclaimed = {plan: names for plan, names in self._unclaimed.items() if plan in set(plans)}
        existing = {*plans, CROWD}
        self.refused = {name: reason for name, reason in self.refused.items() if name.partition("/")[0] in existing}
        earlier = set(self._scans)  # their listings may miss files that arrived after they began
        waiting = deque(sorted(plans, key=lambda plan: plan <= self._last))  # the plans after the last one first
        arrived, ended = list[ArrivedFile](), set[str]()
        self.is_through = True
        while waiting and len(arrived) < limit:
            plan = waiting.popleft()
            item = next(self._scans.setdefault(plan, self._scan_plan(plan)), _OVER)
            if isinstance(item, ArrivedFile):
                arrived.append(item)
                self._last = plan
                waiting.append(plan)
            elif item is None:
                self.is_through = self.is_through and plan in ended
            else:
                del self._scans[plan]
                if plan in earlier and plan not in ended:
                    waiting.append(plan)
                ended.add(plan)
        self.is_through = self.is_through and not waiting
        for plan in list(self._scans)[MAX_LEFT_OPEN:]:
            del self._scans[plan]
        return arrived

    def list_plans(self) -> list[str]:
        with self.below.open_folder(self.incoming) as folder, os.scandir(folder) as entries:
            visible = (entry.name for entry in entries if not entry.name.startswith(".") and is_utf8(entry.name))
            names = list(islice(visible, MAX_PLANS + 1))
        if len(names) <= MAX_PLANS:
            self.refused.pop(CROWD, None)
        elif CROWD not in self.refused:
            self.refused[CROWD] = f"{CROWD}: move finished plans away"
            _log.warning("%s/%s: %s", self.root, self.incoming, self.refused[CROWD])
        return sorted(names[:MAX_PLANS])

    def _scan_plan(self, plan: str) -> Iterator[ArrivedFile | None]:
        """Yield the files that arrived for a plan, and `None` after each `MAX_SCANNED` other names.

        Of the files that could not be claimed, one is retried. If that works, the next scan yields the others.
        """
        before = list(self._unclaimed.get(plan, ()))
        remaining = set[str]()
        try:
            with self.below.open_folder(self.incoming, plan) as folder, os.scandir(folder) as entries:
                skipped = 0
                for entry in entries:
                    skipped += 1
                    if skipped % MAX_SCANNED == 0:
                        yield None
                    if self._is_skipped(entry.name):
                        continue
                    if entry.name in self._unclaimed.get(plan, ()):
                        remaining.add(entry.name)
                        if [entry.name] != before[:1]:
                            continue
                    if (status := self._at_rest(plan, entry)) is not None:
                        skipped = 0
                        yield ArrivedFile(plan, entry.name, _file_error(status))
        except (FileNotFoundError, WrongFileTypeError):
            return  # it is gone, or not a folder: other files next to the plans are ignored
        except PermissionError as error:
            self._refuse_folder(plan, f"{plan}: {format_os_error(error)}", error)
        else:
            self._settle_plan(plan, set(before) - remaining)

    def _at_rest(self, plan: str, entry: "os.DirEntry[str]") -> os.stat_result | None:
        """Return the status of a file, unless it is gone or may still be being written."""
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not self.rests.is_at_rest(f"{self.incoming}/{plan}/{entry.name}", status):
            self.has_fresh = True
            return None
        return status

    def _settle_plan(self, plan: str, gone: set[str]) -> None:
        """Drop files that are gone from the unclaimed ones. A plan without unclaimed files is not refused any more."""
        unclaimed = self._unclaimed.get(plan, {})
        for name in gone:
            unclaimed.pop(name, None)
        if not unclaimed:
            self.refused.pop(plan, None)

    def _refuse_folder(self, where: str, reason: str, error: OSError) -> None:
        """Record and log, once, why a plan's files cannot be read. Other plans are not affected."""
        reason += ": let the bridge's user read, write and enter it" if isinstance(error, PermissionError) else ""
        if self.refused.get(where) != reason:
            _log.warning("%s: %s", self.root, reason)
        self.refused[where] = reason

    def _is_skipped(self, name: str) -> bool:
        own = self.outside and name.startswith(("ack_", "task_state_")) and name.endswith(".json")
        return own or is_skipped(name)

    def claim(self, arrived: ArrivedFile) -> ClaimedFile | None:
        """Claim a file, unless another process was faster or its plan refuses, which is logged and retried.

        Raises OSError for errors that affect all plans.
        """
        try:
            claimed = self._claim_file(arrived)
        except FileNotFoundError:
            return None  # its plan is gone
        except OSError as error:
            if error.errno in _OF_ALL:
                raise
            unclaimed = self._unclaimed.setdefault(arrived.plan, {})
            unclaimed.pop(arrived.name, None)
            unclaimed[arrived.name] = None
            where = f"{arrived.plan}/{PENDING}" if error.filename == PENDING else arrived.plan
            self._refuse_folder(
                arrived.plan, f"{where}: {format_os_error(OSError(error.errno, error.strerror))}", error
            )
            return None
        if arrived.name in self._unclaimed.get(arrived.plan, {}):
            del self._unclaimed[arrived.plan]
            self.is_through = False
        return claimed

    def _claim_file(self, arrived: ArrivedFile) -> ClaimedFile | None:
        file = new_name(arrived.name)
        with (
            self.below.open_folder(self.incoming, arrived.plan) as start,
            self.below.open_folder(self.incoming, arrived.plan, PENDING, create=True) as end,
        ):
            try:
                os.rename(arrived.name, file, src_dir_fd=start, dst_dir_fd=end)
            except FileNotFoundError:
                return None
            self._fetch_envelope(arrived.name, file, start, end)
        return ClaimedFile(arrived.plan, file, arrived.fault)

    def _fetch_envelope(self, name: str, file: str, start: int, end: int) -> None:
        try:
            status = os.stat(envelope_of(name), dir_fd=start, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                os.rename(envelope_of(name), envelope_of(file), src_dir_fd=start, dst_dir_fd=end)
        except OSError:  # it is missing or not readable: the message is claimed without it
            return

    def settle_claims(self, plans: set[str]) -> None:
        """Sync the claims in these plans to disk. After a crash, a file that arrives again is recognized."""
        for plan in plans:
            for names in ((PENDING,), ()):
                with suppress(OSError), self.below.open_folder(self.incoming, plan, *names) as folder:
                    os.fsync(folder)

    def is_put_away(self, claimed: ClaimedFile) -> bool:
        """Return whether a file has moved from `.pending/` to its destination."""
        places = ((self.incoming, claimed.plan, where, claimed.file) for where in (PROCESSED, DEAD))
        return any(self.below.status(*place) is not None for place in places)

    def pending_files(self) -> Iterator[ClaimedFile]:
        """Yield all claimed files, also those of other processes."""
        for plan in self.list_plans():
            try:
                names = self.below.names(self.incoming, plan, PENDING)
                for name in names:
                    if not is_skipped(name) and (claimed := self._pending_file(plan, name)) is not None:
                        yield claimed
                self.refused.pop(f"{plan}/{PENDING}", None)
            except PermissionError as error:
                self._refuse_folder(f"{plan}/{PENDING}", f"{plan}/{PENDING}: {format_os_error(error)}", error)
            except WrongFileTypeError:
                continue

    def _pending_file(self, plan: str, name: str) -> ClaimedFile | None:
        """Return a file in `.pending/`. A name that is too long, or not UTF-8, is replaced."""
        status = self.below.status(self.incoming, plan, PENDING, name)
        if status is None:
            return None
        if not is_utf8(name) or len(os.fsencode(name)) > MAX_PENDING:
            name, old = new_name(name), name
            self._move_file(plan, (PENDING, old), (PENDING, name))
        return ClaimedFile(plan, name, _file_error(status))

    def read_message_file(self, plan: str, file: str) -> bytes:
        """Return a message in `.pending/`. Raises FileNotFoundError."""
        return self.below.read(self.incoming, plan, PENDING, file, most=MAX_MESSAGE_BYTES)

    def read_envelope_file(self, plan: str, file: str, limit: int) -> bytes | None:
        try:
            return self.below.read(self.incoming, plan, PENDING, envelope_of(file), most=limit)
        except (FileNotFoundError, WrongFileTypeError):
            return None

    def put_away(self, plan: str, file: str, where: str, reason: bytes | None = None) -> None:
        """Move a file and its envelope from `.pending/` to `.processed/` or `.deadletter/`, with a reason file."""
        if reason is not None and self.has_pending_file(plan, file):
            self.below.write(reason, self.incoming, plan, where, reason_of(file))
        for name in (file, envelope_of(file)):
            self._move_file(plan, (PENDING, name), (where, name))

    def has_pending_file(self, plan: str, file: str) -> bool:
        return self.below.status(self.incoming, plan, PENDING, file) is not None

    def unclaimed_files(self) -> Iterator[tuple[str, str]]:
        """Yield the plan and name of each file that has arrived and is not claimed."""
        for plan in self.list_plans():
            with suppress(WrongFileTypeError):  # other files next to the plans are ignored
                yield from (
                    (plan, name) for name in self.below.names(self.incoming, plan) if not self._is_skipped(name)
                )

    def dead_letters(self) -> Iterator[tuple[str, str]]:
        """Yield the plan and name of each dead letter."""
        for plan in self.list_plans():
            with suppress(WrongFileTypeError):
                for file in self.below.names(self.incoming, plan, DEAD):
                    if not file.endswith((".reason.json", ".envelope.json")):
                        yield plan, file

    def dead_letter_reason(self, plan: str, file: str) -> str:
        """Return the recorded reason of a dead letter."""
        try:
            stored = json.loads(self.below.read(self.incoming, plan, DEAD, reason_of(file), most=MAX_MESSAGE_BYTES))
            return str(stored["why"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "no reason recorded"

    def restore_file(self, plan: str, file: str) -> None:
        """Move a dead letter back, as a file that has just arrived."""
        own = _CLAIMED.sub("", file, count=1)
        if self.below.status(self.incoming, plan, own) is not None:
            own = f"{secrets.token_hex(3)}-{own}"
        if self.below.status(self.incoming, plan, DEAD, file) is None:
            self.below.remove(self.incoming, plan, DEAD, reason_of(file))
            return
        self._move_file(plan, (DEAD, envelope_of(file)), (envelope_of(own),))
        self._move_file(plan, (DEAD, file), (own,))
        self.below.remove(self.incoming, plan, DEAD, reason_of(file))

    def _move_file(self, plan: str, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        try:
            self.below.move((self.incoming, plan, *source), (self.incoming, plan, *target))
        except FileExistsError:  # another file: nothing is overwritten
            other = f"{target[-1]}.{secrets.token_hex(3)}"
            self.below.move((self.incoming, plan, *source), (self.incoming, plan, *target[:-1], other))
        except FileNotFoundError:  # the folder is gone, and the file with it
            return


def _file_error(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    return message_size_error(status.st_size) if status.st_size > MAX_MESSAGE_BYTES else None


def format_os_error(error: OSError) -> str:
    """Return the error as one line for a person."""
    reasons = {errno.ENOSPC: "the disk is full", errno.EROFS: "it is read-only", errno.EACCES: "no permission"}
    where = f": {error.filename}" if error.filename else ""
    line = f"{reasons.get(error.errno or 0, error.strerror or str(error))}{where}"
    return " ".join(line.encode(errors="replace").decode().split())
