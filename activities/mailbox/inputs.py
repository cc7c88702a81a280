"""The inputs of a task, searched below the folder's `inputs/` without following links."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from activities.mailbox.folder import INPUTS, told
from activities.mailbox.message import is_skipped
from activities.mailbox.rest import Rests
from activities.storage.safe_dir import Beneath, NotThere
from contracts.mail.message import InputWanted, PickPolicy, TaskHead
from decisions.mailbox.inputs import (
    Ambiguous,
    Candidate,
    Choice,
    Chosen,
    Missing,
    Several,
    choose,
    fits,
    is_pattern,
    segments,
)
from decisions.text.formatting import cut

MOST_LOOKED = 10_000  # names below inputs/ for one input
MOST_INPUT = 64 * 1024 * 1024  # bytes
_MOST_DEEP = 8


class Unusable(ValueError):
    """The inputs can never be provided as the task requires. The message is one line."""


@dataclass
class Resolved:
    """The files of a task's inputs: `chosen` has their paths, `undecided` the paths that a person chooses from.

    If `is_early`, a matching file may still be being written, and its input counts as missing.
    """

    chosen: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    undecided: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_early: bool = False


def resolve(below: Beneath, head: TaskHead, rests: Rests | None = None) -> Resolved:
    """Find the files of a task's inputs. `rests` remembers files from earlier calls. Raises Unusable, OSError."""
    resolved = Resolved()
    for expected in head.inputs:
        match _choice(below, expected, head.pick_policy, rests or Rests()):
            case Chosen(path):
                resolved.chosen[expected.name] = path
            case Missing():
                resolved.missing += (expected.name,)
            case None:
                resolved.is_early, resolved.missing = True, (*resolved.missing, expected.name)
            case Several(options):
                resolved.undecided[expected.name] = options
            case Ambiguous(options):
                paths = cut(", ".join(options), 300)
                raise Unusable(f"inputs: {expected.name}: expected one file, and there are several: {paths}")
    if resolved.missing and not head.wait_for_inputs and not resolved.is_early:
        raise Unusable(f"inputs: missing, and the task does not wait: {', '.join(resolved.missing)}")
    return resolved


def _choice(below: Beneath, expected: InputWanted, policy: PickPolicy | None, rests: Rests) -> Choice | None:
    """Choose the file of an input, unless a matching file may still be being written."""
    parts = segments(expected.match)
    if isinstance(parts, str):
        raise Unusable(f"inputs: {expected.name}: {parts}")
    try:
        files = dict(_below(below, (), parts, [0]))  # several `**` may lead to a file
        rest = [rests.is_at_rest(f"{INPUTS}/{path}", status) for path, status in files.items()]
        if not all(rest):
            return None
        candidates = [Candidate(path, status.st_ctime_ns, status.st_size) for path, status in files.items()]
        digests = _digests(below, candidates, policy)
    except PermissionError as error:
        raise Unusable(f"inputs: {expected.name}: {told(error)}: let the bridge's user read it") from None
    if large := next((file for file in candidates if file.size > MOST_INPUT), None):
        raise Unusable(f"inputs: {expected.name}: {cut(large.path, 200)} has more than {MOST_INPUT:,} bytes")
    return choose(candidates, policy, digests)


def content(below: Beneath, path: str) -> bytes:
    """Return the content of an input file. Raises OSError, Unusable."""
    data = below.read(INPUTS, *path.split("/"), most=MOST_INPUT, is_linkable=False)
    if len(data) > MOST_INPUT:
        raise Unusable(f"inputs: {cut(path, 200)} has more than {MOST_INPUT:,} bytes")
    return data


def _digests(below: Beneath, candidates: list[Candidate], policy: PickPolicy | None) -> dict[str, str]:
    if policy is not PickPolicy.unique or len(candidates) < 2 or len({file.size for file in candidates}) > 1:
        return {}
    return {file.path: sha256(content(below, file.path)).hexdigest() for file in candidates}


def _below(
    below: Beneath, above: tuple[str, ...], parts: tuple[str, ...], looked: list[int]
) -> Iterator[tuple[str, os.stat_result]]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _below(below, above, rest or ("*",), looked)
        if len(above) < _MOST_DEEP:
            for name, status in _names(below, above, "*", looked):
                if stat.S_ISDIR(status.st_mode):
                    yield from _below(below, (*above, name), parts, looked)
        return
    for name, status in _names(below, above, part, looked):
        if rest and stat.S_ISDIR(status.st_mode):
            yield from _below(below, (*above, name), rest, looked)
        elif not rest and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # a hard link may lead anywhere
            yield "/".join((*above, name)), status


def _names(
    below: Beneath, above: tuple[str, ...], part: str, looked: list[int]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the matching names in a folder. Names that disappear during the search are left out."""
    if not is_pattern(part):
        try:
            status = below.status(INPUTS, *above, part)
        except NotThere:
            return
        if status is not None:
            yield part, status
        return
    try:
        with below.folder(INPUTS, *above) as folder, os.scandir(folder) as entries:
            matches = []
            for entry in entries:
                looked[0] += 1
                if looked[0] > MOST_LOOKED:
                    raise Unusable(f"inputs/ has more than {MOST_LOOKED:,} names to search: use a folder for each task")
                if not is_skipped(entry.name) and entry.name.isprintable() and fits(entry.name, part):
                    matches.append((entry.name, entry))
            for name, entry in matches:
                try:
                    yield name, entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
    except (FileNotFoundError, NotThere):
        return
