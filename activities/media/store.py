"""Media in a store, under `media/` and the hash of their bytes. Uploads have a store of their own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from activities.media.check import check_media, media_type_of, within_time
from activities.media.fit import fit_image
from activities.security.private import make_private
from activities.storage.store import LocalStore, Store, StoredFileChangedError, Stores
from contracts.media import PDF, MediaType, StoredMedia
from contracts.run.transcript import Part
from decisions.ids import UPLOADS_STORE
from decisions.text.media import list_media

MEDIA_FOLDER = "media"
STILL_TYPES = ("image/png", "image/jpeg")  # the others may move


def media_name(digest: str) -> str:
    """Return the name of media in a store."""
    return f"{MEDIA_FOLDER}/{digest}"


def keep_media(store: Store, data: bytes, name: str = "", path: str | None = None) -> StoredMedia:
    """Check the data and store it. Without a name, the path names it. Blocking. Raises MediaError and OSError."""
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
        fits = max(media.pixels or (0,)) <= side and media.bytes <= max_bytes
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
