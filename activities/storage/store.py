"""A run's store, on the worker's disk or on an object store: closed segments, definition snapshot, effect ledger.

Names are relative to the run's part of the store, with forward slashes. All methods raise FileNotFoundError,
FileExistsError, or another OSError.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from activities.storage.workspace import Workspace, folder_name

STORE_FOLDER = ".store"  # of a run's workspace


class StoredFileChangedError(ValueError):
    """A stored file does not match its hash. The run waits until the original file is back."""

    def __init__(self, name: str, expected: str, actual: str, verb: str = "its hash is") -> None:
        message = f"the stored file {name} was changed: {verb} {actual}, and history has {expected}"
        super().__init__(f"{message}. Restore the file; the run then goes on")


def must_have_hash(name: str, data: bytes, expected: str) -> bytes:
    """Return the data. Raises StoredFileChangedError if its blake2b hash does not match."""
    actual = blake2b(data, digest_size=len(expected) // 2).hexdigest()
    if actual != expected:
        raise StoredFileChangedError(name, expected, actual)
    return data


class Store(Protocol):
    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file, durably and atomically."""

    def create(self, name: str, data: bytes) -> None:
        """Create a file; of several concurrent attempts, one succeeds. Raises FileExistsError."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder of the store; empty if it does not exist."""

    def clear(self) -> None:
        """Remove everything."""


class Stores(Protocol):
    def of(self, run_id: str) -> Store: ...

    def list_folders(self) -> Iterator[str]:
        """Yield the folder of each run that has a store: `activities.storage.workspace.folder_name` of its id."""


@dataclass(frozen=True)
class LocalStore:
    """A store hidden in the run's workspace, out of reach of tools.

    Its content is already redacted, and is written unchanged, since segments are verified by their hashes.
    """

    workspace: Workspace

    def read(self, name: str) -> bytes:
        return self.workspace.read_own(f"{STORE_FOLDER}/{name}")

    def write(self, name: str, data: bytes) -> None:
        self.workspace.write_own(f"{STORE_FOLDER}/{name}", data)

    def create(self, name: str, data: bytes) -> None:
        self.workspace.create_own(f"{STORE_FOLDER}/{name}", data)

    def names(self, folder: str) -> list[str]:
        return self.workspace.list_own(f"{STORE_FOLDER}/{folder}")

    def clear(self) -> None:
        self.workspace.remove_own(STORE_FOLDER)


@dataclass(frozen=True)
class LocalStores:
    workspaces: Path

    def of(self, run_id: str) -> LocalStore:
        return LocalStore(Workspace(self.workspaces / folder_name(run_id)))

    def list_folders(self) -> Iterator[str]:
        if self.workspaces.is_dir():
            yield from sorted(p.name for p in self.workspaces.iterdir() if (p / STORE_FOLDER).is_dir())
