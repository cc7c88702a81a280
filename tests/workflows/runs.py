"""How runs end, and what they leave behind."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from perdure.client.details import read_details
from perdure.terminal.report import print_run
from tests.waiting import PATIENCE
from tests.workflows.conftest import Run, World


async def result_of(run: Run) -> dict[str, Any]:
    event: dict[str, Any] = await asyncio.wait_for(run.result(), PATIENCE)
    return event


async def failure_of(run: Run) -> ApplicationError:
    """The typed failure that the run ends with."""
    with pytest.raises(WorkflowFailureError) as failure:
        await result_of(run)
    assert isinstance(failure.value.cause, ApplicationError)
    return failure.value.cause


async def expect_cancelled(run: Run) -> None:
    """Its result is a cancel, and the server lists it so."""
    with pytest.raises(WorkflowFailureError) as failure:
        await result_of(run)
    assert isinstance(failure.value.cause, CancelledError)
    assert (await run.describe()).status is WorkflowExecutionStatus.CANCELED


async def cancel_run(run: Run, way: str) -> None:
    """By our signal, or with Temporal's own cancel ("native")."""
    await (run.cancel() if way == "native" else run.signal("cancel", {"reason": "enough", "by": "eva"}))


async def rejection_of(run: Run, update: str, *args: Any) -> ApplicationError:
    """The typed error with which an update is rejected."""
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await run.execute_update(update, args=args)
    assert isinstance(failure.value.cause, ApplicationError)
    return failure.value.cause


async def count_upserts(run: Run) -> int:
    """The number of changes of the run's search attributes, each a billed action."""
    events = (await run.fetch_history()).events
    return sum(event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES for event in events)


def id_of(run: Run) -> str:
    """The run id, without the prefix of its workflow id."""
    return run.id.removeprefix("run:")


def trace_events(folder: Path, *names: str) -> list[dict[str, Any]]:
    """The lines of a run's trace, of these events only if any are named."""
    lines = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    return [line for line in lines if not names or line["event"] in names]


async def printed_run(it: World, run: Run, width: int = 160) -> str:
    """The page that `perdure show` prints."""
    screen = io.StringIO()
    print_run(Console(file=screen, width=width), await read_details(it.client, id_of(run)), Path("/nowhere"))
    return screen.getvalue()
