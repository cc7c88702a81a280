"""Which run had an id first. One that is started later under the same id has keys of its own (A2)."""

from contextlib import suppress

from activities.storage.store import Store
from activities.storage.workspace import Workspace
from decisions.ids import key_id

NAME = "first-run"  # of a store: the `execution` of the run that had its id first, or nothing where that is not known
LAID_OUT = "context.md"  # stays in the workspace when the store of a run is swept


def find_key_id(store: Store, workspace: Workspace, run_id: str, execution: str) -> str:
    """Return the id that the run's keys are made of; "" if it is the first run of its id, and they have that.

    Called again by the same run it returns the same. Raises OSError.
    """
    if not execution:
        return ""
    workspace.create()
    with suppress(FileExistsError):
        store.create(NAME, b"" if _was_used(workspace) else execution.encode())
    return "" if store.read(NAME).decode() == execution else key_id(run_id, execution)


def _was_used(workspace: Workspace) -> bool:
    try:
        workspace.read_own(LAID_OUT)
    except FileNotFoundError:
        return False
    return True
