"""The activity `reconcile`: looks at the runs of a task queue and their stores, and repairs what is safe.

What it finds is judged in `decisions.reconcile`. A look is bounded, however many runs there are: lists are cut, and
the stores are gone through a stretch at a time.
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

from activities.effects.heartbeat import beating
from activities.reconcile.queries import Inquiry
from activities.reconcile.runs import RunsLook
from activities.reconcile.stores import StoresLook
from activities.storage.store import Stores
from activities.telemetry.metrics import count
from contracts.reconcile import Place, ReconcileReport, ReconcileRequest
from decisions import reconcile as judge
from decisions.telemetry import metrics


def _now() -> datetime:
    return datetime.now(UTC)


class Reconciliations:
    def __init__(self, client: Client, stores: Stores, task_queue: str, now: Callable[[], datetime] = _now) -> None:
        self._client = client
        self._stores = stores
        self._task_queue = task_queue
        self._now = now

    @activity.defn
    async def reconcile(self, request: ReconcileRequest) -> ReconcileReport:
        """Looks, repairs what is safe, and tells the rest in the event `agent_run.reconcile` (B12)."""
        async with beating(lambda: {"after": request.after}):
            report = await _while_the_worker_stays(self.look(request.after, repairs=True))
        named = [f"{each.problem}: {each.run_id}" for each in report.findings if not each.repaired]
        told = {"event": "agent_run.reconcile", "task_queue": self._task_queue, "named": named}
        told |= report.model_dump(mode="json", exclude={"findings", "after"})
        activity.logger.info("agent_run.reconcile", extra={"event": told})
        count(activity.metric_meter(), metrics.of_event("agent_run.reconcile", told))
        return report

    async def look(self, after: str = "", *, repairs: bool = False) -> ReconcileReport:
        """One look, from the store behind `after` on. Raises RPCError where the server does not let us."""
        described = await self._client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=self._client.namespace)
        )
        here = Place(namespace=described.namespace_info.id, task_queue=self._task_queue)
        server = Inquiry(self._client, here, self._now())
        runs = RunsLook(server, repairs=repairs)
        stores = StoresLook(self._client, self._stores, server, repairs=repairs)
        await runs.wedged()
        await runs.orphans()
        await runs.unattended()
        upto = await stores.look(after)
        await runs.waits()
        findings = [*runs.findings, *stores.findings]
        return ReconcileReport(
            found=dict(Counter(finding.problem for finding in findings)),
            repaired=dict(Counter(f.repair for f in findings if f.repair is not None and f.repaired)),
            findings=judge.named(findings),
            stores=stores.looked_at,
            unjudged=stores.unjudged,
            unasked=server.unasked,
            after=upto,
        )


async def _while_the_worker_stays(looking: Coroutine[Any, Any, ReconcileReport]) -> ReconcileReport:
    """A worker that stops does not wait for a look: the next one makes it anew."""
    look, leaving = asyncio.create_task(looking), asyncio.create_task(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait({look, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if look.done():
            return look.result()
    except RPCError as error:
        denied = error.status is RPCStatusCode.PERMISSION_DENIED
        raise ApplicationError(error.message[:500], type="Unreachable", non_retryable=denied) from None
    finally:
        look.cancel()
        leaving.cancel()
    quiet = ApplicationErrorCategory.BENIGN
    raise ApplicationError("the worker is stopping", type="WorkerShutdown", category=quiet)
