"""A mailbox's folder: its identity, the files that arrived, and the moves of each file.

A claim is a rename: of several claimants one gets the file, under a name that is never used again.
"""

import errno
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

from activities.mailbox.message import MOST_PENDING, envelope_of, is_skipped, new_name, reason_of, too_large
from activities.mailbox.rest import Rests
from activities.storage.safe_dir import Beneath, NotThere
from contracts.mail.message import MOST_MESSAGE
from contracts.models import is_utf8

PENDING, PROCESSED, DEAD = ".pending", ".processed", ".deadletter"
IDENTITY, DELIVERIES, STATE, INPUTS, ARCHIVE, TASKS = (
    ".mailbox.json",
    "deliveries.jsonl",
    "agent_state.json",
    "inputs",
    "archive",
    "tasks",
)
MOST_LOOKED = 5000  # names of a plan's folder that one scan reads without a result
MOST_PLANS = 10_000
CROWD = f"only {MOST_PLANS:,} plans are read, and there are more"
MOST_LEFT_OPEN = 64  # plans whose listing continues in the next scan
_OVER = object()  # the end of a plan's listing
# Errors of the whole folder or the machine. All other errors of a claim belong to its plan.
_OF_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_CLAIMED = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}~")

_log = logging.getLogger(__name__)


class NotAMailbox(OSError):
    """The folder cannot be this agent's mailbox. The message is one line."""


@dataclass(frozen=True)
class Found:
    """A file that arrived. `fault` is the reason why it is not a message, if its metadata shows that."""

    plan: str
    name: str
    fault: str | None = None


