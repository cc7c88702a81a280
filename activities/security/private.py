"""Files and folders that only the worker's user may read: conversations, definitions, addresses and logs."""

import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path) -> None:
    """Create the folder if needed. If other users may enter it, remove their access to it and its contents.

    Links are not followed. Raises OSError if the folder cannot be created.
    """
    for missing in reversed([above for above in (folder, *folder.parents) if not above.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    if not folder.stat().st_mode & OTHERS:
        return
    for above, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            with suppress(OSError):  # another user's file, or one that was just removed
                _restrict_access(Path(above) / name)
    with suppress(PermissionError):  # a folder of another user, who decides about its access
        _restrict_access(folder)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file like `os.open`, with mode 0600 if it is new. Usable as `open(..., opener=...)`."""
    return os.open(path, flags, 0o600)


def create_private(path: Path) -> Path:
    """Create an empty private file unless it exists, for libraries that open it by path."""
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    return path


def _restrict_access(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & OTHERS:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
