"""A run's folder. No path leads out of it.

Paths are opened folder by folder without following links, so a link swapped in between check and open leads nowhere.
Names that begin with a dot belong to the runtime. POSIX only.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import BinaryIO, ClassVar
from urllib.parse import quote, unquote_to_bytes

from perdure.activities.security import NO_SECRETS, Secrets, make_private
from perdure.decisions.ids import digest

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


_SUFFIXES = {
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/xhtml+xml": ".html",
    "application/xml": ".xml",
    "audio/mpeg": ".mp3",
    "audio/wav": ".wav",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/xml": ".xml",
}


def suffix_of(content_type: str) -> str:
    """Return the suffix, with its dot: the one of the type's family if the type is not known."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in _SUFFIXES:
        return _SUFFIXES[media_type]
    if media_type.endswith("+json"):
        return ".json"
    if media_type.endswith("+xml"):
        return ".xml"
    return ".txt" if media_type.startswith("text/") else ".bin"


ARTIFACTS = "artifacts"
MAX_RUN_FILES = 1000  # per run, artifacts included
MAX_RUN_BYTES = 256 * 1024 * 1024  # of these files together
RUNTIME_FILES = frozenset({"context.md", "memory.md", "plan.md", "trace.jsonl"})

_MAX_PARTS = 32  # each open folder of a path costs a descriptor while the tree is listed
_MAX_PATH_BYTES = 1000  # of a whole path, which must stay below PATH_MAX together with the root
_MAX_NAME_BYTES = 255
_ENCODED = re.compile(r"%(25)*(2e|2f|5c|00)", re.IGNORECASE)
_CODED = re.compile(r"(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+")


class OutsideWorkspaceError(ValueError):
    """A path that a run's tool may not use. The message is one line for the model."""


class RunDir(PrivateDir):
    """A run's folder, without hard links. Raises OutsideWorkspaceError for links and special files."""

    hard_links = False

    def open_at(self, name: str, flags: int, folder: int) -> int:
        try:
            return os.open(name, flags | os.O_NOFOLLOW, self.file_mode, dir_fd=folder)
        except OSError as error:
            if error.errno in LINK_ERRNOS and _is_link(status_at(folder, name)):
                raise _path_error(name, "a link is in the way") from None
            raise

    def type_error(self, name: str, reason: str) -> Exception:
        return _path_error(name, reason)

    def create(self, data: bytes, *names: str) -> None:
        """Create a file in its place, since a file that is linked for a moment would be rejected as a hard link."""
        *above, last = names
        with self.open_folder(*above, create=True) as folder:
            with self.open_name(last, NEW_FLAGS, folder) as descriptor:
                try:
                    write_all(descriptor, data)
                    os.fsync(descriptor)
                except BaseException:  # the disk rejects the bytes
                    os.unlink(last, dir_fd=folder)
                    raise
            os.fsync(folder)

    def remove_tree(self, name: str) -> None:
        """Remove a folder and its content. Links are removed, not followed."""
        with suppress(FileNotFoundError), self.open_folder() as folder:
            shutil.rmtree(name, dir_fd=folder)


