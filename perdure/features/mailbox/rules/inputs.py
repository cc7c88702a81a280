"""The choice of a task's input file among the candidates (C7)."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from perdure.features.mailbox.contract import PickPolicy

MAX_OPTIONS = 100  # offered to a person
MAX_NAME = 255  # bytes, of a file or folder


def choose_inputs(arrived: Mapping[str, int], policy: PickPolicy | None, digests: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths between which the policy does not choose: one if it does, none if no file matches yet.

    `arrived` has the change time of each file, which a program cannot set, unlike the modification time.
    For `unique`, `digests` has the digest of each: equal contents count as one file.
    """
    paths = sorted(arrived)
    if policy is PickPolicy.latest and paths:
        return (max(paths, key=lambda path: (arrived[path], path)),)
    is_one = policy is PickPolicy.first or len({digests.get(path, path) for path in paths}) == 1
    return tuple(paths[: 1 if is_one else MAX_OPTIONS])


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
