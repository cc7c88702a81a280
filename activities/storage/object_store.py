"""A run's store on an object store: S3, Google Cloud Storage, Azure, or a compatible service.

Imported only if `PERDURE_STORE` or `PERDURE_PAYLOADS` is set. Needs `obstore`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from activities.storage.workspace import folder_name

if TYPE_CHECKING:
    from obstore.store import RetryConfig

# Temporal retries for as long as needed, and shows it; retries here would be invisible for minutes.
STORE_RETRIES: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}


@dataclass(frozen=True)
class RemoteStore:
    """A store below `prefix`. An exclusive create is a conditional put, which the service decides."""

    objects: ObjectStore
    prefix: str

    def read(self, name: str) -> bytes:
        with as_os_errors():
            return bytes(obstore.get(self.objects, f"{self.prefix}/{name}").bytes())

    def write(self, name: str, data: bytes) -> None:
        self._put_object(name, data, "overwrite")

    def create(self, name: str, data: bytes) -> None:
        self._put_object(name, data, "create")

    def names(self, folder: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._list_paths(f"{self.prefix}/{folder}"))

    def clear(self) -> None:
        with as_os_errors():
            obstore.delete(self.objects, self._list_paths(self.prefix))

    def _put_object(self, name: str, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        with as_os_errors():
            obstore.put(self.objects, f"{self.prefix}/{name}", data, mode=mode)

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


def open_store(url: str) -> ObjectStore:
    """Open `s3://bucket/prefix`, `gs://…` or `az://…`; the service's own variables set credentials and endpoint.

    Raises ValueError for an invalid URL.
    """
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
