"""Runs as the server lists them: one, many, page by page, and the subtasks of one."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.telemetry import attributes
from contracts.run.state import RunStatus
from decisions import ids
from decisions.ids import named, unlike
from decisions.text.formatting import cut
from perdure.client.errors import NotReachable, Refused, translated

CAUSE = "cause=WorkflowTaskFailedCause"
_TOLD_ENDS = (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.CANCELED)


@dataclass(frozen=True)
class Found:
    """The server's record of a run, read without a worker."""

    run_id: str
    execution: WorkflowExecution

    @property
    def is_open(self) -> bool:
        return self.execution.status is WorkflowExecutionStatus.RUNNING

    @property
    def status(self) -> str:
        """The agent's status; Temporal's if the run ended without one."""
        own = self.execution.typed_search_attributes.get(attributes.AGENT_STATUS)
        if self.is_open:
            return own or RunStatus.queued
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
    def first_execution(self) -> str:
        """The Temporal run id of the first execution, before any continue-as-new."""
        info = getattr(self.execution, "raw_description", None)
        first = info.workflow_execution_info.first_run_id if info is not None else ""
        return first or self.execution.run_id

    @property
    def parent(self) -> str | None:
        """The run that delegated it, or the placeholder of a long id (`ids.stand_in`)."""
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
    def has_told(self) -> bool:
        """The run ended by itself and wrote its last attributes; a terminated run could not."""
        return self.execution.status in _TOLD_ENDS

    @property
    def agent(self) -> str:
        return self.execution.typed_search_attributes.get(attributes.AGENT_NAME) or ""

    @property
    def is_wedged(self) -> bool:
        """The run is open and its workflow tasks fail: its code does not fit its history, or has a bug.

        The server reports it after several failures in a row, until a task succeeds.
        """
        return self.is_open and bool(self._problems)

    @property
    def wedged_by(self) -> str:
        """The cause as the server reports it; "NonDeterministicError" is code that does not fit the run's history."""
        causes = [problem.removeprefix(CAUSE) for problem in self._problems if problem.startswith(CAUSE)]
        return ", ".join(causes) or ", ".join(self._problems)

    @property
    def _problems(self) -> Sequence[str]:
        return self.execution.typed_search_attributes.get(attributes.PROBLEMS) or ()


async def find(client: Client, run_id: str) -> Found:
    """Describe a run. Raises NoSuchRun, and Refused for a follow-up."""
    if run_id.startswith(ids.FOLLOW_UP):
        raise Refused(f"{run_id} is a follow-up, not a run; see it with: perdure show {run_id}")
    return await find_any(client, run_id)


async def find_any(client: Client, run_id: str) -> Found:
    """Describe a run, or the follow-up `wf:<workflowId>`. Raises NoSuchRun."""
    handle = client.get_workflow_handle(ids.addressed(run_id))
    try:
        execution = await handle.describe()
    except RPCError as error:
        raise translated(error, f"run {run_id}") from None
    return Found(ids.run_id_of(execution.id), execution)


async def grown_at(client: Client, run: Found) -> datetime:
    """Return the time of the run's last history event."""
    if run.execution.close_time is not None:
        return run.execution.close_time
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=ExecutionId(workflow_id=run.execution.id, run_id=run.execution.run_id),
            maximum_page_size=1,
        )
    )
    return answer.history.events[0].event_time.ToDatetime(UTC)


async def is_kept(client: Client, workflow_id: str, execution: str) -> bool:
    """Return False if an execution is past the namespace's retention."""
    try:
        await client.get_workflow_handle(workflow_id, run_id=execution).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def first_kept(client: Client, run: Found) -> str:
    """Return the earliest execution of the run that the server still has."""
    has_first = await is_kept(client, run.execution.id, run.first_execution)
    return run.first_execution if has_first else run.execution.run_id


@dataclass(frozen=True)
class Page:
    """A page of the list, latest first. `next` is the cursor of the next page, if any."""

    runs: tuple[Found, ...]
    next: bytes | None


async def page(client: Client, *, waiting: bool, limit: int, after: bytes | None) -> Page:
    """Return at most `limit` runs; fewer if the page has subtasks. Raises Refused, NotReachable."""
    listed = client.list_workflows(_query(waiting=waiting), page_size=limit, next_page_token=after)
    try:
        await listed.fetch_next_page()
    except RPCError as error:
        # The status for an unreadable token depends on the server's store.
        if after and error.status not in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
            raise Refused("invalid cursor") from None
        raise NotReachable(f"the list cannot be read: {cut(error.message, 200)}") from None
    runs = [Found(ids.run_id_of(row.id), row) for row in listed.current_page or () if _is_listed(row)]
    return Page(tuple(run for run in runs if waiting or run.parent is None), listed.next_page_token or None)


async def listing(
    client: Client,
    *,
    waiting: bool = False,
    wedged: bool = False,
    follow_ups: bool = False,
    limit: int | None = 50,
) -> AsyncIterator[Found]:
    """Yield runs or follow-ups, latest first; `waiting` yields both.

    Subtasks are listed only if they wait for a person or are wedged.
    """
    query = _query(waiting=waiting, follow_ups=follow_ups)
    if wedged:
        query += f" AND {attributes.PROBLEMS.name} IS NOT NULL AND ExecutionStatus = 'Running'"
    count = 0
    async for run in _listed(client, query):
        if waiting or wedged or run.parent is None:
            yield run
            count += 1
        if count == limit:
            return


def _query(*, waiting: bool, follow_ups: bool = False) -> str:
    if not waiting:
        return f"WorkflowType = '{'FollowUp' if follow_ups else 'AgentRun'}'"
    types = "WorkflowType IN ('AgentRun', 'FollowUp')"
    return f"{types} AND AgentStatus = 'waiting_on_human' AND ExecutionStatus = 'Running'"


def _is_listed(execution: WorkflowExecution) -> bool:
    return execution.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW


async def below(client: Client, root: Found) -> list[tuple[int, Found]]:
    """Return all subtasks of a run, each with its depth and after its parent."""
    top = root.execution.root_id or root.execution.id
    children: dict[str, list[Found]] = {}
    # The root of a turn is its conversation, which may have thousands of other runs.
    others = f"{named('RootWorkflowId', top)} AND {unlike('ParentWorkflowId', top)}"
    async for run in _listed(client, f"{others} AND WorkflowType = 'AgentRun'"):
        if run.parent is not None:
            children.setdefault(run.parent, []).insert(0, run)
    return list(_descent(children, root.run_id, 1))


def _descent(children: Mapping[str, Sequence[Found]], run_id: str, depth: int) -> Iterator[tuple[int, Found]]:
    for child in (*children.get(ids.stand_in(run_id), ()), *children.get(run_id, ())):
        yield depth, child
        yield from _descent(children, child.run_id, depth + 1)


async def _listed(client: Client, query: str) -> AsyncIterator[Found]:
    try:
        async for execution in client.list_workflows(query):
            if _is_listed(execution):
                yield Found(ids.run_id_of(execution.id), execution)
    except RPCError as error:
        raise NotReachable(f"the list cannot be read: {cut(error.message, 200)}") from None
