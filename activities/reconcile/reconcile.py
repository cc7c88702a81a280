"""The activity `reconcile`: check the runs of a task queue and their stores, and repair what is safe.

`decisions.reconcile` decides on the findings. A pass is bounded, whatever the number of runs: lists are limited, and a
pass checks one batch of stores.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.effects.attempts import WORKER_SHUTDOWN
from activities.effects.heartbeat import heartbeating
from activities.reconcile.queries import ReconcileQueries
from activities.reconcile.runs import RunChecks
from activities.reconcile.stores import StoreChecks
from activities.storage.store import Stores
from activities.telemetry.metrics import add_counts
from contracts.reconcile import Place, ReconcileReport, ReconcileRequest
from decisions import reconcile as judge
from decisions.telemetry import metrics


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    def __init__(self, client: Client, stores: Stores, task_queue: str, now: Callable[[], datetime] = _utc_now) -> None:
        self._client = client
        self._stores = stores
        self._task_queue = task_queue
        self._now = now

    @activity.defn
    async def reconcile(self, request: ReconcileRequest) -> ReconcileReport:
        """Check, repair what is safe, and report the rest in the event `agent_run.reconcile` (B12)."""
        async with heartbeating(lambda: {"after": request.after}):
            report = await _unless_worker_stops(self.run_pass(request.after, repairs=True))
        named = [f"{finding.problem}: {finding.run_id}" for finding in report.findings if not finding.repaired]
        event = {"event": "agent_run.reconcile", "task_queue": self._task_queue, "named": named}
        event |= report.model_dump(mode="json", exclude={"findings", "after"})
        activity.logger.info("agent_run.reconcile", extra={"event": event})
        add_counts(activity.metric_meter(), metrics.count_event("agent_run.reconcile", event))
        return report

    async def run_pass(self, after: str = "", *, repairs: bool = False) -> ReconcileReport:
        """Run one pass, beginning with the store behind `after`. Raises RPCError if the server denies access."""
        namespace = await self._client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=self._client.namespace)
        )
        place = Place(namespace=namespace.namespace_info.id, task_queue=self._task_queue)
        server = ReconcileQueries(self._client, place, self._now())
        runs = RunChecks(server, repairs=repairs)
        stores = StoreChecks(self._client, self._stores, server, repairs=repairs)
        await runs.find_wedged()
        await runs.find_orphans()
        await runs.find_unattended()
        upto = await stores.check_stores(after)
        await runs.find_overdue()
        findings = [*runs.findings, *stores.findings]
        return ReconcileReport(
            found=dict(Counter(finding.problem for finding in findings)),
            repaired=dict(Counter(f.repair for f in findings if f.repair is not None and f.repaired)),
            findings=judge.limit_findings(findings),
            stores=stores.looked_at,
            unjudged=stores.unjudged,
            unasked=server.unasked,
            after=upto,
        )


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
