"""A run's store, on the worker's disk or on an object store: closed segments, definition snapshot, effect ledger.

Names are relative to the run's part of the store, with forward slashes. All methods raise FileNotFoundError,
FileExistsError, or another OSError.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from perdure.activities.storage.workspace import Workspace, folder_name
from perdure.decisions.ids import digest, key_id

STORE_FOLDER = ".store"  # of a run's workspace
FIRST_RUN_FILE = "first-run"  # in a store: the `execution` of the first run of the id; empty if unknown
LAID_OUT_FILE = "context.md"  # stays in the workspace when a run's store is swept

M = TypeVar("M", bound=BaseModel)


class StoredFileChangedError(ValueError):
    """A stored file does not match its hash. The run waits until the original file is back."""

    def __init__(self, name: str, expected: str, actual: str, verb: str = "its hash is") -> None:
        message = f"the stored file {name} was changed: {verb} {actual}, and history has {expected}"
        super().__init__(f"{message}. Restore the file; the run then goes on")


def must_have_hash(name: str, data: bytes, expected: str) -> bytes:
    """Return the data. Raises StoredFileChangedError if its blake2b hash does not match."""
    actual = digest(data, len(expected) // 2)
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

    def remove_older(self, folder: str, before: datetime) -> None:
        """Remove the files of a folder that were last written before a time."""

    def clear(self) -> None:
        """Remove everything."""


class Stores(Protocol):
    def of(self, run_id: str) -> Store: ...

    def list_folders(self) -> Iterator[str]:
        """Yield the folder of each run that has a store: `perdure.activities.storage.workspace.folder_name` of its
        id.
        """


def read_model(store: Store, name: str, model: type[M]) -> M | None:
    """Read a file as JSON, if it exists and is valid."""
    with suppress(FileNotFoundError, ValidationError):
        return model.model_validate_json(store.read(name))
    return None


def find_key_id(store: Store, workspace: Workspace, run_id: str, execution: str) -> str:
    """Return the id for the run's keys; "" for the first run of its id (A2). Idempotent per run. Raises OSError."""
    if not execution:
        return ""
    workspace.create()
    was_used = (workspace.root / LAID_OUT_FILE).exists()
    with suppress(FileExistsError):
        store.create(FIRST_RUN_FILE, b"" if was_used else execution.encode())
    return "" if store.read(FIRST_RUN_FILE).decode() == execution else key_id(run_id, execution)


@dataclass(frozen=True)
class LocalStore:
    """Hidden in the run's workspace, out of reach of tools. Bytes are written unchanged, since they have hashes."""

    workspace: Workspace

    def read(self, name: str) -> bytes:
        return self.workspace.read_own(f"{STORE_FOLDER}/{name}")

    def write(self, name: str, data: bytes) -> None:
        self.workspace.run_dir.write(data, STORE_FOLDER, *name.split("/"))

    def create(self, name: str, data: bytes) -> None:
        self.workspace.run_dir.create(data, STORE_FOLDER, *name.split("/"))

    def names(self, folder: str) -> list[str]:
        names = self.workspace.run_dir.names(STORE_FOLDER, *folder.split("/"))
        return [name for name in names if not name.startswith(".")]

    def remove_older(self, folder: str, before: datetime) -> None:
        for name in self.names(folder):
            path = (STORE_FOLDER, *folder.split("/"), name)
            status = self.workspace.run_dir.status(*path)
            if status is not None and status.st_mtime < before.timestamp():
                self.workspace.run_dir.remove(*path)

    def clear(self) -> None:
        self.workspace.run_dir.remove_tree(STORE_FOLDER)


@dataclass(frozen=True)
class LocalStores:
    workspaces: Path

    def of(self, run_id: str) -> LocalStore:
        return LocalStore(Workspace(self.workspaces / folder_name(run_id)))

    def list_folders(self) -> Iterator[str]:
        if self.workspaces.is_dir():
            yield from sorted(p.name for p in self.workspaces.iterdir() if (p / STORE_FOLDER).is_dir())
