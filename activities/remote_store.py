"""A run's store on an object store: S3, Google Cloud Storage, Azure, and whatever speaks like one of them.

Only what `PERDURE_STORE` names needs this module, and `obstore`, which it brings along.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from activities.workspace import folder_name


@dataclass(frozen=True)
class RemoteStore:
    """Below `prefix`. An exclusive create is a conditional put here, which the service itself decides."""

    objects: ObjectStore
    prefix: str

    def read(self, name: str) -> bytes:
        with _as_os_errors():
            return bytes(obstore.get(self.objects, f"{self.prefix}/{name}").bytes())

    def put(self, name: str, data: bytes) -> None:
        self._put(name, data, "overwrite")

    def create(self, name: str, data: bytes) -> None:
        self._put(name, data, "create")

    def names(self, folder: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._paths(f"{self.prefix}/{folder}"))

    def clear(self) -> None:
        with _as_os_errors():
            obstore.delete(self.objects, self._paths(self.prefix))

    def _put(self, name: str, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        with _as_os_errors():
            obstore.put(self.objects, f"{self.prefix}/{name}", data, mode=mode)

    def _paths(self, folder: str) -> list[str]:
        with _as_os_errors():
            return [entry["path"] for batch in obstore.list(self.objects, folder) for entry in batch]


@dataclass(frozen=True)
class RemoteStores:
    objects: ObjectStore

    @classmethod
    def at(cls, url: str) -> "RemoteStores":
        """`s3://bucket/prefix`, `gs://…`, `az://…`; credentials and endpoint from the service's own variables.

        Raises ValueError for a URL that is none.
        """
        try:
            return cls(from_url(url, client_options={"allow_http": True}))
        except BaseError as error:
            raise ValueError(f"{url}: {str(error)[:300]}") from None

    def of(self, run_id: str) -> RemoteStore:
        return RemoteStore(self.objects, folder_name(run_id))

    def folders(self) -> Iterator[str]:
        with _as_os_errors():
            yield from sorted(obstore.list_with_delimiter(self.objects)["common_prefixes"])


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """The library's errors in the words of a disk, so that callers treat both alike."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(str(error)[:500]) from None
    except BaseError as error:
        raise OSError(str(error)[:500]) from None
