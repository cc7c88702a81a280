"""A run's store on an object store: S3, Google Cloud Storage, Azure, and whatever speaks like one of them.

Only what `PERDURE_STORE` or `PERDURE_PAYLOADS` names needs this module, and `obstore`, which it brings along.
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

# Temporal tries again for as long as it takes, and shows it; here it would go on unseen for minutes.
RETRIES: "RetryConfig" = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}


@dataclass(frozen=True)
class RemoteStore:
    """Below `prefix`. An exclusive create is a conditional put here, which the service itself decides."""

    objects: ObjectStore
    prefix: str

    def read(self, name: str) -> bytes:
        with as_os_errors():
            return bytes(obstore.get(self.objects, f"{self.prefix}/{name}").bytes())

    def put(self, name: str, data: bytes) -> None:
        self._put(name, data, "overwrite")

    def create(self, name: str, data: bytes) -> None:
        self._put(name, data, "create")

    def names(self, folder: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._paths(f"{self.prefix}/{folder}"))

    def clear(self) -> None:
        with as_os_errors():
            obstore.delete(self.objects, self._paths(self.prefix))

    def _put(self, name: str, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        with as_os_errors():
            obstore.put(self.objects, f"{self.prefix}/{name}", data, mode=mode)

    def _paths(self, folder: str) -> list[str]:
        with as_os_errors():
            return [entry["path"] for batch in obstore.list(self.objects, folder) for entry in batch]


@dataclass(frozen=True)
class RemoteStores:
    objects: ObjectStore

    @classmethod
    def at(cls, url: str) -> "RemoteStores":
        """Raises ValueError for a URL that is none."""
        return cls(open_store(url))

    def of(self, run_id: str) -> RemoteStore:
        return RemoteStore(self.objects, folder_name(run_id))

    def folders(self) -> Iterator[str]:
        with as_os_errors():
            yield from sorted(obstore.list_with_delimiter(self.objects)["common_prefixes"])


def open_store(url: str) -> ObjectStore:
    """`s3://bucket/prefix`, `gs://…`, `az://…`; credentials and endpoint from the service's own variables.

    Raises ValueError for a URL that is none.
    """
    try:
        return from_url(url, client_options={"allow_http": True}, retry_config=RETRIES)
    except BaseError as error:
        raise ValueError(f"{url}: {_line(error)}") from None


@contextmanager
def as_os_errors(variable: str = "PERDURE_STORE") -> Iterator[None]:
    """The library's errors in the words of a disk, so that callers treat both alike."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(_line(error)) from None
    except BaseError as error:
        raise OSError(f"{variable}: {_line(error)}") from None


def _line(error: Exception) -> str:
    """The library adds pages of its own inner state."""
    return str(error).partition("\n")[0][:300]
