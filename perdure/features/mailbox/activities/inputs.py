"""A claimed file as it is found: its head, and the inputs of its task, which are searched without following links."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from perdure.activities.storage.workspace import SafeDir, WrongFileTypeError
from perdure.decisions.text.formatting import truncate
from perdure.features.mailbox.activities.folder import INPUTS, ClaimedFile, MailFolder, format_os_error
from perdure.features.mailbox.activities.message import (
    MAX_ENVELOPE,
    MessageError,
    RestTracker,
    is_skipped,
    parse_message,
    read_envelope,
)
from perdure.features.mailbox.contract import Delivery, InputWanted, PickPolicy, TaskHead
from perdure.features.mailbox.rules.inputs import choose_inputs, is_pattern, matches_part, split_pattern

MAX_SCANNED = 10_000  # names below inputs/ for one input
MAX_INPUT = 64 * 1024 * 1024  # bytes
_MAX_DEPTH = 8


class InputsError(ValueError):
    """The inputs can never be provided as the task requires. The message is one line."""


@dataclass
class ResolvedInputs:
    """The files of a task's inputs: `chosen` has their paths, `undecided` the paths that a person chooses from.

    If `is_early`, a matching file may still be being written, and its input counts as missing.
    """

    chosen: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    undecided: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_early: bool = False


def resolve_inputs(below: SafeDir, head: TaskHead, rests: RestTracker | None = None) -> ResolvedInputs:
    """Find the files of a task's inputs. `rests` remembers files from earlier calls. Raises InputsError, OSError."""
    resolved = ResolvedInputs()
    for expected in head.inputs:
        match _matching_files(below, expected, head.pick_policy, rests or RestTracker()):
            case (path,):
                resolved.chosen[expected.name] = path
            case () | None as none:
                resolved.missing += (expected.name,)
                resolved.is_early = resolved.is_early or none is None
            case paths if head.pick_policy is PickPolicy.unique:
                several = truncate(", ".join(paths), 300)
                raise InputsError(f"inputs: {expected.name}: expected one file, and there are several: {several}")
            case paths:
                resolved.undecided[expected.name] = paths
    if resolved.missing and not head.wait_for_inputs and not resolved.is_early:
        raise InputsError(f"inputs: missing, and the task does not wait: {', '.join(resolved.missing)}")
    return resolved


def _matching_files(
    below: SafeDir, expected: InputWanted, policy: PickPolicy | None, rests: RestTracker
) -> tuple[str, ...] | None:
    """Return the files of an input as far as the policy chooses, unless one may still be being written."""
    parts = split_pattern(expected.match)
    if isinstance(parts, str):
        raise InputsError(f"inputs: {expected.name}: {parts}")
    try:
        files = dict(_walk_matches(below, (), parts, [0]))  # several `**` may lead to a file
        rest = [rests.is_at_rest(f"{INPUTS}/{path}", status) for path, status in files.items()]
        if not all(rest):
            return None
        digests = {}
        is_alike = len(files) > 1 and len({status.st_size for status in files.values()}) == 1
        if policy is PickPolicy.unique and is_alike:
            digests = {path: sha256(read_input(below, path)).hexdigest() for path in files}
    except PermissionError as error:
        raise InputsError(f"inputs: {expected.name}: {format_os_error(error)}: let the bridge's user read it") from None
    if large := next((path for path, status in files.items() if status.st_size > MAX_INPUT), None):
        raise InputsError(f"inputs: {expected.name}: {truncate(large, 200)} has more than {MAX_INPUT:,} bytes")
    return choose_inputs({path: status.st_ctime_ns for path, status in files.items()}, policy, digests)


def read_input(below: SafeDir, path: str) -> bytes:
    """Return the content of an input file. Raises OSError, InputsError."""
    data = below.read(INPUTS, *path.split("/"), most=MAX_INPUT, is_linkable=False)
    if len(data) > MAX_INPUT:
        raise InputsError(f"inputs: {truncate(path, 200)} has more than {MAX_INPUT:,} bytes")
    return data


