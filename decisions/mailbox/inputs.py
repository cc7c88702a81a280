"""Which file is an input of a task, of those that fit (C7)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from contracts.mail.message import PickPolicy

MOST_OPTIONS = 100  # that a person is offered
MOST_NAME = 255  # bytes, of a file or folder


@dataclass(frozen=True)
class Candidate:
    """A file below `inputs/`, by its path there.

    `arrived` is when its entry was changed last, in nanoseconds of the folder's own clock: unlike the time of its
    content, no one can set it.
    """

    path: str
    arrived: int = 0
    size: int = 0


@dataclass(frozen=True)
class Chosen:
    path: str


@dataclass(frozen=True)
class Missing:
    """It is not there yet."""


@dataclass(frozen=True)
class Several:
    """A person has to say which."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class Ambiguous:
    """There are several, and the task says that there must not be."""

    options: tuple[str, ...]


Choice = Chosen | Missing | Several | Ambiguous


def choose(candidates: Sequence[Candidate], policy: PickPolicy | None, digests: Mapping[str, str]) -> Choice:
    """`digests` has that of each candidate's content where the policy is `unique`: the same content counts once."""
    ordered = sorted(candidates, key=lambda each: each.path)
    if len(ordered) < 2:
        return Chosen(ordered[0].path) if ordered else Missing()
    options = tuple(each.path for each in ordered[:MOST_OPTIONS])
    match policy:
        case PickPolicy.first:
            return Chosen(ordered[0].path)
        case PickPolicy.latest:
            return Chosen(max(ordered, key=lambda each: (each.arrived, each.path)).path)
        case PickPolicy.unique:
            is_one = len({digests.get(each.path, each.path) for each in ordered}) == 1
            return Chosen(ordered[0].path) if is_one else Ambiguous(options)
        case None:
            return Several(options)


def segments(match: str) -> tuple[str, ...] | str:
    """The parts of a pattern, or why it is none: it stays below `inputs/`, whatever lies there."""
    if match.startswith("/") or "\\" in match or re.match(r"[A-Za-z]:", match):
        return "expected a pattern below inputs/, as in `*.csv`"
    if not match.isprintable():
        return "expected characters that can be printed"
    named = [part for part in match.split("/") if part not in {"", "."}]
    parts = tuple(part for at, part in enumerate(named) if named[at : at + 2] != ["**", "**"])
    if not parts or any(part == ".." or part.startswith((".", "~")) for part in parts):
        return "`..`, `~` and hidden names are not allowed"
    if any(len(part.encode()) > MOST_NAME for part in parts):
        return f"a name has {MOST_NAME} bytes at most"
    return parts if len(parts) <= 8 else "it goes too deep"


def is_pattern(part: str) -> bool:
    return any(sign in part for sign in "*?[")


def fits(name: str, part: str) -> bool:
    """Case counts, as it does for the names of files."""
    return fnmatchcase(name, part) if is_pattern(part) else name == part