@dataclass(frozen=True)
class Workspace:
    """A run's folder, `root`. Paths are relative to it, with forward slashes. `secrets` are redacted in writes.

    All methods raise `OutsideWorkspaceError` for a rejected path, and `OSError` for errors of the disk.
    """

    root: Path
    secrets: Secrets = NO_SECRETS

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.root)

    def create(self) -> None:
        """Create the folder and `artifacts/` if they are missing."""
        make_private(self.root)
        (self.root / ARTIFACTS).mkdir(mode=0o700, exist_ok=True)

    def resolve(self, relative: str, *, writing: bool = False) -> Path:
        """Return a tool's path as absolute. It need not exist; show it, but do not open it."""
        parts = _split_tool_path(relative, writing=writing)
        path = self.root
        for part in parts:
            path /= part
            if path.is_symlink():
                raise _path_error(relative, "a link is in the way")
        return path

    def open(self, relative: str) -> BinaryIO:
        """Open a regular file for reading, as a tool may."""
        return self.run_dir.open(*_split_tool_path(relative, writing=False))

    def read_own(self, relative: str) -> bytes:
        """Read a whole file, for the runtime, which may also read hidden names."""
        with self.run_dir.open(*_split_path(relative)) as file:
            return file.read()

    def write(self, relative: str, data: bytes) -> None:
        """Replace a file atomically, as a tool may, and create the folders above it. The run's limits apply."""
        parts = _split_tool_path(relative, writing=True)
        self._must_have_room("/".join(parts), len(data))
        self._replace_file(parts, data, durable=True)

    def write_artifact(self, stem: str, content_type: str, data: bytes) -> str:
        """Write a result as an artifact, and return its path. A path with other content gets a suffix.

        The turns of a conversation share their artifacts, but each counts its steps from the start.
        """
        path = self.artifact_path(stem, content_type)
        if self.is_taken(path, data):
            path = self.artifact_path(f"{stem[:80]}-{digest(data, 4)}", content_type)
        self.write(path, data)
        return path

    def is_taken(self, relative: str, data: bytes) -> bool:
        """Return True if the file exists with other content."""
        try:
            with self.open(relative) as file:
                return file.read() != self.secrets.redact_bytes(data)
        except FileNotFoundError:
            return False

    def write_own(self, relative: str, data: bytes) -> None:
        """As `write`, for the runtime's own files: without limits, and not durably."""
        self._replace_file(_split_path(relative), data, durable=False)

    def append_line(self, name: str, line: str) -> None:
        """Append a line in one write, so that lines of several workers do not mix; for the runtime."""
        if "\n" in line:
            raise ValueError("a line has no line break inside")
        data = self.secrets.redact(line).encode(errors="replace") + b"\n"
        self.run_dir.append(data, *_split_path(name), durable=False)

    def list_files(self, limit: int) -> list[tuple[str, int]]:
        """Return up to `limit` files with their sizes in bytes, sorted by path, without links and hidden names."""
        with self.run_dir.open_folder() as folder:
            return list(islice(self._walk_files(folder, "", _MAX_PARTS), limit))

    def artifact_path(self, stem: str, content_type: str) -> str:
        """Return an artifact's path: ("fetch-01", "text/html") gives `artifacts/fetch-01.html`."""
        return f"{ARTIFACTS}/{re.sub(r'[^A-Za-z0-9_-]+', '-', stem)[:100] or 'artifact'}{suffix_of(content_type)}"

    def copy_artifacts(self, source: "Workspace") -> None:
        """Copy the artifacts of another run, whose conversation refers to their paths. Special files are left out."""
        self.create()
        if (source.root / ARTIFACTS).is_dir():
            shutil.copytree(
                source.root / ARTIFACTS,
                self.root / ARTIFACTS,
                ignore=ignore_special_files,
                copy_function=_copy_file,
                dirs_exist_ok=True,
            )

    def _must_have_room(self, path: str, size: int) -> None:
        others = [file for file in self.list_files(MAX_RUN_FILES + 1) if file[0] != path]
        if len(others) >= MAX_RUN_FILES:
            raise _path_error(
                path, f"this run has {MAX_RUN_FILES:,} files, which is the limit; write into an existing one"
            )
        if sum(other for _, other in others) + size > MAX_RUN_BYTES:
            raise _path_error(
                path, f"the files of this run would have more than {MAX_RUN_BYTES:,} bytes, which is the limit"
            )

    def _replace_file(self, parts: list[str], data: bytes, *, durable: bool) -> None:
        if _is_link(self.run_dir.status(*parts)):
            raise _path_error("/".join(parts), "a link is in the way")
        self.run_dir.write(self.secrets.redact_bytes(data), *parts, durable=durable)

    def _walk_files(self, folder: int, above: str, depth: int) -> Iterator[tuple[str, int]]:
        """Yield the files below, lazily and sorted by path: a folder sorts as its name with a slash."""
        with os.scandir(folder) as entries:
            visible = [
                (entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name, entry)
                for entry in entries
                if not entry.name.startswith(".") and not entry.is_symlink()
            ]
        for name, entry in sorted(visible, key=lambda pair: pair[0]):
            # A file that disappears, or turns into a link, during the walk is left out.
            with suppress(FileNotFoundError, NotADirectoryError, OutsideWorkspaceError):
                if not name.endswith("/"):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield above + name, status.st_size
                elif depth > 1:
                    with self.run_dir.open_name(entry.name, FOLDER_FLAGS, folder) as inner:
                        yield from self._walk_files(inner, above + name, depth - 1)


