"""Media in a store, under `media/` and the hash of their bytes. Uploads have a store of their own."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.media.check import (
    MediaError,
    check_media,
    fit_image,
    is_media_type,
    media_type_of,
    trim_head,
    within_time,
)
from perdure.activities.project import Project
from perdure.activities.providers.options import visible_blocks
from perdure.activities.run.definition import read_definition
from perdure.activities.security import make_private
from perdure.activities.storage.store import LocalStore, Store, StoredFileChangedError, Stores
from perdure.activities.storage.workspace import ARTIFACTS, OutsideWorkspaceError, Workspace, suffix_of
from perdure.activities.temporal import own_run_id
from perdure.contracts.agent import Definition
from perdure.contracts.failures import RunFailure
from perdure.contracts.media import MAX_MEDIA_BYTES, PDF, Attached, Attachment, AttachRequest, MediaType, StoredMedia
from perdure.contracts.models import escape_unprintable
from perdure.contracts.run.transcript import Part
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.ids import UPLOADS_STORE
from perdure.decisions.model_names import provider_of
from perdure.decisions.run.compaction import COMPACT_AT
from perdure.decisions.text.media import list_media, media_block, media_tokens

MEDIA_FOLDER = "media"
STILL_TYPES = ("image/png", "image/jpeg")  # the others may move


def media_name(digest: str) -> str:
    """Return the name of media in a store."""
    return f"{MEDIA_FOLDER}/{digest}"


def keep_media(store: Store, data: bytes, name: str = "", path: str | None = None) -> StoredMedia:
    """Check the data and store it; of a PDF, what begins with its head. Without a name, the path names it. Blocking.

    Raises MediaError and OSError.
    """
    data = trim_head(data)
    kind, size = check_media(data, name or path or "")
    digest = sha256(data).hexdigest()
    store.write(media_name(digest), data)
    return StoredMedia(sha256=digest, media_type=kind, bytes=len(data), name=name, path=path, **size)


async def put_upload(stores: Stores, data: bytes, name: str) -> StoredMedia:
    """Check an uploaded file and store it for the messages that attach it. Raises MediaError and OSError."""
    store = stores.of(UPLOADS_STORE)
    if isinstance(store, LocalStore):
        await asyncio.to_thread(make_private, store.workspace.root)
    return await within_time(keep_media, store, data, name)


def read_media(store: Store, digest: str) -> bytes:
    """Read media. Blocking. Raises FileNotFoundError, another OSError, and StoredFileChangedError."""
    data = store.read(media_name(digest))
    if (actual := sha256(data).hexdigest()) != digest:
        raise StoredFileChangedError(media_name(digest), digest, actual)
    return data


def copy_media(source: Store, target: Store, digest: str) -> bytes:
    """Copy media from one store to another, and return the data. Blocking. Raises as `read_media`."""
    data = read_media(source, digest)
    target.write(media_name(digest), data)
    return data


@dataclass(frozen=True)
class MediaReader:
    """Reads the media of a run, and copies into its store what only the stores of `find_owners` have."""

    stores: Stores
    run_id: str
    find_owners: Callable[[], Awaitable[Sequence[str]]]

    async def read_fitted(self, media: StoredMedia, side: int, max_bytes: int) -> tuple[bytes, MediaType]:
        """Return the bytes within the limits of an image. A scaled copy is stored beside the original.

        Raises MediaError, OSError and StoredFileChangedError.
        """
        fits = max(media.pixels or (0,)) <= side and media.bytes <= max_bytes and not media.is_turned
        if media.media_type == PDF or (fits and media.media_type in STILL_TYPES):
            return await self._read_original(media), media.media_type
        store, name = self.stores.of(self.run_id), f"{media_name(media.sha256)}-{side}"
        with suppress(FileNotFoundError):
            scaled = await asyncio.to_thread(store.read, name)
            if known := media_type_of(scaled):
                return scaled, known
        data, kind = await within_time(fit_image, await self._read_original(media), media, side, max_bytes)
        await asyncio.to_thread(store.write, name, data)
        return data, kind

    async def _read_original(self, media: StoredMedia) -> bytes:
        own = self.stores.of(self.run_id)
        with suppress(FileNotFoundError):
            return await asyncio.to_thread(read_media, own, media.sha256)
        for owner in await self.find_owners():
            with suppress(FileNotFoundError):
                return await asyncio.to_thread(copy_media, self.stores.of(owner), own, media.sha256)
        name = media.name or media.path
        raise FileNotFoundError(f"the stored file {media_name(media.sha256)} ({name}) is gone: restore it")


async def copy_missing(source: Store, target: Store, parts: Iterable[Part]) -> None:
    """Copy the media of the parts that the source has and the target has not.

    Raises OSError and StoredFileChangedError.
    """
    digests = {media.sha256 for part in parts for media in list_media(part.content)}
    if not digests:
        return

    def copy_all() -> None:
        for digest in (digests & set(source.names(MEDIA_FOLDER))) - set(target.names(MEDIA_FOLDER)):
            copy_media(source, target, digest)

    await asyncio.to_thread(copy_all)


INPUTS = f"{ARTIFACTS}/inputs"  # forks and later turns of a conversation get it with the artifacts


class MediaFiles:
    def __init__(self, project: Project) -> None:
        self._project = project

    @activity.defn
    async def take_attachments(self, request: AttachRequest) -> Attached:
        """Check the attachments, and copy them into the run's store and workspace.

        Raises ApplicationError `InvalidInput` if an attachment of a start is refused, if no model of the agent can see
        it, or if they fill the model's window.
        """
        media: list[StoredMedia] = []
        refused: list[str] = []
        async with heartbeating(own_run_id):
            for attachment in request.attachments:
                try:
                    media.append(await self._take(attachment))
                except MediaError as error:
                    refused.append(str(error))
            if request.definition is not None:
                store = self._project.stores.of(own_run_id())
                definition = await read_definition(store, request.definition)
                refused = refused or self._start_rejections(media, definition)
                if refused:
                    message = f"payload.attachments: {'; '.join(refused)}"
                    raise ApplicationError(message, type=RunFailure.invalid_input, non_retryable=True)
        return Attached(media=tuple(media), refused=tuple(refused))

    async def _take(self, attachment: Attachment) -> StoredMedia:
        """Raises MediaError, and OSError of a disk that may come back."""
        name = escape_unprintable(attachment.name)
        workspace, store = self._project.workspace(own_run_id()), self._project.stores.of(own_run_id())
        data = await asyncio.to_thread(self._read_source, attachment, name)
        media = await within_time(keep_media, store, data, name, attachment.path)
        if attachment.path is not None:
            return media
        path = await asyncio.to_thread(_write_input, workspace, media, data)
        return media.evolve(path=path)

    def _read_source(self, attachment: Attachment, name: str) -> bytes:
        try:
            if attachment.sha256 is not None:
                return read_media(self._project.stores.of(UPLOADS_STORE), attachment.sha256)
            run_id, _, path = (attachment.artifact or "").partition("/")
            workspace = self._project.workspace(run_id or own_run_id())
            with workspace.open(attachment.path or path) as file:
                return file.read(MAX_MEDIA_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            found = f"no upload has the hash {attachment.sha256}" if attachment.sha256 else "there is no such file"
            raise MediaError(f"{name}: {found}") from None
        except (OutsideWorkspaceError, StoredFileChangedError) as error:
            raise MediaError(f"{name}: {error}") from None

    def _start_rejections(self, media: list[StoredMedia], definition: Definition) -> list[str]:
        """Return the reasons why the agent's models cannot begin with the media."""
        names = [provider_of(model, self._project.providers) for model in definition.models]
        chat = self._project.chat_providers
        seen = {
            kind
            for provider, model in names
            for kind in visible_blocks(model, definition.options, is_chat=provider in chat)
        }
        models, tokens = ", ".join(definition.models), sum(map(media_tokens, media))
        window = self._project.window_of(*definition.models)
        if blind := [item.name for item in media if media_block(item)["type"] not in seen]:
            reason = f"agent {definition.agent} ({models}) cannot see it; set `sees` of [model] if it can"
            return [f"{', '.join(blind)}: {reason}"]
        if tokens > COMPACT_AT * window:
            return [f"about {tokens:,} tokens, too many for the window of {models}, {window:,}; attach fewer pages"]
        return []


