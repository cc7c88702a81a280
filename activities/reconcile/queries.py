"""The reconciler's requests to the server and to runs. Each pass is bounded, whatever the number of runs."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from temporalio.api.common.v1 import WorkflowExecution as ExecutionProto
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    SignalWorkflowExecutionRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.run.status import read_snapshot
from activities.telemetry.attributes import REPORTED_PROBLEMS
from activities.temporal import IgnoreMissing, VisibilityPace
from contracts.reconcile import WAKE_SIGNAL, Finding, Place
from contracts.run.signals import CancelRequest
from contracts.run.state import RunState
from decisions.ids import query_equals, run_workflow_id

MAX_LISTED_RUNS = 1000  # runs per list
MAX_QUERIED_RUNS = 50  # runs queried for their state; each may need a replay
MAX_SILENT_RUNS = 3  # unanswered queries in a row, after which no worker is assumed
MAX_CHECKED_QUEUES = 20  # other queues that are checked for workers
ANSWER_WITHIN = timedelta(seconds=3)
START_PRECISION = timedelta(milliseconds=1)  # of a list's start times: runs of the same one are listed twice

_log = logging.getLogger(__name__)


class ReconcileQueries:
    """The requests and findings of one pass. `unasked` counts the runs whose state is unknown.

    `since` has the lists that the previous pass did not finish, and `older` those of this one.
    """

    def __init__(
        self, client: Client, here: Place, now: datetime, *, repairs: bool, since: Mapping[str, datetime]
    ) -> None:
        self.here = here
        self.now = now
        self.repairs = repairs
        self.findings: list[Finding] = []
        self.unasked = 0
        self.older: dict[str, datetime] = {}
        self._since = since
        self._pace = VisibilityPace()
        self._client = client
        self._asked = 0
        self._silent = 0
        self._queues: dict[str, bool] = {}

    @property
    def own_runs(self) -> str:
        """The list filter for runs of this task queue."""
        return f"WorkflowType = 'AgentRun' AND {query_equals('TaskQueue', self.here.task_queue)}"

    @property
    def open_runs(self) -> str:
        return f"{self.own_runs} AND ExecutionStatus = 'Running'"

    async def list_runs(self, query: str, name: str = "", limit: int | None = None) -> AsyncIterator[WorkflowExecution]:
        """Yield the runs of a list, latest first. A list with a name begins where the previous pass stopped.

        A list that the namespace cannot filter, for lack of a search attribute, is empty.
        """
        if name in self._since:
            query += f" AND StartTime < '{self._since[name].isoformat()}'"
        await self._pace.wait()
        count, limit = 0, limit or MAX_LISTED_RUNS
        try:
            async for run in self._client.list_workflows(query, limit=limit):
                count += 1
                yield run
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            _log.info("this server does not list these runs (%s): %s", error.message, query)
        if name and count == limit:
            self.continue_at(name, run)

    def continue_at(self, name: str, run: WorkflowExecution) -> None:
        """Continue a list at this run in the next pass, unless at an earlier one."""
        self.older.setdefault(name, run.start_time + START_PRECISION)

    @property
    def may_query(self) -> bool:
        """True if the pass may query more runs, and workers answer."""
        return self._asked < MAX_QUERIED_RUNS and self._silent < MAX_SILENT_RUNS

    def time_before(self, time: timedelta) -> str:
        return (self.now - time).isoformat()

    async def find_run(self, run_id: str) -> WorkflowExecutionDescription | None:
        """Return the run of this id; a run started with another workflow id uses that as its run id."""
        return await self.describe_run(run_workflow_id(run_id)) or await self.describe_run(run_id)

    async def describe_run(self, workflow_id: str, execution: str | None = None) -> WorkflowExecutionDescription | None:
        with IgnoreMissing():
            return await self._client.get_workflow_handle(workflow_id, run_id=execution).describe()
        return None

    async def has_worker(self, task_queue: str) -> bool:
        """Return True if a worker polls the queue; True for queues beyond `MAX_CHECKED_QUEUES`."""
        if task_queue not in self._queues and len(self._queues) < MAX_CHECKED_QUEUES:
            self._queues[task_queue] = bool((await self._describe_queue(task_queue)).pollers)
        return self._queues.get(task_queue, True)

    async def serving_builds(self) -> tuple[str, ...]:
        """Return the current build of this task queue and one that is ramped up; () without worker versioning."""
        versioning = (await self._describe_queue(self.here.task_queue)).versioning_info
        if not versioning.current_deployment_version.build_id:
            return ()
        versions = (versioning.current_deployment_version, versioning.ramping_deployment_version)
        return tuple(f"{version.deployment_name}:{version.build_id}" for version in versions if version.build_id)

    async def _describe_queue(self, task_queue: str) -> DescribeTaskQueueResponse:
        request = DescribeTaskQueueRequest(
            namespace=self._client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        await self._pace.wait()
        return await self._client.workflow_service.describe_task_queue(request, retry=True)

    async def wake(self, workflow: WorkflowExecution, build: str) -> None:
        """Give a workflow a workflow task, once a day for each current build: the server drops repeated requests."""
        request = SignalWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=ExecutionProto(workflow_id=workflow.id, run_id=workflow.run_id),
            signal_name=WAKE_SIGNAL,
            request_id=f"{WAKE_SIGNAL}:{build}:{self.now:%Y-%m-%d}",
        )
        with suppress(RPCError):  # it has ended or moved
            await self._client.workflow_service.signal_workflow_execution(request, retry=True)

    async def cancel_run(self, workflow_id: str, reason: str) -> bool:
        """Signal the workflow to cancel. False if that fails: it has ended, or the next pass tries again."""
        body = CancelRequest(reason=reason, by="the reconciler").model_dump(mode="json")
        with suppress(RPCError):
            await self._client.get_workflow_handle(workflow_id).signal("cancel", body)
            return True
        return False

    async def query_state(self, workflow_id: str) -> RunState | None:
        """Query the run's state, if it answers and the pass may query more runs."""
        if not self.may_query:
            self.unasked += 1
            return None
        self._asked += 1
        try:
            snapshot = await read_snapshot(self._client.get_workflow_handle(workflow_id), ANSWER_WITHIN)
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError):
            return None  # rejected at its start: it has no state
        except RPCError:
            self._silent += 1
            self.unasked += 1
            return None
        except Exception:  # noqa: BLE001 - encrypted with an unknown key
            self.unasked += 1
            return None
        self._silent = 0
        return snapshot.state


def is_wedged(run: WorkflowExecution) -> bool:
    return run.typed_search_attributes.get(REPORTED_PROBLEMS) is not None
