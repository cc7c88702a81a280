"""Files of runs: those attached to messages, and artifacts, in folders that this process shares with the workers."""

import asyncio
import codecs
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO

from perdure.activities.media.check import MediaError, media_type_of
from perdure.activities.media.store import put_upload
from perdure.activities.storage.store import Stores
from perdure.activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace, folder_name
from perdure.client.errors import RejectedError
from perdure.contracts.media import MAX_ATTACHMENTS, MAX_MEDIA_BYTES, Attachment
from perdure.contracts.models import FrozenModel, escape_unprintable
from perdure.decisions.text.formatting import truncate

MAX_LISTED_ARTIFACTS = 10_000
MAX_KNOWN_ARTIFACTS = 10_000
HEAD_BYTES = 4096  # bytes from which the type of a file is known
NO_ARTIFACT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, OutsideWorkspaceError)
TEXT, UNKNOWN_TYPE = "text/plain; charset=utf-8", "application/octet-stream"


async def attach_files(stores: Stores, paths: Sequence[Path]) -> tuple[Attachment, ...]:
    """Check and store files for a message. Raises RejectedError with the first file that is not taken."""
    if len(paths) > MAX_ATTACHMENTS:
        raise RejectedError(f"{len(paths)} files are attached; the maximum is {MAX_ATTACHMENTS}")
    attachments = []
    for path in paths:
        name = truncate(escape_unprintable(path.name), 200)
        try:
            media = await put_upload(stores, await asyncio.to_thread(_read_file, path), name)
        except OSError as error:
            raise RejectedError(f"{path}: {error.strerror or error}") from None
        except MediaError as error:
            raise RejectedError(str(error)) from None
        attachments.append(Attachment(name=name, media_type=media.media_type, sha256=media.sha256))
    return tuple(attachments)


def _read_file(path: Path) -> bytes:
    """Read a file up to one byte more than media may have. Raises MediaError for anything else, such as a pipe."""
    path = path.expanduser()
    if path.exists() and not path.is_file():
        raise MediaError(f"{path}: not a file")
    with path.open("rb") as file:
        data = file.read(MAX_MEDIA_BYTES + 1)
    if len(data) > MAX_MEDIA_BYTES:
        raise MediaError(f"{path}: larger than {MAX_MEDIA_BYTES:,} bytes, which is the limit")
    return data


class Artifact(FrozenModel):
    """A file of a run. `path` begins with `artifacts/`, as in events; `content_type` is found in its content."""

    path: str
    bytes: int
    content_type: str
    sha256: str


@dataclass
class ArtifactReader:
    """Lists and opens artifacts. `workspaces` has a folder for each run.

    A file's type and hash are remembered as long as it does not change.
    """

    workspaces: Path
    _known: dict[tuple[int, ...], tuple[str, str]] = field(default_factory=dict)

    def list_artifacts(self, run_id: str) -> list[Artifact] | None:
        """Return the artifacts of a run; None if this process does not have the run's folder. Raises OSError."""
        workspace = Workspace(self.workspaces / folder_name(run_id))
        try:
            files = workspace.list_files(MAX_LISTED_ARTIFACTS)
        except FileNotFoundError:
            return None
        artifacts = []
        for path, _ in files:
            if path.startswith(f"{ARTIFACTS}/"):
                with suppress(*NO_ARTIFACT):  # removed or replaced meanwhile
                    file, artifact = self.open_artifact(run_id, path)
                    file.close()
                    artifacts.append(artifact)
        return artifacts

    def open_artifact(self, run_id: str, path: str) -> tuple[BinaryIO, Artifact]:
        """Open an artifact for reading. Raises OutsideWorkspaceError for any other path, and OSError."""
        if not path.startswith(f"{ARTIFACTS}/"):
            raise OutsideWorkspaceError(f"path {path[:200]!a} is not below {ARTIFACTS}/")
        file = Workspace(self.workspaces / folder_name(run_id)).open(path)
        try:
            status = os.fstat(file.fileno())
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if key not in self._known:
                if len(self._known) >= MAX_KNOWN_ARTIFACTS:
                    self._known.clear()
                self._known[key] = _describe_content(file)
            content_type, sha256 = self._known[key]
        except BaseException:
            file.close()
            raise
        return file, Artifact(path=path, bytes=status.st_size, content_type=content_type, sha256=sha256)


def _describe_content(file: BinaryIO) -> tuple[str, str]:
    """Return the type and the SHA-256 of an open file, which is then at its beginning again."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
    sha256 = file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # any open file has readinto
    file.seek(0)
    return _content_type_of(head), sha256


def _content_type_of(head: bytes) -> str:
    """Return the type: HTML and SVG, which could run programs in a browser, count as text."""
    if media_type := media_type_of(head):
        return media_type
    try:
        is_text = "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        is_text = False
    return TEXT if is_text else UNKNOWN_TYPE
