"""A run's store and large payloads on an object store: S3, Google Cloud Storage, Azure, or a compatible service.

Imported only if `PERDURE_STORE` or `PERDURE_PAYLOADS` is set. Needs `obstore`.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from perdure.activities.storage.workspace import folder_name

if TYPE_CHECKING:
    from obstore.store import RetryConfig

# Temporal retries for as long as needed, and shows it; retries here would be invisible for minutes.
STORE_RETRIES: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}

PAYLOADS_VARIABLE = "PERDURE_PAYLOADS"
# The keys that `store` creates. A service rejects an invalid name with the same error as when it is unavailable.
_KEY = re.compile(r"([A-Za-z0-9_.%-]{1,100}/){1,2}[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteStore:
    """A store below `prefix`. An exclusive create is a conditional put, which the service decides."""

    objects: ObjectStore
    prefix: str

    def read(self, name: str) -> bytes:
        with as_os_errors():
            return bytes(obstore.get(self.objects, f"{self.prefix}/{name}").bytes())

    def write(self, name: str, data: bytes) -> None:
        with as_os_errors():
            obstore.put(self.objects, f"{self.prefix}/{name}", data)

    def create(self, name: str, data: bytes) -> None:
        with as_os_errors():
            obstore.put(self.objects, f"{self.prefix}/{name}", data, mode="create")

    def names(self, folder: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._list_paths(f"{self.prefix}/{folder}"))

    def remove_older(self, folder: str, before: datetime) -> None:
        with as_os_errors():
            files = (file for batch in obstore.list(self.objects, f"{self.prefix}/{folder}") for file in batch)
            obstore.delete(self.objects, [file["path"] for file in files if file["last_modified"] < before])

    def clear(self) -> None:
        with as_os_errors():
            obstore.delete(self.objects, self._list_paths(self.prefix))

    def _list_paths(self, folder: str) -> list[str]:
        with as_os_errors():
            return [entry["path"] for batch in obstore.list(self.objects, folder) for entry in batch]


@dataclass(frozen=True)
class RemoteStores:
    objects: ObjectStore

    @classmethod
    def at(cls, url: str) -> "RemoteStores":
        """Raises ValueError for an invalid URL."""
        return cls(open_store(url))

    def of(self, run_id: str) -> RemoteStore:
        return RemoteStore(self.objects, folder_name(run_id))

    def list_folders(self) -> Iterator[str]:
        with as_os_errors():
            yield from sorted(obstore.list_with_delimiter(self.objects)["common_prefixes"])


class PayloadStore(StorageDriver):
    """Large payloads, through the SDK's external storage: Temporal keeps a reference of some 100 bytes.

    They are named by the hash of their content below `<namespace>/<workflow id>/`. Nothing is ever deleted.

    Raises ValueError for an invalid URL. `store` and `retrieve` raise OSError if the store does not answer; `retrieve`
    raises ValueError if the payload is missing or damaged.
    """

    def __init__(self, url: str) -> None:
        self._objects = open_store(url)

    async def check_access(self) -> None:
        """Raise OSError if the store does not answer, or denies access."""
        with as_os_errors(PAYLOADS_VARIABLE):
            await obstore.list_with_delimiter_async(self._objects)

    def name(self) -> str:
        return "perdure"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        owner = context.target
        folder = f"{folder_name(owner.namespace)}/{folder_name(owner.id or '')}" if owner else "unowned"
        return list(await asyncio.gather(*(self._store_payload(folder, payload) for payload in payloads)))

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,  # noqa: ARG002 - the SDK's
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        return list(await asyncio.gather(*(self._retrieve_payload(claim.claim_data["key"]) for claim in claims)))

    async def _store_payload(self, folder: str, payload: Payload) -> StorageDriverClaim:
        data = payload.SerializeToString(deterministic=True)
        key = f"{folder}/{sha256(data).hexdigest()}"
        with as_os_errors(PAYLOADS_VARIABLE):
            await obstore.put_async(self._objects, key, data)
        return StorageDriverClaim({"key": key})

    async def _retrieve_payload(self, key: str) -> Payload:
        if not _KEY.fullmatch(key):
            raise ValueError("the reference names nothing that was ever stored")
        try:
            with as_os_errors(PAYLOADS_VARIABLE):
                data = bytes(await (await obstore.get_async(self._objects, key)).bytes_async())
        except FileNotFoundError:
            raise ValueError(f"there is no {key} in the store") from None
        if sha256(data).hexdigest() != key.rpartition("/")[2]:
            raise ValueError(f"{key} of the store is damaged")
        return Payload.FromString(data)


def open_store(url: str) -> ObjectStore:
    """Open `s3://…`, `gs://…` or `az://…`, with the credentials of the service's own variables. Raises ValueError."""
    try:
        return from_url(url, client_options={"allow_http": True}, retry_config=STORE_RETRIES)
    except BaseError as error:
        raise ValueError(f"{url}: {_first_line(error)}") from None


@contextmanager
def as_os_errors(variable: str = "PERDURE_STORE") -> Iterator[None]:
    """Turn the library's errors into OSError, so that callers treat both stores alike."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(_first_line(error)) from None
    except BaseError as error:
        raise OSError(f"{variable}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return the first line of a message: the library appends pages of internal state."""
    return str(error).partition("\n")[0][:300]
