"""An overview of a project: what its runs did of late and what they cost, what is open, and what needs a person."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from perdure.client.dead_letters import find_dead_letters
from perdure.client.details import RunRecord
from perdure.client.run_list import (
    ALL_RUNS,
    OPEN_STATUSES,
    STATUS_TERMS,
    RunInfo,
    convert_list_error,
    is_listed,
    read_page,
)
from perdure.contracts.models import FrozenModel
from perdure.contracts.run.state import RunStatus
from perdure.decisions import ids
from perdure.decisions.errors import ReportedError
from perdure.registry import Figures, features, load
from perdure.settings import Settings

RUNS_COUNTED = 1000  # runs and subtasks that are looked at: one page of the server
RUNS_SHOWN = 20
FAILED_READ = 100  # of which subtasks are left out: the run that delegated them deals with their failure
FIGURES_TIMEOUT = 3.0  # seconds for a feature's
LISTS = 9  # that an overview makes, if there is a dead letter


class AgentTotal(FrozenModel):
    """The runs of an agent, without subtasks. Their cost, as far as it is known, includes that of their subtasks."""

    agent: str
    runs: int
    cost_usd: float


class RunsOverview(FrozenModel):
    """The runs of a namespace, in short."""

    since: datetime
    agents: tuple[AgentTotal, ...]  # of the runs that began since then, most runs first
    is_partial: bool  # more runs began since then than were looked at, which are the latest 1,000
    open: dict[RunStatus, int]  # all open runs by status, subtasks too
    failed: tuple[RunRecord, ...]  # the latest 20 that ended failed or timed out since then, without subtasks
    wedged: tuple[RunRecord, ...]  # the latest 20 that cannot continue, subtasks too
    dead_letters: int  # of the latest 1,000 failures


class Overview(RunsOverview):
    """A project in short: its runs, the counts of its features, and its place: namespace, task queue, Web UI."""

    figures: dict[str, Figures]  # by feature: `counts` by name, of the time `counted_at`, or of now if it is null
    has_worker: bool | None  # a worker polls the task queue, or did in the last minutes; null: it is not known
    task_queue: str
    namespace: str
    web_ui: str | None  # the address of Temporal's Web UI, if it is the embedded server's
    query: str = ALL_RUNS  # the list filter of Temporal for all runs


async def read_runs_overview(client: Client, since: datetime) -> RunsOverview:
    """Return the runs in short. Raises NotSearchableError, TemporalUnavailableError."""
    began, counts, failed, wedged, dead = await asyncio.gather(
        read_page(client, f"{ALL_RUNS} AND StartTime >= '{since.isoformat()}'", RUNS_COUNTED),
        _count_open_runs(client),
        read_page(client, _failed_query(since), FAILED_READ),
        read_page(
            client, f"{ALL_RUNS} AND ExecutionStatus = 'Running' AND TemporalReportedProblems IS NOT NULL", RUNS_SHOWN
        ),
        find_dead_letters(client),
    )
    return RunsOverview(
        since=since,
        agents=_total_by_agent(began[0]),
        is_partial=began[1] is not None,
        open=counts,
        failed=_without_subtasks(failed[0]),
        wedged=tuple(RunRecord.of(run) for run in _runs_of(wedged[0])),
        dead_letters=len(dead),
    )


def _failed_query(since: datetime) -> str:
    ended = " OR ".join(f"({STATUS_TERMS[status]})" for status in (RunStatus.failed, RunStatus.timed_out))
    return f"{ALL_RUNS} AND CloseTime >= '{since.isoformat()}' AND ({ended})"


async def _count_open_runs(client: Client) -> dict[RunStatus, int]:
    queries = (f"{ALL_RUNS} AND {STATUS_TERMS[status]}" for status in OPEN_STATUSES)
    try:
        counts = await asyncio.gather(*map(client.count_workflows, queries))
    except RPCError as error:
        raise convert_list_error(client, error) from None
    return {status: count.count for status, count in zip(OPEN_STATUSES, counts, strict=True)}


def _runs_of(page: Iterable[WorkflowExecution]) -> Iterable[RunInfo]:
    """Yield the runs, each id once."""
    seen = set[str]()
    for row in page:
        if is_listed(row) and row.id not in seen:
            seen.add(row.id)
            yield RunInfo(ids.run_id_of_workflow(row.id), row)


def _without_subtasks(page: Iterable[WorkflowExecution]) -> tuple[RunRecord, ...]:
    return tuple(RunRecord.of(run) for run in _runs_of(page) if run.parent is None)[:RUNS_SHOWN]


def _total_by_agent(page: Iterable[WorkflowExecution]) -> tuple[AgentTotal, ...]:
    by_agent = defaultdict[str, list[float]](list)
    for run in _runs_of(page):
        if run.parent is None:
            by_agent[run.agent].append(run.cost_usd or 0.0)
    totals = (AgentTotal(agent=agent, runs=len(costs), cost_usd=sum(costs)) for agent, costs in by_agent.items())
    return tuple(sorted(totals, key=lambda total: (-total.runs, total.agent)))


async def read_figures(client: Client, settings: Settings) -> dict[str, Figures]:
    """Return what the features count, by feature. One that cannot be read is left out."""
    rows = {name: row.figures for name, row in features().items() if row.figures}
    read = await asyncio.gather(*(_read_figures(target, client, settings) for target in rows.values()))
    return {name: figures for name, figures in zip(rows, read, strict=True) if figures is not None}


async def _read_figures(target: str, client: Client, settings: Settings) -> Figures | None:
    try:
        async with asyncio.timeout(FIGURES_TIMEOUT):
            figures: Figures | None = await load(target)(client, settings)
    except (RPCError, ReportedError, TimeoutError):
        return None
    return figures
