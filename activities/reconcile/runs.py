"""The reconciler's checks of runs: wedged, orphaned, without a worker, or overdue."""

import logging

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.reconcile.queries import ReconcileQueries, is_wedged
from activities.run.status import workflow_status_of
from activities.telemetry.attributes import REPORTED_PROBLEMS
from contracts.reconcile import Finding, Repair, WorkflowStatus
from contracts.run.state import RunStatus
from decisions import reconcile as judge
from decisions.ids import query_differs, run_id_of_workflow
from decisions.reconcile import Parent

_log = logging.getLogger(__name__)


class RunChecks:
    def __init__(self, server: ReconcileQueries, *, repairs: bool) -> None:
        self.findings: list[Finding] = []
        self._server = server
        self._repairs = repairs

    async def find_wedged(self) -> None:
        try:
            async for run in self._server.list_runs(
                f"{self._server.open_runs} AND TemporalReportedProblems IS NOT NULL"
            ):
                reported = run.typed_search_attributes.get(REPORTED_PROBLEMS) or ()
                self.findings.append(judge.wedged_finding(run_id_of_workflow(run.id), reported))
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            _log.info("this server does not report wedged runs: %s", error.message)

    async def find_orphans(self) -> None:
        parents: dict[tuple[str, str], Parent] = {}
        async for run in self._server.list_runs(f"{self._server.open_runs} AND ParentWorkflowId IS NOT NULL"):
            key = (run.parent_id or "", run.parent_run_id or "")
            if key not in parents:
                parents[key] = await self._find_parent(*key)
            finding = judge.orphaned_finding(
                run_id_of_workflow(run.id), parents[key], self._server.now, is_wedged=is_wedged(run)
            )
            if finding is not None:
                reason = f"its parent {parents[key].workflow_id} is {parents[key].standing}"
                self.findings.append(await self._cancel_orphan(run.id, finding, reason))

    async def find_unattended(self) -> None:
        """Find runs whose task queue has no worker. This worker's own queue has one."""
        elsewhere = f"WorkflowType = 'AgentRun' AND {query_differs('TaskQueue', self._server.here.task_queue)}"
        since = f"ExecutionStatus = 'Running' AND StartTime < '{self._server.time_before(judge.UNATTENDED_AFTER)}'"
        async for run in self._server.list_runs(f"{elsewhere} AND {since}"):
            if not await self._server.has_worker(run.task_queue):
                self.findings.append(judge.unattended_finding(run_id_of_workflow(run.id), run.task_queue))

    async def find_overdue(self) -> None:
        for status, since in (
            (RunStatus.waiting_on_human, judge.PERSON_PATIENCE),
            (RunStatus.waiting_on_tool, judge.TOOL_MARGIN),
        ):
            before = self._server.time_before(since)
            waiting = f"{self._server.open_runs} AND AgentStatus = '{status}' AND StartTime < '{before}'"
            async for run in self._server.list_runs(waiting):
                state = None if is_wedged(run) else await self._server.query_state(run.id)
                if state is not None and (finding := judge.overdue_finding(state, self._server.now)):
                    self.findings.append(finding)

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

    async def _cancel_orphan(self, workflow_id: str, finding: Finding, reason: str) -> Finding:
        if finding.repair is not Repair.cancel or not self._repairs:
            return finding
        return finding.model_copy(update={"repaired": await self._server.cancel_run(workflow_id, reason)})
