"""Runs as the server lists them: one, many, page by page, and the subtasks of one."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as WorkflowDescription
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.held import HeldActivity, held_activity
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

ALL_RUNS = "WorkflowType = 'AgentRun'"  # a list filter of Temporal
CAUSE_PREFIX = "cause=WorkflowTaskFailedCause"
LENGTH_OF_START = 2  # events: the start, and the workflow task that no worker has taken
BAD_CURSOR = "invalid cursor"
_DIGEST, _TIME = 8, 8  # bytes at the front of a cursor
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
    def conversation(self) -> str:
        """The conversation that it is a turn of, or that its start names; "" without one."""
        return self.execution.typed_search_attributes.get(attributes.CONVERSATION_ID) or ""

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
    def schedule(self) -> str:
        """The name of the schedule that started the run; empty: none did."""
        return (self.execution.typed_search_attributes.get(attributes.SCHEDULED_BY) or "").removeprefix(
            ids.SCHEDULE_PREFIX
        )

    @property
    def is_held(self) -> bool:
        """The run is open, and an activity of it waits on the server, paused."""
        return self.is_open and bool(self.execution.typed_search_attributes.get(attributes.PAUSE_INFO))

    @property
    def pending_activities(self) -> Sequence[PendingActivityInfo]:
        """The wait that the record of the run alone shows; a list does not say it."""
        described: WorkflowDescription = getattr(self.execution, "raw_description", WorkflowDescription())
        return described.pending_activities

    @property
    def held(self) -> HeldActivity | None:
        """The longest hold, if the record is that of the run alone."""
        pending = self.pending_activities
        paused = (held_activity(self.execution.id, self.execution.run_id, each) for each in pending)
        return min((held for held in paused if held is not None), key=lambda held: held.since, default=None)

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
    """Describe a run. Raises RunNotFoundError, and RejectedError for a follow-up or a project question."""
    if run_id.startswith(ids.ADDRESSED_PREFIXES):
        kind = "follow-up" if run_id.startswith(ids.FOLLOW_UP_PREFIX) else "question of the project"
        raise RejectedError(f"{run_id} is a {kind}, not a run; see it with: perdure show {run_id}")
    return await find_workflow(client, run_id)


async def find_workflow(client: Client, run_id: str) -> RunInfo:
    """Describe a run, the follow-up `wf:<workflowId>`, or the `question:<id>`. Raises RunNotFoundError."""
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
class RunFilter:
    """The runs that match all of these; None means any. `query` is a list filter of Temporal."""

    query: str = ""
    since: timedelta | None = None  # started within this time
    agent: str | None = None
    status: str | None = None  # a `RunStatus`
    conversation: str | None = None

    def begin(self, now: datetime) -> datetime | None:
        """Return the time after which the runs started, if there is one."""
        return now - self.since if self.since else None

    def terms(self, after: datetime | None) -> str:
        """Return the rest of a query that begins with a type; `after` is the start of the time `since`."""
        terms = [f"StartTime > '{after.isoformat()}'"] if after else []
        terms += [query_equals("AgentName", attributes.format_keyword(self.agent))] if self.agent is not None else []
        conversation = attributes.format_keyword(self.conversation or "")
        terms += [query_equals("ConversationId", conversation)] if self.conversation is not None else []
        terms += [f"({STATUS_TERMS[RunStatus(self.status)]})"] if self.status is not None else []
        terms += [f"({self.query})"] if self.query.strip() else []
        return "".join(f" AND {term}" for term in terms)

    def is_met(self, run: RunInfo) -> bool:
        """Return whether the run is one of these: a query cannot hold a quote, so it may list others."""
        is_right = self.conversation is None or run.conversation == attributes.format_keyword(self.conversation)
        return is_right and self.status in (None, run.status) and run.is_of(self.agent)


ANY_RUN = RunFilter()

OPEN_STATUSES = (RunStatus.queued, RunStatus.running, RunStatus.waiting_on_tool, RunStatus.waiting_on_human)
# The status as `RunInfo` has it: a run that Temporal ended has written no last one.
STATUS_TERMS = {status: f"ExecutionStatus = 'Running' AND AgentStatus = '{status}'" for status in OPEN_STATUSES} | {
    RunStatus.queued: "ExecutionStatus = 'Running' AND AgentStatus IS NULL",
    RunStatus.completed: "ExecutionStatus = 'Completed' AND (AgentStatus IS NULL OR AgentStatus = 'completed')",
    RunStatus.escalated: "ExecutionStatus = 'Completed' AND AgentStatus = 'escalated'",
    RunStatus.cancelled: "ExecutionStatus IN ('Canceled', 'Terminated')",
    RunStatus.timed_out: "ExecutionStatus = 'TimedOut' OR (ExecutionStatus = 'Failed' AND AgentStatus = 'timed_out')",
    RunStatus.failed: "ExecutionStatus = 'Failed' AND (AgentStatus IS NULL OR AgentStatus != 'timed_out')",
}


@dataclass(frozen=True)
class RunInfoPage:
    """A page of the list, latest first. `next` is the cursor of the next page, if any."""

    runs: tuple[RunInfo, ...]
    next: bytes | None


async def list_page(  # noqa: PLR0913 - the filter, and the page
    client: Client,
    only: RunFilter = ANY_RUN,
    *,
    waiting: bool = False,
    follow_ups: bool = False,
    limit: int,
    after: bytes | None = None,
) -> RunInfoPage:
    """Return at most `limit` runs; fewer if the page has subtasks. `after` is the cursor of the page before it.

    Raises RejectedError for a cursor that is not of this list, TemporalUnavailableError.
    """
    cursor = ListCursor.read(after) if after else ListCursor(only.begin(datetime.now(UTC)))
    query = _build_query(only, cursor.began, waiting=waiting, follow_ups=follow_ups)
    owner = f"{query} {only}"  # queries of different filters may be alike
    page, token = await read_page(client, query, limit, cursor.token_of(owner))
    runs = [RunInfo(ids.run_id_of_workflow(row.id), row) for row in page if is_listed(row)]
    shown = (run for run in runs if only.is_met(run) and (waiting or run.parent is None))
    return RunInfoPage(tuple(shown), cursor.following(owner, token) if token else None)


async def read_page(
    client: Client, query: str, limit: int, token: bytes | None = None
) -> tuple[Sequence[WorkflowExecution], bytes | None]:
    """Return a page of workflows, latest first, and the server's token for the next one, if any.

    Raises RejectedError for a token that is none of the server's, TemporalUnavailableError.
    """
    listed = client.list_workflows(query, page_size=limit, next_page_token=token)
    try:
        await listed.fetch_next_page()
    except RPCError as error:
        # The status for an unreadable token depends on the server's store.
        if token and error.status not in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
            raise RejectedError(BAD_CURSOR) from None
        raise convert_list_error(client, error) from None
    return listed.current_page or (), listed.next_page_token or None


@dataclass(frozen=True)
class ListCursor:
    """A place in a list: the time from which its runs are listed, a digest of its owner, and the server's token.

    The owner is the list, as a text. The server compares no token with its query, and would go on in another list.
    """

    began: datetime | None = None
    digest: bytes = b""
    token: bytes | None = None

    @classmethod
    def read(cls, written: bytes) -> Self:
        """Return the cursor that `following` wrote. Raises RejectedError."""
        at = int.from_bytes(written[_DIGEST : _DIGEST + _TIME])
        try:
            began = _EPOCH + timedelta(microseconds=at) if at else None
        except OverflowError:
            raise RejectedError(BAD_CURSOR) from None
        return cls(began, written[:_DIGEST], written[_DIGEST + _TIME :])

    def token_of(self, owner: str) -> bytes | None:
        """Return the server's token. Raises RejectedError if it is of another list."""
        if self.token is not None and self.digest != _digest_owner(owner):
            raise RejectedError(f"{BAD_CURSOR}: it belongs to a list with other parameters")
        return self.token

    def following(self, owner: str, token: bytes) -> bytes:
        """Return the cursor of the next page."""
        at = (self.began - _EPOCH) // timedelta(microseconds=1) if self.began else 0
        return _digest_owner(owner) + at.to_bytes(_TIME) + token


