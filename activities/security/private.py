"""Folders and files that only the worker's user may read: conversations, definitions, addresses and logs."""

import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path) -> None:
    """Makes the folder where it is missing. Where others may enter it, takes that away, from all that is in it too.

    Links are not followed. Raises OSError where the folder cannot be made.
    """
    for missing in reversed([above for above in (folder, *folder.parents) if not above.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    if not folder.stat().st_mode & OTHERS:
        return
    for above, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            with suppress(OSError):  # another user's file, or one that has just gone
                _restrict(Path(above) / name)
    with suppress(PermissionError):  # a folder of another user that we may write: its owner decides
        _restrict(folder)


def open_private(path: str | Path, flags: int) -> int:
    """Opens a file as `os.open` does; a new one is 0600, whatever the umask. Fits `open(..., opener=...)`."""
    return os.open(path, flags, 0o600)


def create_private(path: Path) -> Path:
    """Makes an empty file of this user alone where there is none, for what opens it by its path."""
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    return path


def _restrict(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & OTHERS:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
