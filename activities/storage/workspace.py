"""A run's folder, and nothing outside it.

Every path is opened folder by folder without following links, so a link swapped in between check and open
leads nowhere. Names that begin with a dot are the runtime's own. POSIX only.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from activities.security.private import make_private
from activities.security.secrets import NO_SECRETS, Secrets
from activities.tools.content_type import suffix_of

ARTIFACTS = "artifacts"
MAX_FILES = 1000  # of one run, with its artifacts; MAX_BYTES is what they have together
MAX_BYTES = 256 * 1024 * 1024
RUNTIME_FILES = frozenset({"context.md", "memory.md", "plan.md", "trace.jsonl"})

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_MOST_PARTS = 32  # each open folder of a path costs a descriptor while the tree is listed
_MOST_BYTES = 1000  # of a whole path; what comes after the root must stay below PATH_MAX
_MOST_NAME_BYTES = 255
_ENCODED = re.compile(r"%(25)*(2e|2f|5c|00)", re.IGNORECASE)
_CODED = re.compile(r"(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+")


class OutsideWorkspace(ValueError):
    """The path is none that a run's tool may use. The message is one line, fit for the model."""


@dataclass(frozen=True)
class Workspace:
    """`root` is the run's folder. Paths are relative to it, with forward slashes.

    What is written has its `secrets` redacted.
    All methods raise `OutsideWorkspace` for a path that is refused, and `OSError` for what the disk says.
    """

    root: Path
    secrets: Secrets = NO_SECRETS

    def create(self) -> None:
        """Makes the folder, with `artifacts/` in it, where they are missing."""
        make_private(self.root)
        (self.root / ARTIFACTS).mkdir(mode=0o700, exist_ok=True)

    def resolve(self, relative: str, *, writing: bool = False) -> Path:
        """The absolute path of what a tool calls `relative`, which need not exist; good for showing, not opening."""
        parts = _tool_parts(relative, writing=writing)
        path = self.root
        for part in parts:
            path /= part
            if path.is_symlink():
                raise _refused(relative, "a link is in the way")
        return path

    def open(self, relative: str) -> BinaryIO:
        """Opens a regular file for reading, as a tool may."""
        return self._open(_tool_parts(relative, writing=False))

    def read_own(self, relative: str) -> bytes:
        """A whole file; for the runtime, which may also read what is hidden."""
        with self._open(_parts(relative)) as file:
            return file.read()

    def write(self, relative: str, data: bytes) -> None:
        """Replaces a file atomically, as a tool may; makes the folders above it. A run's folder has a limit."""
        parts = _tool_parts(relative, writing=True)
        self._must_have_room("/".join(parts), len(data))
        self._replace(parts, data)

    def keep(self, stem: str, content_type: str, data: bytes) -> str:
        """Writes a result as an artifact, and says where: a path that was told before keeps what it holds.

        The turns of a conversation share their artifacts, and each counts its steps anew.
        """
        path = self.artifact_path(stem, content_type)
        if self.is_taken(path, data):
            path = self.artifact_path(f"{stem[:80]}-{blake2b(data, digest_size=4).hexdigest()}", content_type)
        self.write(path, data)
        return path

    def is_taken(self, relative: str, data: bytes) -> bool:
        """Whether there is a file that holds something else."""
        try:
            with self.open(relative) as file:
                return file.read() != self.secrets.redact_bytes(data)
        except FileNotFoundError:
            return False

    def write_own(self, relative: str, data: bytes, *, durable: bool = True) -> None:
        """As `write`; for the runtime, whose files tools may not write. What can be made again need not be durable."""
        self._replace(_parts(relative), data, durable=durable)

    def create_own(self, relative: str, data: bytes) -> None:
        """Writes a file durably where there is none; of several that try, one succeeds. Raises FileExistsError.

        A disk that refuses the bytes leaves nothing behind.
        """
        *folders, last = _parts(relative)
        with self._folder(folders, create=True) as folder:
            with _opened(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder) as descriptor:
                try:
                    _write_all(descriptor, data)
                    os.fsync(descriptor)
                except BaseException:
                    os.unlink(last, dir_fd=folder)
                    raise
            os.fsync(folder)

    def names_own(self, relative: str) -> list[str]:
        """The names in a folder of the runtime, sorted; none where there is no such folder."""
        try:
            with self._folder(_parts(relative)) as folder, os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except FileNotFoundError:
            return []

    def remove_own(self, relative: str) -> None:
        """Removes a folder of the runtime with all that is in it. Links are removed, not followed."""
        *folders, last = _parts(relative)
        with suppress(FileNotFoundError), self._folder(folders) as folder:
            shutil.rmtree(last, dir_fd=folder)

    def append_line(self, name: str, line: str) -> None:
        """Appends one line in one write, so that lines of several workers stay whole; for the runtime."""
        if "\n" in line:
            raise ValueError("a line has no line break inside")
        *folders, last = _parts(name)
        data = self.secrets.redact(line).encode(errors="replace") + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        with self._folder(folders, create=True) as folder, _opened(last, flags, folder) as descriptor:
            _must_be_file(descriptor, name)
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def listing(self, limit: int) -> list[tuple[str, int]]:
        """Up to `limit` files with their sizes in bytes, sorted by path; without links and hidden names."""
        with self._folder([]) as folder:
            return list(islice(_files(folder, "", _MOST_PARTS), limit))

    def artifact_path(self, stem: str, content_type: str) -> str:
        """Where an artifact goes: ("fetch-01", "text/html") gives `artifacts/fetch-01.html`."""
        return f"{ARTIFACTS}/{re.sub(r'[^A-Za-z0-9_-]+', '-', stem)[:100] or 'artifact'}{suffix_of(content_type)}"

    def _must_have_room(self, path: str, size: int) -> None:
        others = [file for file in self.listing(MAX_FILES + 1) if file[0] != path]
        if len(others) >= MAX_FILES:
            raise _refused(path, f"this run has {MAX_FILES:,} files, which is the limit; write into an existing one")
        if sum(other for _, other in others) + size > MAX_BYTES:
            raise _refused(path, f"the files of this run would have more than {MAX_BYTES:,} bytes, which is the limit")

    def _open(self, parts: list[str]) -> BinaryIO:
        *folders, last = parts
        # Non-blocking: to open a named pipe would otherwise wait for its other end.
        with (
            self._folder(folders) as folder,
            _opened(last, os.O_RDONLY | os.O_NONBLOCK, folder) as descriptor,
        ):
            _must_be_file(descriptor, "/".join(parts))
            return os.fdopen(os.dup(descriptor), "rb")

    def _replace(self, parts: list[str], data: bytes, *, durable: bool = True) -> None:
        *folders, last = parts
        data = self.secrets.redact_bytes(data)
        temporary = f".tmp-{secrets.token_hex(8)}"
        with self._folder(folders, create=True) as folder:
            if _is_link(last, folder):
                raise _refused("/".join(parts), "a link is in the way")
            try:
                with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder) as descriptor:
                    _write_all(descriptor, data)
                    if durable:
                        os.fsync(descriptor)
                os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
                if durable:
                    os.fsync(folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @contextmanager
    def _folder(self, parts: list[str], *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder, reached one name at a time."""
        descriptor = os.open(self.root, _FOLDER)
        try:
            for part in parts:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, mode=0o700, dir_fd=descriptor)
                inner = _open_at(part, _FOLDER, descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def folder_name(run_id: str) -> str:
    """An id from outside as the name of one folder: different ids, different names; ordinary ids as they are.

    At most 100 bytes of letters, digits and `_-.%`; never empty, never with a leading dot.
    """
    if not run_id:
        return "%empty"
    bare = run_id.lstrip(".")
    dots = len(run_id) - len(bare)
    encoded = "%2E" * dots + re.sub(r"[^A-Za-z0-9_.-]", lambda found: _percent(found[0]), bare, flags=re.ASCII)
    if len(encoded) <= 100:
        return encoded
    # "%-" cannot come from encoding, so no short id has the name of a long one.
    return f"{encoded[:66]}%-{sha256(run_id.encode(errors='surrogatepass')).hexdigest()[:32]}"


def run_id_in(name: str) -> str | None:
    """The id that `folder_name` made this name of; None for a long one, and for a name of somebody else's."""
    if not _CODED.fullmatch(name):
        return None
    try:
        run_id = unquote_to_bytes(name).decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    return run_id if folder_name(run_id) == name else None


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def _parts(relative: str) -> list[str]:
    """The names on the path, if it stays below the root however it is read."""
    if relative.startswith("/") or re.match(r"[A-Za-z]:", relative):
        raise _refused(relative, "it must be relative to the workspace")
    if "\\" in relative or _ENCODED.search(relative):
        raise _refused(relative, "backslashes and percent-encoded dots or slashes are not allowed")
    if not relative.isprintable():  # also NUL, line breaks, lone surrogates, invisible characters
        raise _refused(relative, "it has characters that cannot be printed")
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    if not parts:
        raise _refused(relative, "it names no file")
    if ".." in parts or any(part.startswith("~") for part in parts):
        raise _refused(relative, "`..` and `~` are not allowed")
    if len(parts) > _MOST_PARTS or len(relative.encode()) > _MOST_BYTES:
        raise _refused(relative, "it is too long")
    if any(len(part.encode()) > _MOST_NAME_BYTES for part in parts):
        raise _refused(relative, "a name in it is too long")
    return parts


def _tool_parts(relative: str, *, writing: bool) -> list[str]:
    """As `_parts`, and what is there is a tool's to read or write."""
    parts = _parts(relative)
    # A file system may take ".GIT", or a look-alike of it, for ".git".
    plain = [unicodedata.normalize("NFKC", part).casefold() for part in parts]
    if any(part.startswith(".") for part in plain):
        raise _refused(relative, "names that begin with a dot are reserved")
    if writing and plain[0] in RUNTIME_FILES:
        raise _refused(relative, "this file is written by the runtime; choose another name")
    return parts


def _refused(relative: str, why: str) -> OutsideWorkspace:
    return OutsideWorkspace(f"path {relative[:200]!a} is refused: {why}")


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _open_at(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    except OSError as error:
        # What a link gives here depends on the flags and the system, so look instead of guessing.
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EMLINK} and _is_link(name, folder):
            raise _refused(name, "a link is in the way") from None
        raise


@contextmanager
def _opened(name: str, flags: int, folder: int) -> Iterator[int]:
    descriptor = _open_at(name, flags, folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _must_be_file(descriptor: int, name: str) -> None:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(status.st_mode):
        raise _refused(name, "it is not a regular file")
    if status.st_nlink > 1:
        raise _refused(name, "it is a hard link: the same file has another name elsewhere")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _files(folder: int, above: str, depth: int) -> Iterator[tuple[str, int]]:
    """Files below, lazily and in the order of their paths: a folder sorts as its name and a slash."""
    with os.scandir(folder) as entries:
        found = [
            (entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name, entry)
            for entry in entries
            if not entry.name.startswith(".") and not entry.is_symlink()
        ]
    for name, entry in sorted(found, key=lambda pair: pair[0]):
        # What vanishes, or turns into a link, while the tree is read is left out.
        with suppress(FileNotFoundError, NotADirectoryError, OutsideWorkspace):
            if not name.endswith("/"):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield above + name, status.st_size
            elif depth > 1:
                with _opened(entry.name, _FOLDER, folder) as inner:
                    yield from _files(inner, above + name, depth - 1)
