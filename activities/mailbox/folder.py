"""A mailbox's folder: who it belongs to, what has come, and where each file goes.

Claiming is a rename: of several that try, one has the file, under a name that no other file ever has.
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
MOST_LOOKED = 5000  # names of a plan's folder that one scan looks at in vain
MOST_PLANS = 10_000
CROWD = f"only {MOST_PLANS:,} plans are looked at, and there are more"
MOST_LEFT_OPEN = 64  # plans whose listing is gone on with in the next scan
_OVER = object()  # of a plan's listing: its end
# What the whole folder or the machine lacks. All else that a claim meets is its plan's own.
_OF_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_CLAIMED = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}~")

_log = logging.getLogger(__name__)


class NotAMailbox(OSError):
    """The folder cannot be this agent's mailbox. The message is one line."""


@dataclass(frozen=True)
class Found:
    """A file that has come. `fault` says why it is no message, where that shows from outside."""

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
    """The folder of an agent. One that lives `outside` puts its messages into `outbox/`, and finds them in `inbox/`.

    Methods raise OSError for what the disk says.
    """

    root: Path
    agent: str
    outside: bool = False
    id: str = ""
    is_through: bool = True  # the latest scan has seen all there was
    has_fresh: bool = False  # and has left files that may still be being written
    wake: Callable[[], None] = field(default=lambda: None)  # has the bridge look, where it sleeps
    rests: Rests = field(default_factory=Rests)
    undone: str = ""  # the latest order that could not be carried out, and why
    refused: dict[str, str] = field(default_factory=dict)  # by folder, why what is in it cannot be had
    _looks: dict[str, Iterator[Found | None]] = field(default_factory=dict)
    _unclaimed: dict[str, dict[str, None]] = field(default_factory=dict)  # by plan; first what was tried longest ago
    _last: str = ""

    @property
    def below(self) -> Beneath:
        return Beneath(self.root)

    @property
    def has_unclaimed(self) -> bool:
        """Something has come that could not be claimed. No event tells when it can."""
        return any(self._unclaimed.values())

    @property
    def incoming(self) -> str:
        return "outbox" if self.outside else "inbox"

    @property
    def outgoing(self) -> str:
        return "inbox" if self.outside else "outbox"

    def open(self) -> None:
        """Makes the folders that are missing, and learns the folder's id, which stays. Raises NotAMailbox."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for name in (self.incoming, self.outgoing, INPUTS, TASKS, ARCHIVE):
                with self.below.folder(name, create=True):
                    pass
        except FileExistsError:
            raise NotAMailbox(f"{self.root} is no folder") from None
        except NotThere as error:
            raise NotAMailbox(f"{self.root}: {error.filename}: {error.strerror}") from None
        self._identify()

    def _identify(self) -> None:
        told = {"id": self.id or secrets.token_hex(8), "agent": self.agent}
        try:
            self.below.create(json.dumps(told).encode() + b"\n", IDENTITY)
        except FileExistsError:
            told = self._identity()
        if told["agent"] != self.agent:
            raise NotAMailbox(f"{self.root} is the mailbox of agent {told['agent']!r}, not of {self.agent!r}")
        if self.id not in ("", told["id"]):  # its orders would go where this bridge does not hear them
            raise NotAMailbox(f"{self.root} has become another mailbox, {told['id']}: start this bridge again")
        self.id = told["id"]

    def check(self) -> None:
        """Whether it is still the same mailbox; one whose identity was removed is given it back. Raises NotAMailbox."""
        if not self.root.is_dir():
            self.open()
        self._identify()

    def _identity(self) -> dict[str, str]:
        try:
            told = json.loads(self.below.read(IDENTITY, most=4096))
            if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", told["id"]) and isinstance(told["agent"], str):
                return {"id": told["id"], "agent": told["agent"]}
        except (ValueError, KeyError, TypeError):
            pass
        raise NotAMailbox(f"{self.root / IDENTITY} is no identity of a mailbox: remove it, and another one is made")

    def scan(self, limit: int) -> list[Found]:
        """Up to `limit` files that have come, taken from the plans in turn. It goes on where the last one ended."""
        self.has_fresh = False
        try:
            plans = self.plans()
        except FileNotFoundError:
            self.open()
            plans = []
        self._looks = {plan: look for plan, look in self._looks.items() if plan in set(plans)}
        self._unclaimed = {plan: names for plan, names in self._unclaimed.items() if plan in set(plans)}
        there = {*plans, CROWD}
        self.refused = {name: why for name, why in self.refused.items() if name.partition("/")[0] in there}
        earlier = set(self._looks)  # what has come since such a look began, it may not see
        waiting = deque([*(p for p in plans if p > self._last), *(p for p in plans if p <= self._last)])
        found, over = list[Found](), set[str]()
        self.is_through = True
        while waiting and len(found) < limit:
            plan = waiting.popleft()
            each = next(self._looks.setdefault(plan, self._look(plan)), _OVER)
            if isinstance(each, Found):
                found.append(each)
                self._last = plan
                waiting.append(plan)
            elif each is None:
                self.is_through = self.is_through and plan in over
            else:
                del self._looks[plan]
                if plan in earlier and plan not in over:
                    waiting.append(plan)
                over.add(plan)
        self.is_through = self.is_through and not waiting
        for plan in list(self._looks)[MOST_LEFT_OPEN:]:
            del self._looks[plan]
        return found

    def plans(self) -> list[str]:
        with self.below.folder(self.incoming) as folder, os.scandir(folder) as entries:
            known = (entry.name for entry in entries if not entry.name.startswith(".") and is_utf8(entry.name))
            names = list(islice(known, MOST_PLANS + 1))
        if len(names) <= MOST_PLANS:
            self.refused.pop(CROWD, None)
        elif CROWD not in self.refused:
            self.refused[CROWD] = f"{CROWD}: move those away that are over"
            _log.warning("%s/%s: %s", self.root, self.incoming, self.refused[CROWD])
        return sorted(names[:MOST_PLANS])

    def _look(self, plan: str) -> Iterator[Found | None]:
        """What has come for a plan; None each time that many names were none of it.

        Of what could not be claimed, one is tried again: where that goes, so does the rest, and it comes next time.
        """
        before = list(self._unclaimed.get(plan, ()))
        left = set[str]()
        try:
            with self.below.folder(self.incoming, plan) as folder, os.scandir(folder) as entries:
                looked = 0
                for entry in entries:
                    looked += 1
                    if looked % MOST_LOOKED == 0:
                        yield None
                    if self._is_skipped(entry.name):
                        continue
                    if entry.name in self._unclaimed.get(plan, ()):
                        left.add(entry.name)
                        if [entry.name] != before[:1]:
                            continue
                    if (status := self._at_rest(plan, entry)) is not None:
                        looked = 0
                        yield Found(plan, entry.name, _fault(status))
        except (FileNotFoundError, NotThere):
            return  # it went away, or is no folder: a file or a link beside the plans is none of ours
        except PermissionError as error:
            self._refuse(plan, f"{plan}: {told(error)}", error)
        else:
            self._settle(plan, set(before) - left)

    def _at_rest(self, plan: str, entry: "os.DirEntry[str]") -> os.stat_result | None:
        """None of what went away, or may still be being written."""
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not self.rests.is_at_rest(f"{self.incoming}/{plan}/{entry.name}", status):
            self.has_fresh = True
            return None
        return status

    def _settle(self, plan: str, gone: set[str]) -> None:
        """A plan that was looked at is refused no more, unless something is left there that it does not let go."""
        unclaimed = self._unclaimed.get(plan, {})
        for name in gone:
            unclaimed.pop(name, None)
        if not unclaimed:
            self.refused.pop(plan, None)

    def _refuse(self, where: str, why: str, error: OSError) -> None:
        """Said once. The other plans go on."""
        why += ": let the bridge's user read, write and enter it" if isinstance(error, PermissionError) else ""
        if self.refused.get(where) != why:
            _log.warning("%s: %s", self.root, why)
        self.refused[where] = why

    def _is_skipped(self, name: str) -> bool:
        own = self.outside and name.startswith(("ack_", "task_state_")) and name.endswith(".json")
        return own or is_skipped(name)

    def claim(self, found: Found) -> Claimed | None:
        """None where somebody else was faster, or its plan does not let it go: that is told, and it is tried again.

        Raises OSError for what all plans lack.
        """
        try:
            claimed = self._claim(found)
        except FileNotFoundError:
            return None  # its plan went away
        except OSError as error:
            if error.errno in _OF_ALL:
                raise
            unclaimed = self._unclaimed.setdefault(found.plan, {})
            unclaimed.pop(found.name, None)
            unclaimed[found.name] = None
            where = f"{found.plan}/{PENDING}" if error.filename == PENDING else found.plan
            self._refuse(found.plan, f"{where}: {told(OSError(error.errno, error.strerror))}", error)
            return None
        if found.name in self._unclaimed.get(found.plan, {}):
            del self._unclaimed[found.plan]
            self.is_through = False
        return claimed

    def _claim(self, found: Found) -> Claimed | None:
        file = new_name(found.name)
        with (
            self.below.folder(self.incoming, found.plan) as start,
            self.below.folder(self.incoming, found.plan, PENDING, create=True) as end,
        ):
            try:
                os.rename(found.name, file, src_dir_fd=start, dst_dir_fd=end)
            except FileNotFoundError:
                return None
            self._fetch_envelope(found.name, file, start, end)
        return Claimed(found.plan, file, found.fault)

    def _fetch_envelope(self, name: str, file: str, start: int, end: int) -> None:
        try:
            status = os.stat(envelope_of(name), dir_fd=start, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                os.rename(envelope_of(name), envelope_of(file), src_dir_fd=start, dst_dir_fd=end)
        except OSError:  # there is none, or none that can be had: its message is taken all the same
            return

    def settle_claims(self, plans: set[str]) -> None:
        """What was claimed in these plans stays claimed, whatever becomes of the machine.

        Where that cannot be made sure of, it may come again, and the mailbox knows it.
        """
        for plan in plans:
            for names in ((PENDING,), ()):
                with suppress(OSError), self.below.folder(self.incoming, plan, *names) as folder:
                    os.fsync(folder)

    def is_put_away(self, plan: str, file: str) -> bool:
        """Whether it has gone from `.pending/` where it should."""
        return any(self.below.status(self.incoming, plan, where, file) is not None for where in (PROCESSED, DEAD))

    def pending(self) -> Iterator[Claimed]:
        """All that is claimed, by whomever."""
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
        """What somebody has put there under a name that cannot be told, or leaves no room, gets one that can."""
        status = self.below.status(self.incoming, plan, PENDING, name)
        if status is None:
            return None
        if not is_utf8(name) or len(os.fsencode(name)) > MOST_PENDING:
            name, old = new_name(name), name
            self._move(plan, (PENDING, old), (PENDING, name))
        return Claimed(plan, name, _fault(status))

    def read(self, plan: str, file: str) -> bytes:
        """A message in `.pending/`. Raises FileNotFoundError."""
        return self.below.read(self.incoming, plan, PENDING, file, most=MOST_MESSAGE)

    def envelope(self, plan: str, file: str, most: int) -> bytes | None:
        try:
            return self.below.read(self.incoming, plan, PENDING, envelope_of(file), most=most)
        except (FileNotFoundError, NotThere):
            return None

    def keep(self, plan: str, file: str, where: str, reason: bytes | None = None) -> None:
        """Moves a file and its envelope out of `.pending/` to `.processed/` or `.deadletter/`, a reason beside it."""
        if reason is not None and self.below.status(self.incoming, plan, PENDING, file) is not None:
            self.below.write(reason, self.incoming, plan, where, reason_of(file))
        for name in (file, envelope_of(file)):
            self._move(plan, (PENDING, name), (where, name))

    def reason(self, plan: str, file: str) -> str:
        """Why a dead letter is one, as it was written down."""
        try:
            found = json.loads(self.below.read(self.incoming, plan, DEAD, reason_of(file), most=MOST_MESSAGE))
            return str(found["why"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "nobody has said why"

    def restore(self, plan: str, file: str) -> None:
        """Brings a dead letter back, as a file that has just come."""
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
        except FileExistsError:  # somebody else's: nothing is overwritten
            other = f"{target[-1]}.{secrets.token_hex(3)}"
            self.below.move((self.incoming, plan, *source), (self.incoming, plan, *target[:-1], other))
        except FileNotFoundError:  # there is no such folder, so there is no such file
            return


def _fault(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    return too_large(status.st_size) if status.st_size > MOST_MESSAGE else None


def told(error: OSError) -> str:
    """In one line, for a person."""
    known = {errno.ENOSPC: "the disk is full", errno.EROFS: "it is read-only", errno.EACCES: "no permission"}
    where = f": {error.filename}" if error.filename else ""
    said = f"{known.get(error.errno or 0, error.strerror or str(error))}{where}"
    return " ".join(said.encode(errors="replace").decode().split())
