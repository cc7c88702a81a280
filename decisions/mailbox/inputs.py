"""The choice of a task's input file among the candidates (C7)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from contracts.mail.message import PickPolicy

MAX_OPTIONS = 100  # offered to a person
MAX_NAME = 255  # bytes, of a file or folder


@dataclass(frozen=True)
class Candidate:
    """A file below `inputs/`, by its path there.

    `arrived` is its change time in nanoseconds, which a program cannot set, unlike the modification time.
    """

    path: str
    arrived: int = 0
    size: int = 0


@dataclass(frozen=True)
class Chosen:
    path: str


@dataclass(frozen=True)
class Missing:
    """No file matches yet."""


@dataclass(frozen=True)
class Several:
    """Several files match: a person has to choose."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class Ambiguous:
    """Several files match, and the task does not allow that."""

    options: tuple[str, ...]


Choice = Chosen | Missing | Several | Ambiguous


def choose_input(candidates: Sequence[Candidate], policy: PickPolicy | None, digests: Mapping[str, str]) -> Choice:
    """Apply the policy. For `unique`, `digests` has the digest of each candidate: equal contents count as one file."""
    ordered = sorted(candidates, key=lambda file: file.path)
    if len(ordered) < 2:
        return Chosen(ordered[0].path) if ordered else Missing()
    options = tuple(file.path for file in ordered[:MAX_OPTIONS])
    match policy:
        case PickPolicy.first:
            return Chosen(ordered[0].path)
        case PickPolicy.latest:
            return Chosen(max(ordered, key=lambda file: (file.arrived, file.path)).path)
        case PickPolicy.unique:
            is_one = len({digests.get(file.path, file.path) for file in ordered}) == 1
            return Chosen(ordered[0].path) if is_one else Ambiguous(options)
        case None:
            return Several(options)


def split_pattern(match: str) -> tuple[str, ...] | str:
    """Return the parts of a pattern, or why it is not valid. A valid pattern cannot leave `inputs/`."""
    if match.startswith("/") or "\\" in match or re.match(r"[A-Za-z]:", match):
        return "expected a pattern below inputs/, as in `*.csv`"
    if not match.isprintable():
        return "expected characters that can be printed"
    names = [part for part in match.split("/") if part not in {"", "."}]
    parts = tuple(part for at, part in enumerate(names) if names[at : at + 2] != ["**", "**"])
    if not parts or any(part == ".." or part.startswith((".", "~")) for part in parts):
        return "`..`, `~` and hidden names are not allowed"
    if any(len(part.encode()) > MAX_NAME for part in parts):
        return f"a name is longer than {MAX_NAME} bytes"
    return parts if len(parts) <= 8 else "it is nested too deep"


def is_pattern(part: str) -> bool:
    return any(sign in part for sign in "*?[")


def matches_part(name: str, part: str) -> bool:
    """Return whether a name matches a part of the pattern. Case matters, as in file names."""
    return fnmatchcase(name, part) if is_pattern(part) else name == part
