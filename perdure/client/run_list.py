"""Runs as the server lists them: one, many, page by page, and those that one has delegated."""

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
    """A run as the server knows it, without asking a worker."""

    run_id: str
    execution: WorkflowExecution

    @property
    def is_open(self) -> bool:
        return self.execution.status is WorkflowExecutionStatus.RUNNING

    @property
    def status(self) -> str:
        """The agent's status; where the run ended without saying so, Temporal's."""
        said = self.execution.typed_search_attributes.get(attributes.AGENT_STATUS)
        if self.is_open:
            return said or RunStatus.queued
        ends = {
            WorkflowExecutionStatus.COMPLETED: said or RunStatus.completed,
            WorkflowExecutionStatus.CANCELED: RunStatus.cancelled,
            WorkflowExecutionStatus.TERMINATED: RunStatus.cancelled,
            WorkflowExecutionStatus.TIMED_OUT: RunStatus.timed_out,
            WorkflowExecutionStatus.FAILED: RunStatus.timed_out if said == RunStatus.timed_out else RunStatus.failed,
        }
        status = self.execution.status
        return ends.get(status, RunStatus.failed) if status else RunStatus.failed

    @property
    def first_execution(self) -> str:
        """The Temporal run id that the run began with, before any continue-as-new."""
        info = getattr(self.execution, "raw_description", None)
        first = info.workflow_execution_info.first_run_id if info is not None else ""
        return first or self.execution.run_id

    @property
    def parent(self) -> str | None:
        """The run that delegated it, or what stands for a long id (`ids.stand_in`)."""
        return ids.delegating_run_id(self.execution.parent_id or "")

    @property
    def steps(self) -> int:
        """As of its last change of status."""
        return self.execution.typed_search_attributes.get(attributes.AGENT_STEP) or 0

    @property
    def cost_usd(self) -> float | None:
        """With all that it delegated; None where that is nothing, or not known."""
        return self.execution.typed_search_attributes.get(attributes.COST_USD)

    @property
    def waiting_for(self) -> str:
        return (self.execution.typed_search_attributes.get(attributes.WAITING_FOR) or "") if self.is_open else ""

    @property
    def has_told(self) -> bool:
        """It ended by itself, and what the server lists of it is its last word; a terminated one said nothing more."""
        return self.execution.status in _TOLD_ENDS

    @property
    def agent(self) -> str:
        return self.execution.typed_search_attributes.get(attributes.AGENT_NAME) or ""

    @property
    def is_wedged(self) -> bool:
        """Open, and its workflow tasks fail: code that does not fit its history, or a bug.

        The server says so after some failures in a row, and takes it back at the first task that succeeds.
        """
        return self.is_open and bool(self._problems)

    @property
    def wedged_by(self) -> str:
        """In the server's words: "NonDeterministicError" is code that does not fit the run's history."""
        causes = [each.removeprefix(CAUSE) for each in self._problems if each.startswith(CAUSE)]
        return ", ".join(causes) or ", ".join(self._problems)

    @property
    def _problems(self) -> Sequence[str]:
        return self.execution.typed_search_attributes.get(attributes.PROBLEMS) or ()


async def find(client: Client, run_id: str) -> Found:
    """Raises NoSuchRun, Refused where a follow-up is named."""
    if run_id.startswith(ids.FOLLOW_UP):
        raise Refused(f"{run_id} is a follow-up, and no run; see it with: perdure show {run_id}")
    return await find_any(client, run_id)


async def find_any(client: Client, run_id: str) -> Found:
    """A run, or the follow-up `wf:<workflowId>`. Raises NoSuchRun."""
    handle = client.get_workflow_handle(ids.addressed(run_id))
    try:
        execution = await handle.describe()
    except RPCError as error:
        raise translated(error, f"run {run_id}") from None
    return Found(ids.run_id_of(execution.id), execution)


async def grown_at(client: Client, found: Found) -> datetime:
    """When the run's history last grew."""
    if found.execution.close_time is not None:
        return found.execution.close_time
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=ExecutionId(workflow_id=found.execution.id, run_id=found.execution.run_id),
            maximum_page_size=1,
        )
    )
    return answer.history.events[0].event_time.ToDatetime(UTC)


async def is_kept(client: Client, workflow_id: str, execution: str) -> bool:
    """Earlier executions of a run that continued as new may be past the namespace's retention."""
    try:
        await client.get_workflow_handle(workflow_id, run_id=execution).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def first_kept(client: Client, found: Found) -> str:
    """The execution with which the run's history begins, as far as it is kept."""
    there = await is_kept(client, found.execution.id, found.first_execution)
    return found.first_execution if there else found.execution.run_id


@dataclass(frozen=True)
class Page:
    """A part of the list, the latest first. `next` is where the list goes on; None at its end."""

    found: tuple[Found, ...]
    next: bytes | None


async def page(client: Client, *, waiting: bool, limit: int, after: bytes | None) -> Page:
    """At most `limit` runs of the list, and fewer where some of them were delegated. Raises Refused, NotReachable."""
    listed = client.list_workflows(_query(waiting=waiting), page_size=limit, next_page_token=after)
    try:
        await listed.fetch_next_page()
    except RPCError as error:
        # A server tells of a token that it cannot read in one way or another, by its store.
        if after and error.status not in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
            raise Refused("the cursor is not one of this list") from None
        raise NotReachable(f"the list cannot be read: {cut(error.message, 200)}") from None
    there = [Found(ids.run_id_of(each.id), each) for each in listed.current_page or () if _is_listed(each)]
    return Page(tuple(each for each in there if waiting or each.parent is None), listed.next_page_token or None)


async def listing(
    client: Client,
    *,
    waiting: bool = False,
    wedged: bool = False,
    follow_ups: bool = False,
    limit: int | None = 50,
) -> AsyncIterator[Found]:
    """Runs, or follow-ups, the latest first; what waits for a person are both.

    What a run delegated belongs to it, and is listed only where it needs somebody.
    """
    query = _query(waiting=waiting, follow_ups=follow_ups)
    if wedged:
        query += f" AND {attributes.PROBLEMS.name} IS NOT NULL AND ExecutionStatus = 'Running'"
    count = 0
    async for found in _listed(client, query):
        if waiting or wedged or found.parent is None:
            yield found
            count += 1
        if count == limit:
            return


def _query(*, waiting: bool, follow_ups: bool = False) -> str:
    if not waiting:
        return f"WorkflowType = '{'FollowUp' if follow_ups else 'AgentRun'}'"
    who = "WorkflowType IN ('AgentRun', 'FollowUp')"
    return f"{who} AND AgentStatus = 'waiting_on_human' AND ExecutionStatus = 'Running'"


def _is_listed(execution: WorkflowExecution) -> bool:
    return execution.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW


async def below(client: Client, root: Found) -> list[tuple[int, Found]]:
    """The runs that it delegated, and those that they did, each with its depth below it and after its parent."""
    top = root.execution.root_id or root.execution.id
    children: dict[str, list[Found]] = {}
    # The root of a turn is its conversation, which may have thousands of others.
    others = f"{named('RootWorkflowId', top)} AND {unlike('ParentWorkflowId', top)}"
    async for found in _listed(client, f"{others} AND WorkflowType = 'AgentRun'"):
        if found.parent is not None:
            children.setdefault(found.parent, []).insert(0, found)
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
