"""Reading a run's snapshot page by page: a turn may hold more results than one query can return."""

from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowHandle

from contracts.run.state import Snapshot, SnapshotQuery


async def read_snapshot(run: WorkflowHandle[Any, Any], within: timedelta | None = None) -> Snapshot:
    """Read the snapshot. `within` is the timeout of each page.

    Raises RPCError, and WorkflowQueryFailedError if the run was rejected at its start.
    """
    while True:
        first = await _read_page(run, 0, within)
        calls = first.state.calls
        page = first
        while page.state.updated_at == first.state.updated_at and len(calls) < first.calls:
            page = await _read_page(run, len(calls), within)
            calls += page.state.calls
        if page.state.updated_at == first.state.updated_at:  # else the run changed between two pages
            return first.model_copy(update={"state": first.state.model_copy(update={"calls": calls})})


async def _read_page(run: WorkflowHandle[Any, Any], start: int, within: timedelta | None) -> Snapshot:
    query = SnapshotQuery(start=start).model_dump(by_alias=True)
    page: Snapshot = await run.query("snapshot", query, result_type=Snapshot, rpc_timeout=within)
    return page
