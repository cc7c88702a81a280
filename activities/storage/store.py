"""A run's store: what the runtime keeps by reference, or must not lose. On the worker's disk, or on an object store.

It holds closed segments, the definition snapshot and the effect ledger. Names are relative to the run's part of it,
with forward slashes. All methods raise FileNotFoundError, FileExistsError, or another OSError.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from activities.storage.workspace import Workspace, folder_name

FOLDER = ".store"  # of a run's workspace


class StoredFileChangedError(ValueError):
    """A stored file is not what its hash names. A run waits until the right file is back."""

    def __init__(self, name: str, expected: str, actual: str, verb: str = "its hash is") -> None:
        told = f"the stored file {name} was changed: {verb} {actual}, and history has {expected}"
        super().__init__(f"{told}. Restore the file; the run then goes on")


def must_have_hash(name: str, data: bytes, expected: str) -> bytes:
    """The same bytes. Raises StoredFileChangedError where their blake2b hash is another one."""
    actual = blake2b(data, digest_size=len(expected) // 2).hexdigest()
    if actual != expected:
        raise StoredFileChangedError(name, expected, actual)
    return data


class Store(Protocol):
    def read(self, name: str) -> bytes: ...

    def put(self, name: str, data: bytes) -> None:
        """Writes or replaces, durably and as a whole."""

    def create(self, name: str, data: bytes) -> None:
        """Writes what is not there yet; of several that try at the same time one succeeds."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder of the store, sorted; none where there is no such folder."""

    def clear(self) -> None:
        """Removes everything."""


class Stores(Protocol):
    def of(self, run_id: str) -> Store: ...

    def folders(self) -> Iterator[str]:
        """The folder of each run that has something here: `activities.storage.workspace.folder_name` of its id."""


@dataclass(frozen=True)
class LocalStore:
    """Hidden in the run's workspace, where no tool can reach it.

    What comes here has no secrets left, and is written as it is: closed segments are proven by their hashes.
    """

    workspace: Workspace

    def read(self, name: str) -> bytes:
        return self.workspace.read_own(f"{FOLDER}/{name}")

    def put(self, name: str, data: bytes) -> None:
        self.workspace.write_own(f"{FOLDER}/{name}", data)

    def create(self, name: str, data: bytes) -> None:
        self.workspace.create_own(f"{FOLDER}/{name}", data)

    def names(self, folder: str) -> list[str]:
        return self.workspace.names_own(f"{FOLDER}/{folder}")

    def clear(self) -> None:
        self.workspace.remove_own(FOLDER)


@dataclass(frozen=True)
class LocalStores:
    workspaces: Path

    def of(self, run_id: str) -> LocalStore:
        return LocalStore(Workspace(self.workspaces / folder_name(run_id)))

    def folders(self) -> Iterator[str]:
        if self.workspaces.is_dir():
            yield from sorted(p.name for p in self.workspaces.iterdir() if (p / FOLDER).is_dir())
