"""`mcp.lock.json`: the definitions that were accepted, beside `.mcp.json` and meant to be committed.

A worker offers exactly what stands here. So it needs no server to start, and all workers offer the same.
"""

import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from contracts.mcp import Pin, PinFile, PinnedServer
from decisions.faults import fault_line
from decisions.mcp import is_sound

NAME = "mcp.lock.json"

Pins = Mapping[str, Mapping[str, Pin]]  # by server, and by the server's name of the tool

_log = logging.getLogger(__name__)


class BadLock(ValueError):
    """The file cannot be read. The message is one line for the person who can mend it."""


def read_lock(path: Path) -> dict[str, dict[str, Pin]]:
    """What was accepted, by server and tool; nothing where there is no file. Raises BadLock."""
    try:
        file = PinFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadLock(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise BadLock(f"{path}: {fault_line(error, 'the file')}") from None
    for server, pinned in file.servers.items():
        for tool, kept in pinned.tools.items():
            if not is_sound(kept):
                fault = f"{server}.{tool} was edited, its sha256 is another one"
                raise BadLock(f"{path}: {fault}: take it out, then perdure tools --accept {server}")
    return {server: dict(pinned.tools) for server, pinned in file.servers.items()}


def change_lock(path: Path, change: Callable[[dict[str, dict[str, Pin]]], None]) -> dict[str, dict[str, Pin]]:
    """Applies a change to what the file says now, and writes it as a whole. Raises BadLock and OSError.

    Of several that write at the same time each sees what the others wrote.
    """
    with _alone(path.parent):
        pins = read_lock(path)
        before = json.dumps(_told(pins))
        change(pins)
        if json.dumps(_told(pins)) != before or not path.exists():
            _replace(path, pins)
        return pins


def keep_first(path: Path, seen: Pins) -> dict[str, dict[str, Pin]]:
    """Accepts servers that were never seen before; what is there already stays.

    Where the folder cannot be written they hold for this worker only.
    """

    def add(pins: dict[str, dict[str, Pin]]) -> None:
        for server, tools in seen.items():
            pins.setdefault(server, dict(tools))

    try:
        return change_lock(path, add)
    except OSError as error:
        _log.warning("%s cannot be written (%s): what it should hold holds for this worker only", path, error.strerror)
        pins = read_lock(path)
        add(pins)
        return pins


def _told(pins: Pins) -> dict[str, object]:
    servers = {
        server: PinnedServer(tools={tool: pins[server][tool] for tool in sorted(pins[server])})
        for server in sorted(pins)
    }
    return PinFile(servers=servers).model_dump(mode="json", by_alias=True)


def _replace(path: Path, pins: Pins) -> None:
    text = json.dumps(_told(pins), indent=2, ensure_ascii=False) + "\n"
    descriptor, name = tempfile.mkstemp(prefix=f".{NAME}-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # as a file that is committed, not as a temporary one
            file.write(text.encode(errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One writer at a time, on this machine; the lock is the folder's, so no file is left of it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
