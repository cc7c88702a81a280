"""A worker's journal: what it has spent of each allowance, and what its calls in flight may cost.

If the worker is killed, another one of the same disk reads it and settles exactly. A call without an end may have been
made, so it counts as its bound. A machine that was cut off may have lost the last lines: then the journal is not read,
and what the worker held counts as spent until the window ends.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from perdure.activities.security import make_private

BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
SUFFIX = ".jsonl"
MAX_LINES = 5000  # then the journal is written anew, as sums

Costs = Mapping[str, int]
Bounds = Mapping[str, tuple[int, int]]  # by allowance: the window, and the most that a call may cost
Sums = dict[str, tuple[int, int]]  # by allowance: the window, and what is spent in it


@dataclass
class Reservation:
    """A call in flight. Its `number` is 0 if the journal does not have it."""

    number: int
    bounds: Bounds


@dataclass
class Entries:
    """The contents of a journal. `boot` is the machine's, to tell whether it was cut off since."""

    worker: str = ""
    boot: str = ""
    sums: Sums = field(default_factory=dict)
    open: dict[int, Bounds] = field(default_factory=dict)

    def spend(self, key: str, window: int, cost: int) -> None:
        """Add a cost. Those of an earlier window are dropped."""
        known, spent = self.sums.get(key, (window, 0))
        if window >= known:
            self.sums[key] = window, cost + (spent if window == known else 0)

    def total(self) -> Sums:
        """Return the sums, with the bounds of the calls that have no end."""
        whole = Entries(sums=dict(self.sums))
        for bounds in self.open.values():
            for key, (window, most) in bounds.items():
                whole.spend(key, window, most)
        return whole.sums


def current_boot() -> str:
    """Return what names the time since the machine was started; empty if the system does not say."""
    with suppress(OSError):
        return BOOT_FILE.read_text(encoding="ascii").strip()
    return ""


def read_entries(text: str) -> Entries:
    """Read a journal. A torn last line is skipped: its reservation was not made, or its end is not known."""
    entries = Entries()
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            kind, *rest = json.loads(line)
            _apply_line(entries, kind, rest)
    return entries


def _apply_line(entries: Entries, kind: str, rest: list[Any]) -> None:
    match kind:
        case "worker":
            entries.worker, entries.boot = rest
        case "sums":
            entries.sums = {key: (window, spent) for key, (window, spent) in rest[0].items()}
        case "reserve":
            entries.open[rest[0]] = {key: (window, most) for key, (window, most) in rest[1].items()}
        case "charge":
            bounds = entries.open.pop(rest[0])
            for key, (window, most) in bounds.items():
                entries.spend(key, window, rest[1].get(key, most))
        case _:
            pass


class SpendJournal:
    """The journal of one worker, which only it writes. Its lock says that the worker lives. Methods raise OSError."""

    def __init__(self, folder: Path, worker: str) -> None:
        make_private(folder)
        self.path = folder / f"{worker}{SUFFIX}"
        self.entries = Entries(worker, current_boot())
        self._numbers = 0
        self._lines = 0
        self._file = self._begin(self.path)

    def _begin(self, path: Path) -> TextIOWrapper:
        """Write the sums so far to a new file, which only this process may write."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        file = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_line(file, "worker", self.entries.worker, self.entries.boot)
        _write_line(file, "sums", self.entries.sums)
        for number, bounds in self.entries.open.items():
            _write_line(file, "reserve", number, bounds)
        return file

    def reserve(self, bounds: Bounds) -> Reservation:
        """Record a call before it is made."""
        if self._lines >= MAX_LINES:
            self._write_anew()
        self._numbers += 1
        self._lines += 1
        _write_line(self._file, "reserve", self._numbers, bounds)
        self.entries.open[self._numbers] = bounds
        return Reservation(self._numbers, bounds)

    def charge(self, reservation: Reservation, costs: Costs) -> None:
        """Record the end of a call. An allowance that `costs` does not name is charged the bound."""
        _write_line(self._file, "charge", reservation.number, costs)
        self._lines += 1
        _apply_line(self.entries, "charge", [reservation.number, costs])

    def _write_anew(self) -> None:
        new = self.path.with_suffix(".new")
        new.unlink(missing_ok=True)
        file = self._begin(new)
        new.replace(self.path)
        self._file.close()
        self._file, self._lines = file, 0

    def close(self, *, is_settled: bool) -> None:
        """Release the lock. A journal whose worker has settled everything is removed."""
        if is_settled:
            self.path.unlink(missing_ok=True)
        self._file.close()


def _write_line(file: TextIOWrapper, *values: Any) -> None:
    file.write(f"{json.dumps(values)}\n")


def open_left(folder: Path) -> Iterator[tuple[Path, Entries]]:
    """Yield the journals whose workers are gone, each locked while the block that reads it runs."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with suppress(OSError), path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():  # else its worker has just gone in order, or another one has read it
                yield path, read_entries(file.read())
