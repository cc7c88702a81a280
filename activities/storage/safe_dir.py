"""A folder that others write into as well: each name in it is opened by itself, and no link is followed. POSIX only."""

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

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOCKED_WITHIN = 5.0  # seconds
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class NotThere(OSError):
    """A link, a device or the like is where a folder or a file is expected."""


@dataclass(frozen=True)
class Beneath:
    """Names are given one by one, and are names: no slashes, no `..`. What is written is durable when it returns.

    All methods raise OSError, of which FileNotFoundError and FileExistsError say what they say; ValueError for what
    is no name.
    """

    root: Path

    @contextmanager
    def folder(self, *names: str, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in names:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(must_be_name(name), dir_fd=descriptor)
                inner = _opened(must_be_name(name), _FOLDER, descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self, *names: str) -> Iterator[None]:
        """While the block runs, no other process that asks is in this folder. The kernel lets go of what has died; what
        has not, and does not let go, is not waited for for ever.
        """
        with self.folder(*names, create=True) as folder:
            _lock(folder, "/".join(names))
            yield

    def read(self, *names: str, most: int, is_linkable: bool = True) -> bytes:
        """A regular file; of a larger one, `most` + 1 bytes. A hard link is refused unless it `is_linkable`."""
        *above, last = names
        with self.folder(*above) as folder:
            return read_at(folder, last, most, is_linkable=is_linkable)

    def status(self, *names: str) -> os.stat_result | None:
        """Of the thing itself, not of what it links to. None where there is none."""
        *above, last = names
        with suppress(FileNotFoundError), self.folder(*above) as folder:
            return os.stat(must_be_name(last), dir_fd=folder, follow_symlinks=False)
        return None

    def names(self, *names: str) -> list[str]:
        """What is in a folder, sorted. Nothing where there is no such folder."""
        with suppress(FileNotFoundError), self.folder(*names) as folder, os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
        return []

    def write(self, data: bytes, *names: str) -> None:
        """Replaces a file as a whole."""
        *above, last = names
        with self.folder(*above, create=True) as folder, _temporary(folder, data) as temporary:
            os.replace(temporary, must_be_name(last), src_dir_fd=folder, dst_dir_fd=folder)

    def create(self, data: bytes, *names: str) -> None:
        """A file that is there as a whole or not at all; of several that try, one succeeds. Raises FileExistsError."""
        *above, last = names
        with self.folder(*above, create=True) as folder, _temporary(folder, data) as temporary:
            os.link(temporary, must_be_name(last), src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def append(self, data: bytes, *names: str) -> None:
        """In one write, so that lines of several processes stay whole."""
        *above, last = names
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
        with self.folder(*above, create=True) as folder:
            descriptor = _opened(must_be_name(last), flags, folder)
            try:
                _must_be_file(descriptor, last)
                if os.write(descriptor, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def move(self, source: tuple[str, ...], target: tuple[str, ...]) -> bool:
        """Whether it was there to be moved. What has the target's name already stays. Raises FileExistsError."""
        with self.folder(*source[:-1]) as start, self.folder(*target[:-1], create=True) as end:
            there = _status_at(end, target[-1])
            if there is not None:
                here = _status_at(start, source[-1])
                if here is None or (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
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
        with suppress(FileNotFoundError), self.folder(*above) as folder:
            os.unlink(must_be_name(last), dir_fd=folder)
            os.fsync(folder)


def must_be_name(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"not the name of a file: {name[:200]!a}")
    return name


def read_at(folder: int, name: str, most: int, *, is_linkable: bool = True) -> bytes:
    """As `Beneath.read`. Opening a named pipe does not wait for its other end."""
    descriptor = _opened(must_be_name(name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, folder)
    with os.fdopen(descriptor, "rb") as file:
        _must_be_file(descriptor, name)
        if not is_linkable and os.fstat(descriptor).st_nlink > 1:
            raise NotThere(errno.EMLINK, "a hard link: the same file has another name elsewhere", name)
        return file.read(most + 1)


def _lock(folder: int, name: str) -> None:
    deadline = time.monotonic() + LOCKED_WITHIN
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.ENOLCK, "another process holds the lock of this folder", name) from None
            time.sleep(0.01)  # in a thread: the kernel wakes nobody who waits for a lock with an end to it
        else:
            return


def _opened(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO}:
            is_folder = bool(flags & os.O_DIRECTORY)
            what = "folder" if is_folder else "regular file"
            raise NotThere(error.errno, f"expected a {what}, not a link or a device", name) from None
        raise


def _must_be_file(descriptor: int, name: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise NotThere(errno.EINVAL, "expected a regular file", name)


def _status_at(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(must_be_name(name), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def _temporary(folder: int, data: bytes) -> Iterator[str]:
    """A file with these bytes on the disk, gone after the block if it still has its name."""
    name = f".{secrets.token_hex(8)}.tmp"
    descriptor = os.open(name, _NEW, 0o666, dir_fd=folder)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield name
        os.fsync(folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