@dataclass(frozen=True)
class Claimed:
    """A file in `.pending/`, under its own new name."""

    plan: str
    file: str
    fault: str | None = None


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
    rests: Rests = field(default_factory=Rests)
    undone: str = ""  # the latest order that failed, and why
    refused: dict[str, str] = field(default_factory=dict)  # by folder, why its files cannot be read
    _looks: dict[str, Iterator[Found | None]] = field(default_factory=dict)
    _unclaimed: dict[str, dict[str, None]] = field(default_factory=dict)  # by plan, the least recently tried file first
    _last: str = ""

    @property
    def below(self) -> Beneath:
        return Beneath(self.root)

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

    def open(self) -> None:
        """Create the missing folders, and read or create the folder's permanent id. Raises NotAMailbox."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for name in (self.incoming, self.outgoing, INPUTS, TASKS, ARCHIVE):
                with self.below.folder(name, create=True):
                    pass
        except FileExistsError:
            raise NotAMailbox(f"{self.root} is not a folder") from None
        except NotThere as error:
            raise NotAMailbox(f"{self.root}: {error.filename}: {error.strerror}") from None
        self._identify()

    def _identify(self) -> None:
        identity = {"id": self.id or secrets.token_hex(8), "agent": self.agent}
        try:
            self.below.create(json.dumps(identity).encode() + b"\n", IDENTITY)
        except FileExistsError:
            identity = self._identity()
        if identity["agent"] != self.agent:
            raise NotAMailbox(f"{self.root} is the mailbox of agent {identity['agent']!r}, not of {self.agent!r}")
        if self.id not in ("", identity["id"]):  # its orders would go to a task queue that this bridge does not poll
            raise NotAMailbox(f"{self.root} has become another mailbox, {identity['id']}: restart this bridge")
        self.id = identity["id"]

    def check(self) -> None:
        """Check that the folder is still the same mailbox; restore a removed identity. Raises NotAMailbox."""
        if not self.root.is_dir():
            self.open()
        self._identify()

    def _identity(self) -> dict[str, str]:
        try:
            stored = json.loads(self.below.read(IDENTITY, most=4096))
            if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", stored["id"]) and isinstance(stored["agent"], str):
                return {"id": stored["id"], "agent": stored["agent"]}
        except (ValueError, KeyError, TypeError):
            pass
        raise NotAMailbox(
            f"{self.root / IDENTITY} is not a valid mailbox identity: remove it, and a new one is created"
        )

    def scan(self, limit: int) -> list[Found]:
        """Return up to `limit` files that arrived, from the plans in turn. Continues after the previous scan."""
        self.has_fresh = False
        try:
            plans = self.plans()
        except FileNotFoundError:
            self.open()
            plans = []
        self._looks = {plan: look for plan, look in self._looks.items() if plan in set(plans)}
        self._unclaimed = {plan: names for plan, names in self._unclaimed.items() if plan in set(plans)}
        existing = {*plans, CROWD}
        self.refused = {name: reason for name, reason in self.refused.items() if name.partition("/")[0] in existing}
        earlier = set(self._looks)  # their listings may miss files that arrived after they began
        waiting = deque(
            [*(plan for plan in plans if plan > self._last), *(plan for plan in plans if plan <= self._last)]
        )
        arrived, ended = list[Found](), set[str]()
        self.is_through = True
        while waiting and len(arrived) < limit:
            plan = waiting.popleft()
            item = next(self._looks.setdefault(plan, self._look(plan)), _OVER)
            if isinstance(item, Found):
                arrived.append(item)
                self._last = plan
                waiting.append(plan)
            elif item is None:
                self.is_through = self.is_through and plan in ended
            else:
                del self._looks[plan]
                if plan in earlier and plan not in ended:
                    waiting.append(plan)
                ended.add(plan)
        self.is_through = self.is_through and not waiting
        for plan in list(self._looks)[MOST_LEFT_OPEN:]:
            del self._looks[plan]
        return arrived

    def plans(self) -> list[str]:
        with self.below.folder(self.incoming) as folder, os.scandir(folder) as entries:
            visible = (entry.name for entry in entries if not entry.name.startswith(".") and is_utf8(entry.name))
            names = list(islice(visible, MOST_PLANS + 1))
        if len(names) <= MOST_PLANS:
            self.refused.pop(CROWD, None)
        elif CROWD not in self.refused:
            self.refused[CROWD] = f"{CROWD}: move finished plans away"
            _log.warning("%s/%s: %s", self.root, self.incoming, self.refused[CROWD])
        return sorted(names[:MOST_PLANS])

    def _look(self, plan: str) -> Iterator[Found | None]:
        """Yield the files that arrived for a plan, and `None` after each `MOST_LOOKED` other names.

        Of the files that could not be claimed, one is retried. If that works, the next scan yields the others.
        """
        before = list(self._unclaimed.get(plan, ()))
        remaining = set[str]()
        try:
            with self.below.folder(self.incoming, plan) as folder, os.scandir(folder) as entries:
                skipped = 0
                for entry in entries:
                    skipped += 1
                    if skipped % MOST_LOOKED == 0:
                        yield None
                    if self._is_skipped(entry.name):
                        continue
                    if entry.name in self._unclaimed.get(plan, ()):
                        remaining.add(entry.name)
                        if [entry.name] != before[:1]:
                            continue
                    if (status := self._at_rest(plan, entry)) is not None:
                        skipped = 0
                        yield Found(plan, entry.name, _fault(status))
        except (FileNotFoundError, NotThere):
            return  # it is gone, or not a folder: other files next to the plans are ignored
        except PermissionError as error:
            self._refuse(plan, f"{plan}: {told(error)}", error)
        else:
            self._settle(plan, set(before) - remaining)

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

    def _settle(self, plan: str, gone: set[str]) -> None:
        """Drop files that are gone from the unclaimed ones. A plan without unclaimed files is not refused any more."""
        unclaimed = self._unclaimed.get(plan, {})
        for name in gone:
            unclaimed.pop(name, None)
        if not unclaimed:
            self.refused.pop(plan, None)

    def _refuse(self, where: str, reason: str, error: OSError) -> None:
        """Record and log, once, why a plan's files cannot be read. Other plans are not affected."""
        reason += ": let the bridge's user read, write and enter it" if isinstance(error, PermissionError) else ""
        if self.refused.get(where) != reason:
            _log.warning("%s: %s", self.root, reason)
        self.refused[where] = reason

    def _is_skipped(self, name: str) -> bool:
        own = self.outside and name.startswith(("ack_", "task_state_")) and name.endswith(".json")
        return own or is_skipped(name)

    def claim(self, arrived: Found) -> Claimed | None:
        """Claim a file, unless another process was faster or its plan refuses, which is logged and retried.

        Raises OSError for errors that affect all plans.
        """
        try:
            claimed = self._claim(arrived)
        except FileNotFoundError:
            return None  # its plan is gone
        except OSError as error:
            if error.errno in _OF_ALL:
                raise
            unclaimed = self._unclaimed.setdefault(arrived.plan, {})
            unclaimed.pop(arrived.name, None)
            unclaimed[arrived.name] = None
            where = f"{arrived.plan}/{PENDING}" if error.filename == PENDING else arrived.plan
            self._refuse(arrived.plan, f"{where}: {told(OSError(error.errno, error.strerror))}", error)
            return None
        if arrived.name in self._unclaimed.get(arrived.plan, {}):
            del self._unclaimed[arrived.plan]
            self.is_through = False
        return claimed

    def _claim(self, arrived: Found) -> Claimed | None:
        file = new_name(arrived.name)
        with (
            self.below.folder(self.incoming, arrived.plan) as start,
            self.below.folder(self.incoming, arrived.plan, PENDING, create=True) as end,
        ):
            try:
                os.rename(arrived.name, file, src_dir_fd=start, dst_dir_fd=end)
            except FileNotFoundError:
                return None
            self._fetch_envelope(arrived.name, file, start, end)
        return Claimed(arrived.plan, file, arrived.fault)

    def _fetch_envelope(self, name: str, file: str, start: int, end: int) -> None:
        try:
            status = os.stat(envelope_of(name), dir_fd=start, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                os.rename(envelope_of(name), envelope_of(file), src_dir_fd=start, dst_dir_fd=end)
        except OSError:  # it is missing or not readable: the message is claimed without it
            return

    def settle_claims(self, plans: set[str]) -> None:
        """Sync the claims in these plans to disk.

        If that fails, a claimed file may arrive again after a crash, and the mailbox recognizes it.
        """
        for plan in plans:
            for names in ((PENDING,), ()):
                with suppress(OSError), self.below.folder(self.incoming, plan, *names) as folder:
                    os.fsync(folder)

    def is_put_away(self, plan: str, file: str) -> bool:
        """Return whether a file has moved from `.pending/` to its destination."""
        return any(self.below.status(self.incoming, plan, where, file) is not None for where in (PROCESSED, DEAD))

    def pending(self) -> Iterator[Claimed]:
        """Yield all claimed files, also those of other processes."""
        for plan in self.plans():
            try:
                names = self.below.names(self.incoming, plan, PENDING)
                for name in names:
                    if not is_skipped(name) and (claimed := self._pending(plan, name)) is not None:
                        yield claimed
                self.refused.pop(f"{plan}/{PENDING}", None)
            except PermissionError as error:
                self._refuse(f"{plan}/{PENDING}", f"{plan}/{PENDING}: {told(error)}", error)
            except NotThere:
                continue

    def _pending(self, plan: str, name: str) -> Claimed | None:
        """Return a file in `.pending/`. A name that is too long, or not UTF-8, is replaced."""
        status = self.below.status(self.incoming, plan, PENDING, name)
        if status is None:
            return None
        if not is_utf8(name) or len(os.fsencode(name)) > MOST_PENDING:
            name, old = new_name(name), name
            self._move(plan, (PENDING, old), (PENDING, name))
        return Claimed(plan, name, _fault(status))

    def read(self, plan: str, file: str) -> bytes:
        """Return a message in `.pending/`. Raises FileNotFoundError."""
        return self.below.read(self.incoming, plan, PENDING, file, most=MOST_MESSAGE)

    def envelope(self, plan: str, file: str, limit: int) -> bytes | None:
        try:
            return self.below.read(self.incoming, plan, PENDING, envelope_of(file), most=limit)
        except (FileNotFoundError, NotThere):
            return None

    def keep(self, plan: str, file: str, where: str, reason: bytes | None = None) -> None:
        """Move a file and its envelope from `.pending/` to `.processed/` or `.deadletter/`, with a reason file."""
        if reason is not None and self.below.status(self.incoming, plan, PENDING, file) is not None:
            self.below.write(reason, self.incoming, plan, where, reason_of(file))
        for name in (file, envelope_of(file)):
            self._move(plan, (PENDING, name), (where, name))

    def reason(self, plan: str, file: str) -> str:
        """Return the recorded reason of a dead letter."""
        try:
            stored = json.loads(self.below.read(self.incoming, plan, DEAD, reason_of(file), most=MOST_MESSAGE))
            return str(stored["why"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "no reason recorded"

    def restore(self, plan: str, file: str) -> None:
        """Move a dead letter back, as a file that has just arrived."""
        own = _CLAIMED.sub("", file, count=1)
        if self.below.status(self.incoming, plan, own) is not None:
            own = f"{secrets.token_hex(3)}-{own}"
        if self.below.status(self.incoming, plan, DEAD, file) is None:
            self.below.remove(self.incoming, plan, DEAD, reason_of(file))
            return
        self._move(plan, (DEAD, envelope_of(file)), (envelope_of(own),))
        self._move(plan, (DEAD, file), (own,))
        self.below.remove(self.incoming, plan, DEAD, reason_of(file))

    def _move(self, plan: str, source: tuple[str, ...], target: tuple[str, ...]) -> None:
        try:
            self.below.move((self.incoming, plan, *source), (self.incoming, plan, *target))
        except FileExistsError:  # another file: nothing is overwritten
            other = f"{target[-1]}.{secrets.token_hex(3)}"
            self.below.move((self.incoming, plan, *source), (self.incoming, plan, *target[:-1], other))
        except FileNotFoundError:  # the folder is gone, and the file with it
            return


def _fault(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    return too_large(status.st_size) if status.st_size > MOST_MESSAGE else None


def told(error: OSError) -> str:
    """Return the error as one line for a person."""
    reasons = {errno.ENOSPC: "the disk is full", errno.EROFS: "it is read-only", errno.EACCES: "no permission"}
    where = f": {error.filename}" if error.filename else ""
    line = f"{reasons.get(error.errno or 0, error.strerror or str(error))}{where}"
    return " ".join(line.encode(errors="replace").decode().split())
