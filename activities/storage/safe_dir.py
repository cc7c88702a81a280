"""A folder that other processes write to as well: names are opened one by one, without following links. POSIX only."""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
LINK_ERRNOS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})  # of a link, by flags and system
LOCK_TIMEOUT = 5.0  # seconds


class WrongFileTypeError(OSError):
    """A link, a device or the like is in the place of a folder or a regular file."""


@dataclass(frozen=True)
class SafeDir:
    """A folder. Paths are given as single names, without slashes or `..`. Writes are durable when they return.

    All methods raise OSError, with FileNotFoundError and FileExistsError in their usual sense, and ValueError for an
    invalid name.
    """

    root: Path
    folder_mode: ClassVar[int] = 0o777
    file_mode: ClassVar[int] = 0o666
    hard_links: ClassVar[bool] = True  # False: a file with a second name is rejected

    @contextmanager
    def open_folder(self, *names: str, create: bool = False) -> Iterator[int]:
        """Open the folder, and yield its descriptor."""
        descriptor = os.open(self.root, FOLDER_FLAGS)
        try:
            for name in names:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(must_be_name(name), mode=self.folder_mode, dir_fd=descriptor)
                inner = self.open_at(must_be_name(name), FOLDER_FLAGS, descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def lock_folder(self, *names: str) -> Iterator[None]:
        """Hold the folder's lock during the block. The kernel releases it if the process dies.

        Raises OSError if another process holds the lock for `LOCK_TIMEOUT`.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT
        with self.open_folder(*names, create=True) as folder:
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        message = "another process holds the lock of this folder"
                        raise OSError(errno.ENOLCK, message, "/".join(names)) from None
                    time.sleep(0.01)  # polled, since flock has no timeout
            yield

    def open(self, *names: str, is_linkable: bool | None = None) -> BinaryIO:
        """Open a regular file for reading. A named pipe does not block."""
        *above, last = names
        flags = os.O_RDONLY | os.O_NONBLOCK
        with self.open_folder(*above) as folder, self.open_name(last, flags, folder) as descriptor:
            self._must_be_file(descriptor, "/".join(names), is_linkable=is_linkable)
            return os.fdopen(os.dup(descriptor), "rb")

    def read(self, *names: str, most: int, is_linkable: bool | None = None) -> bytes:
        """Read a regular file; of a larger one, `most` + 1 bytes. `is_linkable` overrides `hard_links`."""
        with self.open(*names, is_linkable=is_linkable) as file:
            return file.read(most + 1)

    def status(self, *names: str) -> os.stat_result | None:
        """Return the status of an existing name. Links are not followed."""
        *above, last = names
        with suppress(FileNotFoundError), self.open_folder(*above) as folder:
            return status_at(folder, last)
        return None

    def names(self, *names: str) -> list[str]:
        """Return the sorted names in a folder; empty if it does not exist."""
        with suppress(FileNotFoundError), self.open_folder(*names) as folder, os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
        return []

    def write(self, data: bytes, *names: str, durable: bool = True) -> None:
        """Replace a file atomically."""
        *above, last = names
        with (
            self.open_folder(*above, create=True) as folder,
            self._temporary(folder, data, durable=durable) as temporary,
        ):
            os.replace(temporary, must_be_name(last), src_dir_fd=folder, dst_dir_fd=folder)

    def create(self, data: bytes, *names: str) -> None:
        """Create a file atomically; of several attempts, one succeeds. Raises FileExistsError."""
        *above, last = names
        with self.open_folder(*above, create=True) as folder, self._temporary(folder, data) as temporary:
            os.link(temporary, must_be_name(last), src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def append(self, data: bytes, *names: str, durable: bool = True) -> None:
        """Append in one write, so that lines of several processes do not mix."""
        *above, last = names
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        with self.open_folder(*above, create=True) as folder, self.open_name(last, flags, folder) as descriptor:
            self._must_be_file(descriptor, "/".join(names))
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(descriptor)

    def move(self, source: tuple[str, ...], target: tuple[str, ...]) -> bool:
        """Move a file; return False if it is gone. An existing target is kept. Raises FileExistsError."""
        with self.open_folder(*source[:-1]) as start, self.open_folder(*target[:-1], create=True) as end:
            existing = status_at(end, target[-1])
            if existing is not None:
                moving = status_at(start, source[-1])
                if moving is None or (moving.st_dev, moving.st_ino) == (existing.st_dev, existing.st_ino):
                    return False
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "/".join(target))
            try:
                os.rename(must_be_name(source[-1]), must_be_name(target[-1]), src_dir_fd=start, dst_dir_fd=end)
            except FileNotFoundError:
                return False
            os.fsync(end)
            os.fsync(start)
            return True

    def remove(self, *names: str) -> None:
        *above, last = names
        with suppress(FileNotFoundError), self.open_folder(*above) as folder:
            os.unlink(must_be_name(last), dir_fd=folder)
            os.fsync(folder)

    def open_at(self, name: str, flags: int, folder: int) -> int:
        """Open a name in an open folder, without following a link."""
        try:
            return os.open(name, flags | os.O_NOFOLLOW, self.file_mode, dir_fd=folder)
        except OSError as error:
            if error.errno in LINK_ERRNOS or error.errno == errno.ENXIO:
                kind = "folder" if flags & os.O_DIRECTORY else "regular file"
                raise WrongFileTypeError(error.errno, f"expected a {kind}, not a link or a device", name) from None
            raise

    @contextmanager
    def open_name(self, name: str, flags: int, folder: int) -> Iterator[int]:
        descriptor = self.open_at(must_be_name(name), flags, folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def type_error(self, name: str, reason: str) -> Exception:
        return WrongFileTypeError(errno.EINVAL, reason, name)

    def _must_be_file(self, descriptor: int, name: str, *, is_linkable: bool | None = None) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(status.st_mode):
            raise self.type_error(name, "it is not a regular file")
        if status.st_nlink > 1 and not (self.hard_links if is_linkable is None else is_linkable):
            raise self.type_error(name, "it is a hard link: the same file has another name elsewhere")

    @contextmanager
    def _temporary(self, folder: int, data: bytes, *, durable: bool = True) -> Iterator[str]:
        """Write a temporary file and yield its name; it is removed after the block unless renamed."""
        name = f".{secrets.token_hex(8)}.tmp"
        try:
            with self.open_name(name, NEW_FLAGS, folder) as descriptor:
                write_all(descriptor, data)
                if durable:
                    os.fsync(descriptor)
            yield name
            if durable:
                os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


class PrivateDir(SafeDir):
    """A folder whose new files and folders only this user may open."""

    folder_mode, file_mode = 0o700, 0o600


def must_be_name(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"not the name of a file: {name[:200]!a}")
    return name


def status_at(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(must_be_name(name), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
