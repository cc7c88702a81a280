"""Runs as the server lists them: one, many, page by page, and the subtasks of one."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.telemetry import attributes
from perdure.client.errors import (
    NotSearchableError,
    RejectedError,
    TemporalUnavailableError,
    convert_rpc_error,
    convert_rpc_errors,
)
from perdure.contracts.people import SentBy
from perdure.contracts.run.state import RunStatus
from perdure.decisions import ids
from perdure.decisions.ids import query_differs, query_equals
from perdure.decisions.people.terms import sent_by
from perdure.decisions.text.formatting import truncate

CAUSE_PREFIX = "cause=WorkflowTaskFailedCause"
LENGTH_OF_START = 2  # events: the start, and the workflow task that no worker has taken
_FINAL_STATUSES = (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.CANCELED)


@dataclass(frozen=True)
class RunInfo:
    """The server's record of a run, read without a worker."""

    run_id: str
    execution: WorkflowExecution

    @property
    def is_open(self) -> bool:
        return self.execution.status is WorkflowExecutionStatus.RUNNING

    @property
    def status(self) -> str:
        """The agent's status; Temporal's if the run ended without one. A list does not tell queued from running."""
        own = self.execution.typed_search_attributes.get(attributes.AGENT_STATUS)
        if self.is_open:
            return own if own and not self._is_untouched else RunStatus.queued
        ends = {
            WorkflowExecutionStatus.COMPLETED: own or RunStatus.completed,
            WorkflowExecutionStatus.CANCELED: RunStatus.cancelled,
            WorkflowExecutionStatus.TERMINATED: RunStatus.cancelled,
            WorkflowExecutionStatus.TIMED_OUT: RunStatus.timed_out,
            WorkflowExecutionStatus.FAILED: RunStatus.timed_out if own == RunStatus.timed_out else RunStatus.failed,
        }
        status = self.execution.status
        return ends.get(status, RunStatus.failed) if status else RunStatus.failed

    @property
    def _is_untouched(self) -> bool:
        """No worker has taken it up: its history has only its start. A list does not give the length of open runs."""
        return 0 < self.execution.history_length <= LENGTH_OF_START

    @property
    def first_execution(self) -> str:
        """The Temporal run id of the first execution, before any continue-as-new."""
        info = getattr(self.execution, "raw_description", None)
        first = info.workflow_execution_info.first_run_id if info is not None else ""
        return first or self.execution.run_id

    @property
    def is_dry_run(self) -> bool:
        return attributes.DRY_RUN in self.execution.raw_info.memo.fields

    @property
    def parent(self) -> str | None:
        """The run that delegated it, or the placeholder of a long id (`ids.placeholder_id`)."""
        return ids.delegating_run_id(self.execution.parent_id or "")

    @property
    def steps(self) -> int:
        """The step count at the last change of status."""
        return self.execution.typed_search_attributes.get(attributes.AGENT_STEP) or 0

    @property
    def cost_usd(self) -> float | None:
        """The cost with all subtasks, if known and not zero."""
        return self.execution.typed_search_attributes.get(attributes.COST_USD)

    @property
    def waiting_for(self) -> str:
        return (self.execution.typed_search_attributes.get(attributes.WAITING_FOR) or "") if self.is_open else ""

    @property
    def is_final(self) -> bool:
        """The run ended by itself and wrote its last attributes; a terminated run could not."""
        return self.execution.status in _FINAL_STATUSES

    @property
    def agent(self) -> str:
        return self.execution.typed_search_attributes.get(attributes.AGENT_NAME) or ""

    def is_of(self, agent: str | None) -> bool:
        """Return whether it is a run of this agent, or of any: a query cannot hold a quote, so it may list others."""
        return agent is None or self.agent == attributes.format_keyword(agent)

    @property
    def has_failed_subtasks(self) -> bool:
        return attributes.FAILED_SUBTASKS in self.execution.raw_info.memo.fields

    @property
    def is_wedged(self) -> bool:
        """The run is open and its workflow tasks fail: its code does not fit its history, or has a bug.

        The server reports it after several failures in a row, until a task succeeds.
        """
        return self.is_open and bool(self._problems)

    @property
    def wedged_by(self) -> str:
        """The cause as the server reports it; "NonDeterministicError" is code that does not fit the run's history."""
        causes = [problem.removeprefix(CAUSE_PREFIX) for problem in self._problems if problem.startswith(CAUSE_PREFIX)]
        return ", ".join(causes) or ", ".join(self._problems)

    @property
    def _problems(self) -> Sequence[str]:
        return self.execution.typed_search_attributes.get(attributes.REPORTED_PROBLEMS) or ()