def _digest_owner(owner: str) -> bytes:
    return bytes.fromhex(ids.digest(owner.encode("utf-8", "surrogatepass"), _DIGEST))


async def list_past_runs(client: Client, only: RunFilter, limit: int | None = None) -> AsyncIterator[RunInfo]:
    """Yield up to `limit` runs, subtasks too, latest first and each id once.

    Raises RejectedError if the server rejects the query, and TemporalUnavailableError.
    """
    query = _build_query(only, only.begin(datetime.now(UTC)))
    seen: set[str] = set()
    try:
        async for execution in client.list_workflows(query):
            run = RunInfo(ids.run_id_of_workflow(execution.id), execution)
            if not is_listed(execution) or run.run_id in seen or not only.is_met(run):
                continue
            seen.add(run.run_id)
            yield run
            if len(seen) == limit:
                return
    except RPCError as error:
        if only.query and error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise RejectedError(f"the query is not valid: {truncate(error.message)}") from None
        raise convert_rpc_error(error, "the list of runs") from None


async def iterate_runs(
    client: Client,
    only: RunFilter = ANY_RUN,
    *,
    waiting: bool = False,
    follow_ups: bool = False,
    limit: int | None = 50,
) -> AsyncIterator[RunInfo]:
    """Yield runs or follow-ups, latest first; `waiting` yields both.

    Subtasks are listed only if they wait for a person.
    """
    count = 0
    query = _build_query(only, only.begin(datetime.now(UTC)), waiting=waiting, follow_ups=follow_ups)
    async for run in _iterate_query(client, query):
        if only.is_met(run) and (waiting or run.parent is None):
            yield run
            count += 1
        if count == limit:
            return