def _walk_matches(
    below: SafeDir, above: tuple[str, ...], parts: tuple[str, ...], scanned: list[int]
) -> Iterator[tuple[str, os.stat_result]]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _walk_matches(below, above, rest or ("*",), scanned)
        if len(above) < _MAX_DEPTH:
            for name, status in _matching_names(below, above, "*", scanned):
                if stat.S_ISDIR(status.st_mode):
                    yield from _walk_matches(below, (*above, name), parts, scanned)
        return
    for name, status in _matching_names(below, above, part, scanned):
        if rest and stat.S_ISDIR(status.st_mode):
            yield from _walk_matches(below, (*above, name), rest, scanned)
        elif not rest and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # a hard link may lead anywhere
            yield "/".join((*above, name)), status


def _matching_names(
    below: SafeDir, above: tuple[str, ...], part: str, scanned: list[int]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the matching names in a folder. Names that disappear during the search are left out."""
    if not is_pattern(part):
        try:
            status = below.status(INPUTS, *above, part)
        except WrongFileTypeError:
            return
        if status is not None:
            yield part, status
        return
    try:
        with below.open_folder(INPUTS, *above) as folder, os.scandir(folder) as entries:
            matches = []
            for entry in entries:
                scanned[0] += 1
                if scanned[0] > MAX_SCANNED:
                    raise InputsError(
                        f"inputs/ has more than {MAX_SCANNED:,} names to search: use a folder for each task"
                    )
                if not is_skipped(entry.name) and entry.name.isprintable() and matches_part(entry.name, part):
                    matches.append((entry.name, entry))
            for name, entry in matches:
                try:
                    yield name, entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
    except (FileNotFoundError, WrongFileTypeError):
        return


@dataclass(frozen=True)
class PreparedDelivery:
    """A delivery, with a note about its envelope. If `is_early`, an input may be incomplete: look again soon."""

    claimed: ClaimedFile
    delivery: Delivery
    note: str = ""
    is_early: bool = False


def prepare_delivery(folder: MailFolder, claimed: ClaimedFile) -> PreparedDelivery:
    """Read a claimed file. Raises FileNotFoundError if it is gone, OSError if it can be read only later."""
    plan, file = claimed.plan, claimed.file
    try:
        data = folder.read_message_file(plan, file) if claimed.fault is None else b""
    except (WrongFileTypeError, PermissionError) as error:
        claimed = replace(claimed, fault=truncate(f"it cannot be read: {format_os_error(error)}", 1000))
    if claimed.fault is not None:
        return PreparedDelivery(claimed, Delivery(file=file, plan=plan, sha256="", fault=claimed.fault))
    note, resolved = _envelope_note(folder, claimed), ResolvedInputs()
    fields: dict[str, Any] = {"file": file, "plan": plan, "sha256": sha256(data).hexdigest()}
    try:
        head, _ = parse_message(data, plan)
        fields["head"] = head
        if isinstance(head, TaskHead) and head.inputs:
            resolved = resolve_inputs(folder.below, head, folder.rests)
    except (MessageError, InputsError) as error:
        fields["fault"] = truncate(str(error), 1000)
    delivery = Delivery(**fields, missing=resolved.missing, undecided=tuple(resolved.undecided))
    return PreparedDelivery(claimed, delivery, note, resolved.is_early)


def _envelope_note(folder: MailFolder, claimed: ClaimedFile) -> str:
    try:
        data = folder.read_envelope_file(claimed.plan, claimed.file, MAX_ENVELOPE)
        if data is None:
            return ""
        read_envelope(data)
    except OSError as error:
        return f"the envelope cannot be read: {format_os_error(error)}"
    except MessageError as error:
        return f"the envelope is not valid: {error}"
    return "with its envelope"