async def find_run(client: Client, run_id: str) -> RunInfo:
    """Describe a run. Raises RunNotFoundError, and RejectedError for a follow-up."""
    if run_id.startswith(ids.FOLLOW_UP_PREFIX):
        raise RejectedError(f"{run_id} is a follow-up, not a run; see it with: perdure show {run_id}")
    return await find_workflow(client, run_id)


async def find_workflow(client: Client, run_id: str) -> RunInfo:
    """Describe a run, or the follow-up `wf:<workflowId>`. Raises RunNotFoundError."""
    handle = client.get_workflow_handle(ids.addressed_workflow_id(run_id))
    with convert_rpc_errors(f"run {run_id}"):
        execution = await handle.describe()
    return RunInfo(ids.run_id_of_workflow(execution.id), execution)


async def last_event_time(client: Client, run: RunInfo) -> datetime:
    """Return the time of the run's last history event."""
    if run.execution.close_time is not None:
        return run.execution.close_time
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=ExecutionId(workflow_id=run.execution.id, run_id=run.execution.run_id),
            maximum_page_size=1,
        ),
        retry=True,
    )
    return answer.history.events[0].event_time.ToDatetime(UTC)


async def is_retained(client: Client, workflow_id: str, execution: str) -> bool:
    """Return False if an execution is past the namespace's retention."""
    try:
        await client.get_workflow_handle(workflow_id, run_id=execution).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def first_retained(client: Client, run: RunInfo) -> str:
    """Return the earliest execution of the run that the server still has."""
    has_first = await is_retained(client, run.execution.id, run.first_execution)
    return run.first_execution if has_first else run.execution.run_id


async def read_start(client: Client, run: RunInfo) -> tuple[Any, str]:
    """Return the run's input and the identity of the client that started it. Raises UnknownKeyError.

    Raises RPCError if the start is past retention.
    """
    execution = client.get_workflow_handle(run.execution.id, run_id=run.first_execution)
    first = await anext(execution.fetch_history_events(page_size=1))
    started = first.workflow_execution_started_event_attributes
    inputs = await client.data_converter.decode(started.input.payloads[:1])
    return inputs[0] if inputs else None, started.identity


async def find_starter(client: Client, run: RunInfo) -> SentBy | None:
    """Return the sender that started the run, unless the start is past retention. Raises UnknownKeyError."""
    try:
        return sent_by(*await read_start(client, run))
    except RPCError:
        return None


@dataclass(frozen=True)
class RunInfoPage:
    """A page of the list, latest first. `next` is the cursor of the next page, if any."""

    runs: tuple[RunInfo, ...]
    next: bytes | None


async def list_page(client: Client, *, waiting: bool, limit: int, after: bytes | None) -> RunInfoPage:
    """Return at most `limit` runs; fewer if the page has subtasks. Raises RejectedError, TemporalUnavailableError."""
    listed = client.list_workflows(_build_query(waiting=waiting), page_size=limit, next_page_token=after)
    try:
        await listed.fetch_next_page()
    except RPCError as error:
        # The status for an unreadable token depends on the server's store.
        if after and error.status not in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
            raise RejectedError("invalid cursor") from None
        raise _convert_list_error(client, error) from None
    runs = [RunInfo(ids.run_id_of_workflow(row.id), row) for row in listed.current_page or () if _is_listed(row)]
    return RunInfoPage(tuple(run for run in runs if waiting or run.parent is None), listed.next_page_token or None)


@dataclass(frozen=True)
class RunFilter:
    """The runs that match all of these, up to `limit`. `query` is a list filter of Temporal."""

    query: str = ""
    since: timedelta | None = None  # started within this time
    agent: str | None = None
    status: str | None = None
    limit: int | None = None