async def iterate_waiting(
    client: Client, limit: int, agent: str | None, before: datetime | None
) -> AsyncIterator[RunInfo]:
    """Yield runs and follow-ups that wait for a person, latest first: of an agent, and started before a time."""
    query = _build_query(RunFilter(agent=agent), None, waiting=True)
    query += f" AND StartTime < '{before.isoformat()}'" if before is not None else ""
    count = 0
    async for run in _iterate_query(client, query):
        if run.is_of(agent):
            yield run
            count += 1
        if count == limit:
            return


def _build_query(only: RunFilter, after: datetime | None, *, waiting: bool = False, follow_ups: bool = False) -> str:
    types = "WorkflowType = 'FollowUp'" if follow_ups else ALL_RUNS
    if waiting:
        types = "WorkflowType IN ('AgentRun', 'FollowUp', 'ProjectQuestion')"
        types += " AND AgentStatus = 'waiting_on_human' AND ExecutionStatus = 'Running'"
    return types + only.terms(after)


def is_listed(execution: WorkflowExecution) -> bool:
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
            if is_listed(execution):
                yield RunInfo(ids.run_id_of_workflow(execution.id), execution)
    except RPCError as error:
        raise convert_list_error(client, error) from None


def convert_list_error(client: Client, error: RPCError) -> TemporalUnavailableError:
    name = attributes.AGENT_STATUS.name
    if error.status is RPCStatusCode.INVALID_ARGUMENT and name in error.message:
        return NotSearchableError(
            f"namespace {client.namespace} has no search attribute {name}: open runs count as queued, and those that "
            "wait for a person cannot be listed"
        )
    return TemporalUnavailableError(f"the list cannot be read: {truncate(error.message)}")