def ignore_special_files(folder: str, names: list[str]) -> list[str]:
    """Return the names that are not copied: symbolic and hard links, pipes and other special files."""
    paths = [Path(folder) / name for name in names]
    files = {path for path in paths if path.is_file() and path.stat().st_nlink == 1}
    return [path.name for path in paths if path.is_symlink() or not (path.is_dir() or path in files)]


def _copy_file(source: str, target: str) -> None:
    """Copy a file whole, unless the target exists: the run may have replaced it since."""
    path = Path(target)
    if not path.exists():
        part = path.with_name(f".{secrets.token_hex(8)}.tmp")
        shutil.copy2(source, part)
        part.replace(path)


def folder_name(run_id: str) -> str:
    """Encode an id from outside as a folder name: unique per id, and unchanged for ordinary ids.

    At most 100 bytes of letters, digits and `_-.%`; never empty, never with a leading dot.
    """
    if not run_id:
        return "%empty"
    bare = run_id.lstrip(".")
    quoted = quote(bare, safe="", errors="surrogatepass").replace("~", "%7E")
    encoded = "%2E" * (len(run_id) - len(bare)) + quoted
    if len(encoded) <= 100:
        return encoded
    # Encoding never produces "%-", so no short id has the name of a long one.
    return f"{encoded[:66]}%-{sha256(run_id.encode(errors='surrogatepass')).hexdigest()[:32]}"


def run_id_in(name: str) -> str | None:
    """Return the id that `folder_name` encoded, if it can be decoded: long ids are hashed."""
    if not _CODED.fullmatch(name):
        return None
    try:
        run_id = unquote_to_bytes(name).decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    return run_id if folder_name(run_id) == name else None


def _split_path(relative: str) -> list[str]:
    """Split a path that stays below the root under any interpretation into its names."""
    if relative.startswith("/") or re.match(r"[A-Za-z]:", relative):
        raise _path_error(relative, "it must be relative to the workspace")
    if "\\" in relative or _ENCODED.search(relative):
        raise _path_error(relative, "backslashes and percent-encoded dots or slashes are not allowed")
    if not relative.isprintable():  # also NUL, line breaks, lone surrogates, invisible characters
        raise _path_error(relative, "it has characters that cannot be printed")
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    if not parts:
        raise _path_error(relative, "it names no file")
    if ".." in parts or any(part.startswith("~") for part in parts):
        raise _path_error(relative, "`..` and `~` are not allowed")
    if len(parts) > _MAX_PARTS or len(relative.encode()) > _MAX_PATH_BYTES:
        raise _path_error(relative, "it is too long")
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise _path_error(relative, "a name in it is too long")
    return parts


def _split_tool_path(relative: str, *, writing: bool) -> list[str]:
    """Split a path that a tool may read or write."""
    parts = _split_path(relative)
    # A file system may take ".GIT", or a look-alike of it, for ".git".
    plain = [unicodedata.normalize("NFKC", part).casefold() for part in parts]
    if any(part.startswith(".") for part in plain):
        raise _path_error(relative, "names that begin with a dot are reserved")
    if writing and plain[0] in RUNTIME_FILES:
        raise _path_error(relative, "this file is written by the runtime; choose another name")
    return parts


def _path_error(relative: str, reason: str) -> OutsideWorkspaceError:
    return OutsideWorkspaceError(f"path {relative[:200]!a} is refused: {reason}")


def _is_link(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISLNK(status.st_mode)