def _write_input(workspace: Workspace, media: StoredMedia, data: bytes) -> str | None:
    """Write the file where the run's tools find it. Return its path, None if the run has no room for it."""
    stem = re.sub(r"[^\w .-]+", "_", PurePosixPath(media.name).stem).strip(". ")[:80] or "file"
    suffix = suffix_of(media.media_type)
    path = f"{INPUTS}/{stem}{suffix}"
    try:
        if workspace.is_taken(path, data):
            path = f"{INPUTS}/{stem}-{sha256(data).hexdigest()[:8]}{suffix}"
        workspace.write(path, data)
    except OutsideWorkspaceError:
        return None
    return path


MAX_SHOWN_MEDIA = 20  # of one result


class ResultFiles:
    """The files of one result, whose names begin with `stem`. All methods block."""

    def __init__(self, stem: str, workspace: Workspace, store: Store | None) -> None:
        self.media: list[StoredMedia] = []
        self.paths: list[str] = []
        self._stem = stem
        self._workspace = workspace
        self._store = store

    def add_file(self, content_type: str, data: bytes) -> dict[str, Any]:
        """Store the data, and return its path, content type and bytes, or what was lost of it."""
        entry: dict[str, Any] = {"path": None, "content_type": content_type, "bytes": len(data)}
        number = len(self.paths) + 1
        stem = f"{self._stem}-{number}" if number > 1 else self._stem
        try:
            entry["path"] = self._workspace.write_artifact(stem, content_type, data)
        except (OSError, OutsideWorkspaceError) as error:  # the call was made: only this file is lost
            return entry | {"lost": f"the disk refused it: {error}"}
        self.paths.append(entry["path"])
        return entry | self._show(content_type, data, entry["path"])

    def to_outcome(self, content_type: str, data: bytes) -> ToolOutcome:
        """Store the only file of a result, and return the result."""
        entry = self.add_file(content_type, data)
        return ToolOutcome(result=entry, media=tuple(self.media), artifacts=tuple(self.paths))

    def _show(self, content_type: str, data: bytes, path: str) -> dict[str, str]:
        """Store the data as media if it is an image or a PDF. Return the reason if it cannot be shown."""
        if self._store is None or not (is_media_type(content_type) or media_type_of(data)):
            return {}
        if len(self.media) >= MAX_SHOWN_MEDIA:
            return {"not_shown": f"a result shows {MAX_SHOWN_MEDIA} images at most; read_file shows others"}
        try:
            self.media.append(keep_media(self._store, data, path=path))
        except (MediaError, OSError) as error:
            return {"not_shown": str(error)}
        return {}
