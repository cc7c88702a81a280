"""The reconciler's checks of runs: wedged, orphaned, without a worker, or overdue."""

import logging

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.reconcile.queries import Inquiry, is_wedged
from activities.run.status import standing_of
from activities.telemetry.attributes import PROBLEMS
from contracts.reconcile import Finding, Repair, Standing
from contracts.run.state import RunStatus
from decisions import reconcile as judge
from decisions.ids import run_id_of, unlike
from decisions.reconcile import Parent

_log = logging.getLogger(__name__)


class RunsLook:
    def __init__(self, server: Inquiry, *, repairs: bool) -> None:
        self.findings: list[Finding] = []
        self._server = server
        self._repairs = repairs

    async def wedged(self) -> None:
        try:
            async for run in self._server.listed(f"{self._server.open_runs} AND TemporalReportedProblems IS NOT NULL"):
                reported = run.typed_search_attributes.get(PROBLEMS) or ()
                self.findings.append(judge.wedged(run_id_of(run.id), reported))
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            _log.info("this server does not report wedged runs: %s", error.message)

    async def orphans(self) -> None:
        parents: dict[tuple[str, str], Parent] = {}
        async for run in self._server.listed(f"{self._server.open_runs} AND ParentWorkflowId IS NOT NULL"):
            key = (run.parent_id or "", run.parent_run_id or "")
            if key not in parents:
                parents[key] = await self._parent(*key)
            finding = judge.orphaned(run_id_of(run.id), parents[key], self._server.now, is_wedged=is_wedged(run))
            if finding is not None:
                reason = f"its parent {parents[key].workflow_id} is {parents[key].standing}"
                self.findings.append(await self._cancelled(run.id, finding, reason))

    async def unattended(self) -> None:
        """Find runs whose task queue has no worker. This worker's own queue has one."""
        elsewhere = f"WorkflowType = 'AgentRun' AND {unlike('TaskQueue', self._server.here.task_queue)}"
        since = f"ExecutionStatus = 'Running' AND StartTime < '{self._server.ago(judge.UNATTENDED_AFTER)}'"
        async for run in self._server.listed(f"{elsewhere} AND {since}"):
            if not await self._server.has_worker(run.task_queue):
                self.findings.append(judge.unattended(run_id_of(run.id), run.task_queue))

    async def waits(self) -> None:
        for status, since in (
            (RunStatus.waiting_on_human, judge.PATIENCE),
            (RunStatus.waiting_on_tool, judge.TOOL_MARGIN),
        ):
            waiting = (
                f"{self._server.open_runs} AND AgentStatus = '{status}' AND StartTime < '{self._server.ago(since)}'"
            )
            async for run in self._server.listed(waiting):
                state = None if is_wedged(run) else await self._server.state(run.id)
                if state is not None and (finding := judge.overdue(state, self._server.now)):
                    self.findings.append(finding)

    async def _parent(self, workflow_id: str, execution: str) -> Parent:
        """Return the parent's current status; continued as new, or reset, it continues under its id."""
        latest = await self._server.described(workflow_id)
        if latest is None:
            return Parent(workflow_id, Standing.gone)
        own = latest
        if standing_of(latest) is not Standing.open:
            own = await self._server.described(workflow_id, execution) or latest
        if own.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            own = latest
        return Parent(workflow_id, standing_of(own), own.close_time)

    async def _cancelled(self, workflow_id: str, finding: Finding, reason: str) -> Finding:
        if finding.repair is not Repair.cancel or not self._repairs:
            return finding
        return finding.model_copy(update={"repaired": await self._server.stop(workflow_id, reason)})