async def list_past_runs(client: Client, runs: RunFilter) -> AsyncIterator[RunInfo]:
    """Yield the runs, latest first and each id once.

    Raises RejectedError if the server rejects the query, and TemporalUnavailableError.
    """
    terms = ["WorkflowType = 'AgentRun'"]
    terms += [f"StartTime > '{(datetime.now(UTC) - runs.since).isoformat()}'"] if runs.since else []
    terms += [ids.query_equals("AgentName", runs.agent)] if runs.agent else []
    terms += [f"({runs.query})"] if runs.query.strip() else []
    seen: set[str] = set()
    try:
        async for execution in client.list_workflows(" AND ".join(terms)):
            run = RunInfo(ids.run_id_of_workflow(execution.id), execution)
            if not _is_listed(execution) or run.run_id in seen or runs.status not in (None, run.status):
                continue
            if not run.is_of(runs.agent):
                continue
            seen.add(run.run_id)
            yield run
            if len(seen) == runs.limit:
                return
    except RPCError as error:
        if runs.query and error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise RejectedError(f"the query is not valid: {truncate(error.message)}") from None
        raise convert_rpc_error(error, "the list of runs") from None


async def iterate_runs(
    client: Client, *, waiting: bool = False, follow_ups: bool = False, limit: int | None = 50
) -> AsyncIterator[RunInfo]:
    """Yield runs or follow-ups, latest first; `waiting` yields both.

    Subtasks are listed only if they wait for a person.
    """
    count = 0
    async for run in _iterate_query(client, _build_query(waiting=waiting, follow_ups=follow_ups)):
        if waiting or run.parent is None:
            yield run
            count += 1
        if count == limit:
            return


async def iterate_waiting(
    client: Client, limit: int, agent: str | None, before: datetime | None
) -> AsyncIterator[RunInfo]:
    """Yield runs and follow-ups that wait for a person, latest first: of an agent, and started before a time."""
    query = _build_query(waiting=True)
    query += f" AND {query_equals('AgentName', agent)}" if agent is not None else ""
    query += f" AND StartTime < '{before.isoformat()}'" if before is not None else ""
    count = 0
    async for run in _iterate_query(client, query):
        if run.is_of(agent):
            yield run
            count += 1
        if count == limit:
            return


def _build_query(*, waiting: bool, follow_ups: bool = False) -> str:
    if not waiting:
        return f"WorkflowType = '{'FollowUp' if follow_ups else 'AgentRun'}'"
    types = "WorkflowType IN ('AgentRun', 'FollowUp')"
    return f"{types} AND AgentStatus = 'waiting_on_human' AND ExecutionStatus = 'Running'"


def _is_listed(execution: WorkflowExecution) -> bool:
    return execution.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW


async def list_subtree(client: Client, root: RunInfo) -> list[tuple[int, RunInfo]]:
    """Return all subtasks of a run, each with its depth and after its parent."""
    top = root.execution.root_id or root.execution.id
    children: dict[str, list[RunInfo]] = {}
    # The root of a turn is its conversation, which may have thousands of other runs.
    others = f"{query_equals('RootWorkflowId', top)} AND {query_differs('ParentWorkflowId', top)}"
    async for run in _iterate_query(client, f"{others} AND WorkflowType = 'AgentRun'"):
        if run.parent is not None:
            children.setdefault(run.parent, []).insert(0, run)
    return list(_walk_subtree(children, root.run_id, 1))


def _walk_subtree(children: Mapping[str, Sequence[RunInfo]], run_id: str, depth: int) -> Iterator[tuple[int, RunInfo]]:
    for child in (*children.get(ids.placeholder_id(run_id), ()), *children.get(run_id, ())):
        yield depth, child
        yield from _walk_subtree(children, child.run_id, depth + 1)


async def _iterate_query(client: Client, query: str) -> AsyncIterator[RunInfo]:
    try:
        async for execution in client.list_workflows(query):
            if _is_listed(execution):
                yield RunInfo(ids.run_id_of_workflow(execution.id), execution)
    except RPCError as error:
        raise _convert_list_error(client, error) from None


def _convert_list_error(client: Client, error: RPCError) -> TemporalUnavailableError:
    name = attributes.AGENT_STATUS.name
    if error.status is RPCStatusCode.INVALID_ARGUMENT and name in error.message:
        return NotSearchableError(
            f"namespace {client.namespace} has no search attribute {name}: open runs count as queued, and those that "
            "wait for a person cannot be listed"
        )
    return TemporalUnavailableError(f"the list cannot be read: {truncate(error.message)}")
