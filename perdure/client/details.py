"""A run, shown: what the server knows of it, what it says of itself, how it ended, and its subtasks.

All doors show a run in this form: `perdure show --json`, the gateway, the MCP server and `Run.details` in Python.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from temporalio.client import Client

from perdure.activities.run.outcome import RunEnd
from perdure.client.errors import TemporalUnavailableError
from perdure.client.records.event_reader import CHECK_TASK, failure_message
from perdure.client.run_list import RunInfo, find_run, find_starter, last_event_time, list_subtree
from perdure.client.runs import STATE_QUERY_TIMEOUT, query_run_state, wait_for_run_end
from perdure.client.watch import HistoryReader
from perdure.codec import UnknownKeyError
from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.people import SentBy
from perdure.contracts.run.state import RunView
from perdure.decisions.run.outcome import parse_handoff


class RunRecord(FrozenModel):
    """The server's record of a run, read without a worker."""

    run_id: str
    status: str  # as `AgentStatus`
    dry_run: bool  # it makes reads only
    subtasks_failed: bool  # some of its own; it may be completed
    agent: str
    waiting_for: str  # the open question, in short
    held: bool  # an activity of it waits on the server, paused
    wedged: bool  # its workflow tasks fail, so it cannot continue
    wedged_by: str = ""  # the cause, if it is wedged
    steps: int
    cost_usd: float | None
    parent: str | None  # the run whose subtask it is
    conversation: str  # that it is a turn of, or that its start names; "" without one
    started_at: datetime
    closed_at: datetime | None

    @classmethod
    def of(cls, run: RunInfo, **more: Any) -> Self:
        return cls(
            run_id=run.run_id,
            status=run.status,
            dry_run=run.is_dry_run,
            subtasks_failed=run.has_failed_subtasks,
            agent=run.agent,
            waiting_for=run.waiting_for,
            held=run.is_held,
            wedged=run.is_wedged,
            wedged_by=run.wedged_by if run.is_wedged else "",
            steps=run.steps,
            cost_usd=run.cost_usd,
            parent=run.parent,
            conversation=run.conversation,
            started_at=run.execution.start_time,
            closed_at=run.execution.close_time,
            **more,
        )

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def shown_status(self) -> str:
        """The status as people see it: "dry run, completed", "running, held" or "completed, subtasks failed"."""
        more = f"{', held' * self.held}{', subtasks failed' * self.subtasks_failed}"
        return f"{'dry run, ' * self.dry_run}{self.status}{more}"


class ListedSubtask(RunRecord):
    """A run below another one."""

    depth: int  # 1 for the run's own subtasks


class RunHold(FrozenModel):
    """A wait of a run on the server, as it must not go on yet."""

    activity: str  # the type of the activity that waits
    by: str  # what holds it, such as "pause:all"; "" if a person paused it elsewhere
    why: str  # in words, with who and when
    since: datetime


class RunDetails(FrozenModel):
    """A run. If no worker answers, `state` is null and the server's record is `age_seconds` old."""

    known: RunRecord
    answered: bool  # a worker did
    age_seconds: float
    as_of: datetime | None = omit_default(None)  # the time of the server's record, if no worker answers
    held_by: RunHold | None = None  # the longest of its holds; null if nothing holds it
    tasks: tuple[str, ...] = omit_default(())  # tasks of its calls at their servers, as last looked at
    state: RunView | None
    started_by: SentBy | None = None  # null if the start is past retention
    end: RunEnd | None = None  # null while it is open
    handoff: dict[str, str] | None = None  # its sections, if it ended without an outcome
    subtasks: tuple[ListedSubtask, ...] | None = (
        None  # all below it, each after its parent; null if they are not listed
    )

    def to_row(self) -> dict[str, Any]:
        """Return the JSON in one level, in which the run's own state goes before the server's record."""
        row = self.model_dump(mode="json")
        return {**row.pop("known"), **(row.pop("state") or {}), **row}


async def read_details(
    client: Client, run_id: str, patience: timedelta = STATE_QUERY_TIMEOUT, *, subtasks: bool = True
) -> RunDetails:
    """Read all of a run; its state, if a worker answers within `patience`; its `subtasks`, if that is asked.

    Raises RunNotFoundError, RejectedError for a follow-up, TemporalUnavailableError.
    """
    run = await find_run(client, run_id)
    view, end, below, starter = await asyncio.gather(
        query_run_state(client, run.run_id, patience),
        _read_end(client, run),
        _list_subtasks(client, run, asked=subtasks),
        find_starter(client, run),
    )
    as_of = None if view else await last_event_time(client, run)
    return RunDetails(
        known=RunRecord.of(run),
        answered=view is not None,
        age_seconds=max((datetime.now(UTC) - as_of).total_seconds(), 0.0) if as_of else 0.0,
        as_of=as_of,
        held_by=_hold_of(run),
        tasks=await _read_tasks(client, run),
        state=view,
        started_by=starter,
        end=end,
        handoff=parse_handoff(end.handoff) or None if end else None,
        subtasks=below,
    )


def _hold_of(run: RunInfo) -> RunHold | None:
    held = run.held
    return RunHold(activity=held.activity_type, by=held.by, why=held.why, since=held.since) if held else None


async def _read_tasks(client: Client, run: RunInfo) -> tuple[str, ...]:
    """Return what the latest looks at tasks have found. One that is encrypted, without its key here, is left out."""
    found = []
    for pending in run.pending_activities:
        if pending.activity_type.name == CHECK_TASK and pending.HasField("last_failure"):
            with suppress(UnknownKeyError):
                found.append(failure_message(await HistoryReader(client).to_json(pending.last_failure)))
    return tuple(filter(None, found))


async def _read_end(client: Client, run: RunInfo) -> RunEnd | None:
    return None if run.is_open else await wait_for_run_end(client, run.run_id)


async def _list_subtasks(client: Client, run: RunInfo, *, asked: bool) -> tuple[ListedSubtask, ...] | None:
    if not asked:
        return None
    try:
        tree = await list_subtree(client, run)
    except TemporalUnavailableError:  # lists have a store of their own, which may be away alone
        return None
    return tuple(ListedSubtask.of(below, depth=depth) for depth, below in tree)
