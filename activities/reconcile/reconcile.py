"""The activity `reconcile`: check the runs of a task queue and their stores, and repair what is safe.

`decisions.reconcile` decides on the findings. A pass is bounded, whatever the number of runs: lists are limited, and a
pass checks one batch of stores.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.attempts import WORKER_SHUTDOWN, heartbeating
from activities.people.channels import Channel, match_routes
from activities.reconcile.cut_off import CutOffRuns
from activities.reconcile.queries import ReconcileQueries, is_wedged
from activities.reconcile.stores import StoreChecks
from activities.run.status import workflow_status_of
from activities.storage.store import Stores
from activities.telemetry.attributes import AGENT_NAME, REPORTED_PROBLEMS
from activities.telemetry.metrics import add_counts
from contracts.people.notice import NoticeRequest
from contracts.reconcile import Place, ReconcileReport, ReconcileRequest, Repair, WorkflowStatus
from contracts.run.state import RunStatus
from decisions import reconcile as judge
from decisions import telemetry
from decisions.ids import query_differs, query_equals, run_id_of_workflow
from decisions.people.notice import wedged_request
from decisions.reconcile import Parent

BUILD = "TemporalWorkerDeploymentVersion"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    def __init__(
        self,
        client: Client,
        stores: Stores,
        task_queue: str,
        now: Callable[[], datetime] = _utc_now,
        *,
        channels: Sequence[Channel] = (),
    ) -> None:
        self._client = client
        self._stores = stores
        self._task_queue = task_queue
        self._now = now
        self._channels = channels

    @activity.defn
    async def reconcile(self, request: ReconcileRequest) -> ReconcileReport:
        """Check, repair what is safe, and report the rest in the event `agent_run.reconcile` (B12)."""
        async with heartbeating(lambda: {"after": request.after}):
            report = await _unless_worker_stops(self.run_pass(request, repairs=True))
        named = [f"{finding.problem}: {finding.run_id}" for finding in report.findings if not finding.repaired]
        event = {"event": "agent_run.reconcile", "task_queue": self._task_queue, "named": named}
        event |= report.model_dump(mode="json", exclude={"findings", "after", "older", "cut_off"})
        activity.logger.info("agent_run.reconcile", extra={"event": event})
        add_counts(activity.metric_meter(), telemetry.count_event("agent_run.reconcile", event))
        return report

    async def run_pass(self, request: ReconcileRequest | None = None, *, repairs: bool = False) -> ReconcileReport:
        """Run one pass, by default from the start. Raises RPCError if the server denies access."""
        request = request or ReconcileRequest()
        namespace = await self._client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=self._client.namespace), retry=True
        )
        place = Place(namespace=namespace.namespace_info.id, task_queue=self._task_queue)
        server = ReconcileQueries(self._client, place, self._now(), repairs=repairs, since=request.older)
        runs, stores = RunChecks(server), StoreChecks(self._client, self._stores, server)
        await runs.find_wedged()
        await runs.find_orphans()
        await runs.find_unattended()
        upto = await stores.check_stores(request.after)
        cut_off = CutOffRuns(self._client, server, self._channels)
        window = await cut_off.find(request.cut_off) if self._channels else None
        await runs.find_overdue()
        outdated = await runs.wake_outdated()
        return ReconcileReport(
            found=dict(Counter(finding.problem for finding in server.findings)),
            repaired=dict(Counter(f.repair for f in server.findings if f.repair is not None and f.repaired)),
            findings=judge.limit_findings(server.findings),
            stores=stores.looked_at,
            unjudged=stores.unjudged,
            unasked=server.unasked,
            outdated=outdated,
            notices=(*self._wedged_notices(runs.wedged), *cut_off.notices) if self._channels else (),
            cut_off=window,
            after=upto,
            older=server.older,
        )

    def _wedged_notices(self, wedged: Mapping[str, str]) -> tuple[NoticeRequest, ...]:
        requests = (
            wedged_request(run_id, agent, judge.MEND_ADVICE, match_routes(self._channels, agent))
            for run_id, agent in wedged.items()
        )
        return tuple(request for request in requests if request is not None)[: judge.MAX_FINDINGS]


class RunChecks:
    """The checks of runs: wedged, orphaned, without a worker, or overdue."""

    def __init__(self, server: ReconcileQueries) -> None:
        self._server = server
        self.wedged: dict[str, str] = {}  # the agents by run

    async def find_wedged(self) -> None:
        wedged = f"{self._server.open_runs} AND TemporalReportedProblems IS NOT NULL"
        async for run in self._server.list_runs(wedged, "wedged"):
            reported = run.typed_search_attributes.get(REPORTED_PROBLEMS) or ()
            run_id = run_id_of_workflow(run.id)
            self.wedged[run_id] = run.typed_search_attributes.get(AGENT_NAME) or ""
            self._server.findings.append(judge.wedged_finding(run_id, reported))

    async def find_orphans(self) -> None:
        parents: dict[tuple[str, str], Parent] = {}
        children = f"{self._server.open_runs} AND ParentWorkflowId IS NOT NULL"
        async for run in self._server.list_runs(children, "children"):
            key = (run.parent_id or "", run.parent_run_id or "")
            if key not in parents:
                parents[key] = await self._find_parent(*key)
            finding = judge.orphaned_finding(
                run_id_of_workflow(run.id), parents[key], self._server.now, is_wedged=is_wedged(run)
            )
            if finding is not None and finding.repair is Repair.cancel and self._server.repairs:
                reason = f"its parent {parents[key].workflow_id} is {parents[key].standing}"
                finding = finding.model_copy(update={"repaired": await self._server.cancel_run(run.id, reason)})
            if finding is not None:
                self._server.findings.append(finding)

    async def find_unattended(self) -> None:
        """Find runs whose task queue has no worker. This worker's own queue has one."""
        elsewhere = f"WorkflowType = 'AgentRun' AND {query_differs('TaskQueue', self._server.here.task_queue)}"
        since = f"ExecutionStatus = 'Running' AND StartTime < '{self._server.time_before(judge.UNATTENDED_AFTER)}'"
        async for run in self._server.list_runs(f"{elsewhere} AND {since}", "elsewhere"):
            if not await self._server.has_worker(run.task_queue):
                self._server.findings.append(judge.unattended_finding(run_id_of_workflow(run.id), run.task_queue))

    async def find_overdue(self) -> None:
        for status, since in (
            (RunStatus.waiting_on_human, judge.PERSON_PATIENCE),
            (RunStatus.waiting_on_tool, judge.TOOL_MARGIN),
        ):
            before = self._server.time_before(since)
            waiting = f"{self._server.open_runs} AND AgentStatus = '{status}' AND StartTime < '{before}'"
            async for run in self._server.list_runs(waiting, status):
                if not self._server.may_query:
                    self._server.continue_at(status, run)
                state = None if is_wedged(run) else await self._server.query_state(run.id)
                if state is not None and (finding := judge.overdue_finding(state, self._server.now)):
                    self._server.findings.append(finding)

    async def wake_outdated(self) -> int:
        """Wake the workflows that can move off builds that are not current. Return their number."""
        serving = await self._server.serving_builds()
        if not serving:
            return 0
        own = query_equals("TaskQueue", self._server.here.task_queue)
        kinds = " OR ".join(query_equals("WorkflowType", kind) for kind in judge.MOVING_TYPES)
        elsewhere = " AND ".join(query_differs(BUILD, build) for build in serving)
        outdated = 0
        moving = f"{own} AND ({kinds}) AND ExecutionStatus = 'Running' AND {BUILD} IS NOT NULL AND {elsewhere}"
        async for workflow in self._server.list_runs(moving, "outdated"):
            outdated += 1
            if self._server.repairs:
                await self._server.wake(workflow, serving[0])
        return outdated

    async def _find_parent(self, workflow_id: str, execution: str) -> Parent:
        """Return the parent's current status; continued as new, or reset, it continues under its id."""
        latest = await self._server.describe_run(workflow_id)
        if latest is None:
            return Parent(workflow_id, WorkflowStatus.gone)
        own = latest
        if workflow_status_of(latest) is not WorkflowStatus.open:
            own = await self._server.describe_run(workflow_id, execution) or latest
        if own.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            own = latest
        return Parent(workflow_id, workflow_status_of(own), own.close_time)


async def _unless_worker_stops(reconciling: Coroutine[Any, Any, ReconcileReport]) -> ReconcileReport:
    """Run the pass, but abort it if the worker stops: the next worker repeats it."""
    task, stopping = asyncio.create_task(reconciling), asyncio.create_task(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    except RPCError as error:
        denied = error.status is RPCStatusCode.PERMISSION_DENIED
        raise ApplicationError(error.message[:500], type="Unreachable", non_retryable=denied) from None
    finally:
        task.cancel()
        stopping.cancel()
    benign = ApplicationErrorCategory.BENIGN
    raise ApplicationError("the worker is stopping", type=WORKER_SHUTDOWN, category=benign)
