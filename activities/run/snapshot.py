"""A run's snapshot, read whole: a turn may hold more results than one answer of a query takes."""

from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowHandle

from contracts.run.state import Snapshot, SnapshotQuery


async def snapshot_of(run: WorkflowHandle[Any, Any], within: timedelta | None = None) -> Snapshot:
    """`within` is for each page. Raises RPCError; WorkflowQueryFailedError where the run was refused at its start."""
    while True:
        first = await _page(run, 0, within)
        calls = first.state.calls
        page = first
        while page.state.updated_at == first.state.updated_at and len(calls) < first.calls:
            page = await _page(run, len(calls), within)
            calls += page.state.calls
        if page.state.updated_at == first.state.updated_at:  # else the run went on between two pages
            return first.model_copy(update={"state": first.state.model_copy(update={"calls": calls})})


async def _page(run: WorkflowHandle[Any, Any], start: int, within: timedelta | None) -> Snapshot:
    asked = SnapshotQuery(start=start).model_dump(by_alias=True)
    page: Snapshot = await run.query("snapshot", asked, result_type=Snapshot, rpc_timeout=within)
    return page
