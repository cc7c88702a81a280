"""The first run of an id. A later run with the same id gets its own keys (A2)."""

from contextlib import suppress

from activities.storage.store import Store
from activities.storage.workspace import Workspace
from decisions.ids import key_id

FIRST_RUN_FILE = "first-run"  # in a store: the `execution` of the first run of the id; empty if unknown
LAID_OUT_FILE = "context.md"  # stays in the workspace when a run's store is swept


def find_key_id(store: Store, workspace: Workspace, run_id: str, execution: str) -> str:
    """Return the id for the run's keys; "" for the first run of its id. Idempotent per run. Raises OSError."""
    if not execution:
        return ""
    workspace.create()
    with suppress(FileExistsError):
        store.create(FIRST_RUN_FILE, b"" if _was_used(workspace) else execution.encode())
    return "" if store.read(FIRST_RUN_FILE).decode() == execution else key_id(run_id, execution)


def _was_used(workspace: Workspace) -> bool:
    try:
        workspace.read_own(LAID_OUT_FILE)
    except FileNotFoundError:
        return False
    return True
