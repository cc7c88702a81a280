"""`mcp.lock.json`: the accepted tool definitions, next to `.mcp.json` and meant to be committed.

A worker offers exactly these. So it can start without any server, and all workers offer the same tools.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from perdure.activities.storage.workspace import SafeDir
from perdure.contracts.tool import Pin, PinFile, PinnedProgram, PinnedServer
from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.features.mcp.rules import is_sound

LOCK_FILE_NAME = "mcp.lock.json"

Pins = Mapping[str, Mapping[str, Pin]]  # by server and by the server's tool name

_log = logging.getLogger(__name__)


class LockFileError(ReportedError):
    """The file cannot be read. The message is one line for a person."""


class AcceptedTools(dict[str, dict[str, Pin]]):
    """The accepted definitions by server and tool, and the accepted programs by server."""

    def __init__(self, pins: Pins, programs: Mapping[str, PinnedProgram]) -> None:
        super().__init__({server: dict(tools) for server, tools in pins.items()})
        self.programs = dict(programs)


def read_lock(path: Path) -> AcceptedTools:
    """Read the lock file; a missing one is empty. Raises LockFileError."""
    try:
        file = PinFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return AcceptedTools({}, {})
    except OSError as error:
        raise LockFileError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise LockFileError(f"{path}: {format_validation_error(error, 'the file')}") from None
    for server, pinned in file.servers.items():
        for tool, stored in pinned.tools.items():
            if not is_sound(stored):
                reason = f"{server}.{tool} was edited, its sha256 does not match"
                raise LockFileError(f"{path}: {reason}: remove it, then perdure tools --accept {server}")
    return AcceptedTools({server: pinned.tools for server, pinned in file.servers.items()}, file.programs)


def change_lock(path: Path, change: Callable[[AcceptedTools], None]) -> AcceptedTools:
    """Apply a change to the current file and replace it. Concurrent writers take turns. Raises LockFileError and
    OSError.
    """
    folder = SafeDir(path.parent)
    with folder.lock_folder():  # which leaves no lock file
        pins = read_lock(path)
        before = _lock_text(pins)
        change(pins)
        if (text := _lock_text(pins)) != before or not path.exists():
            folder.write(text.encode(errors="backslashreplace"), path.name)
        return pins


def accept_new_servers(path: Path, seen: Pins, programs: Mapping[str, PinnedProgram] | None = None) -> AcceptedTools:
    """Accept servers that are not in the file yet. If it cannot be written, this applies to this worker only."""

    def add(pins: AcceptedTools) -> None:
        for server, tools in seen.items():
            if server not in pins and programs and server in programs:
                pins.programs[server] = programs[server]
            pins.setdefault(server, dict(tools))

    try:
        return change_lock(path, add)
    except OSError as error:
        _log.warning("%s cannot be written (%s): its changes apply to this worker only", path, error.strerror)
        pins = read_lock(path)
        add(pins)
        return pins


def _lock_text(pins: AcceptedTools) -> str:
    servers = {server: PinnedServer(tools=dict(sorted(pins[server].items()))) for server in sorted(pins)}
    file = PinFile(servers=servers, programs=dict(sorted(pins.programs.items())))
    content = file.model_dump(mode="json", by_alias=True, exclude=None if pins.programs else {"programs"})
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
