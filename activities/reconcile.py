"""The activity `reconcile`: looks at the runs of a task queue and their stores, and repairs what is safe.

What it finds is judged in `decisions.reconcile`. A look is bounded, however many runs there are: lists are cut, and
the stores are gone through a stretch at a time.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities import ledger
from activities.attributes import AGENT_STATUS, PROBLEMS
from activities.heartbeat import beating
from activities.ledger import Claim
from activities.observation import count
from activities.store import Store, Stores
from activities.workspace import OutsideWorkspace, run_id_in
from contracts.reconcile import Finding, Place, ReconcileReport, ReconcileRequest, Repair, Seen, Standing
from contracts.run import RunState, RunStatus, Snapshot
from contracts.signals import CancelRequest
from decisions import metrics
from decisions import reconcile as judge
from decisions.ids import conversation_id_of, heirs_prefix, resumed_id, run_id_of, run_workflow_id
from decisions.reconcile import Claimed, Page, Parent, Sweep
from decisions.visibility import begins, named, unlike

MOST_LISTED = 1000  # runs of one list
MOST_STORES = 500  # of one look
MOST_ASKED = 50  # runs that tell their state; each may have to be replayed for it
MOST_SILENT = 3  # in a row: then nobody is there to answer for a run
MOST_QUEUES = 20  # others, whose workers are looked for
ANSWER_WITHIN = timedelta(seconds=3)
MARK = "seen.json"  # of a store

_log = logging.getLogger(__name__)
_STANDINGS = {
    WorkflowExecutionStatus.RUNNING: Standing.open,
    WorkflowExecutionStatus.COMPLETED: Standing.completed,
    WorkflowExecutionStatus.FAILED: Standing.failed,
    WorkflowExecutionStatus.CANCELED: Standing.cancelled,
    WorkflowExecutionStatus.TERMINATED: Standing.terminated,
    WorkflowExecutionStatus.TIMED_OUT: Standing.timed_out,
}


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
        return await _Look(self._client, self._stores, here, self._now(), repairs=repairs).report(after)


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


@dataclass
class _Look:
    """One look, and what it has found so far."""

    client: Client
    stores: Stores
    here: Place
    now: datetime
    repairs: bool
    findings: list[Finding] = field(default_factory=list)
    unjudged: int = 0
    asked: int = 0
    silent: int = 0
    unasked: int = 0

    async def report(self, after: str) -> ReconcileReport:
        await self._wedged()
        await self._orphans()
        await self._unattended()
        folders = await self._folders()
        first = bisect_right(folders, after)
        stretch = folders[first : first + MOST_STORES]
        for folder in stretch:
            await self._store(folder)
        await self._waits()
        return ReconcileReport(
            found=dict(Counter(finding.problem for finding in self.findings)),
            repaired=dict(Counter(f.repair for f in self.findings if f.repair is not None and f.repaired)),
            findings=judge.named(self.findings),
            stores=len(stretch),
            unjudged=self.unjudged,
            unasked=self.unasked,
            after=stretch[-1] if first + MOST_STORES < len(folders) else "",
        )

    async def _folders(self) -> list[str]:
        try:
            return await asyncio.to_thread(lambda: list(self.stores.folders()))
        except OSError as error:
            _log.warning("the stores cannot be looked at: %s", error)
            return []

    async def _wedged(self) -> None:
        try:
            async for run in self._listed(f"{self._open()} AND TemporalReportedProblems IS NOT NULL"):
                reported = run.typed_search_attributes.get(PROBLEMS) or ()
                self.findings.append(judge.wedged(run_id_of(run.id), reported))
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            _log.info("this server does not report wedged runs: %s", error.message)

    async def _orphans(self) -> None:
        parents: dict[tuple[str, str], Parent] = {}
        async for run in self._listed(f"{self._open()} AND ParentWorkflowId IS NOT NULL"):
            key = (run.parent_id or "", run.parent_run_id or "")
            if key not in parents:
                parents[key] = await self._parent(*key)
            is_wedged = _is_wedged(run)
            finding = judge.orphaned(run_id_of(run.id), parents[key], self.now, is_wedged=is_wedged)
            if finding is not None:
                reason = f"its parent {parents[key].workflow_id} is {parents[key].standing}"
                self.findings.append(await self._cancelled(run.id, finding, reason))

    async def _parent(self, workflow_id: str, execution: str) -> Parent:
        """How it stands by now: continued as new, or reset, it goes on under its id."""
        latest = await self._described(workflow_id)
        if latest is None:
            return Parent(workflow_id, Standing.gone)
        own = latest if _standing(latest) is Standing.open else await self._described(workflow_id, execution) or latest
        if own.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            own = latest
        return Parent(workflow_id, _standing(own), own.close_time)

    async def _cancelled(self, workflow_id: str, finding: Finding, reason: str) -> Finding:
        if finding.repair is not Repair.cancel or not self.repairs:
            return finding
        body = CancelRequest(reason=reason, by="the reconciler").model_dump(mode="json")
        with suppress(RPCError):  # it has ended meanwhile, or the next look finds it again
            await self.client.get_workflow_handle(workflow_id).signal("cancel", body)
            return finding.model_copy(update={"repaired": True})
        return finding

    async def _unattended(self) -> None:
        """Runs whose queue has no worker. Our own queue has one: it is looking."""
        elsewhere = f"WorkflowType = 'AgentRun' AND {unlike('TaskQueue', self.here.task_queue)}"
        since = f"ExecutionStatus = 'Running' AND StartTime < '{self._ago(judge.UNATTENDED_AFTER)}'"
        queues: dict[str, bool] = {}
        async for run in self._listed(f"{elsewhere} AND {since}"):
            if run.task_queue not in queues and len(queues) < MOST_QUEUES:
                queues[run.task_queue] = await self._has_worker(run.task_queue)
            if not queues.get(run.task_queue, True):
                self.findings.append(judge.unattended(run_id_of(run.id), run.task_queue))

    async def _has_worker(self, task_queue: str) -> bool:
        request = DescribeTaskQueueRequest(
            namespace=self.client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        return bool((await self.client.workflow_service.describe_task_queue(request)).pollers)

    async def _waits(self) -> None:
        for status, since in (
            (RunStatus.waiting_on_human, judge.PATIENCE),
            (RunStatus.waiting_on_tool, judge.TOOL_MARGIN),
        ):
            waiting = f"{self._open()} AND AgentStatus = '{status}' AND StartTime < '{self._ago(since)}'"
            async for run in self._listed(waiting):
                state = None if _is_wedged(run) else await self._state(run.id)
                if state is not None and (finding := judge.overdue(state, self.now)):
                    self.findings.append(finding)

    async def _store(self, folder: str) -> None:
        run_id = run_id_in(folder)
        if run_id is None:
            self.unjudged += 1
            return
        if conversation_id_of(run_id) != run_id:
            return  # a conversation's own, which stays: somebody may come back to it
        store = self.stores.of(run_id)
        try:
            run = await self._run(run_id)
            claims = judge.loose(await asyncio.to_thread(store.names, ledger.FOLDER))
            seen = await asyncio.to_thread(_mark, store)
            if run is None:
                await self._sweep(run_id, store, seen, claims)
            elif run.task_queue == self.here.task_queue:
                if seen is None or (seen.place == self.here and seen.gone_since):
                    await asyncio.to_thread(_put_mark, store, Seen(place=self.here))
                for page in claims:
                    await self._claim(run_id, run, store, page)
        except (OSError, OutsideWorkspace) as error:
            self.unjudged += 1
            _log.warning("the store of run %s cannot be looked at: %s", run_id, error)

    async def _sweep(self, run_id: str, store: Store, seen: Seen | None, claims: list[Page]) -> None:
        has_heir = await self._has_open_heir(run_id)
        match judge.swept(seen, self.here, self.now, claims=len(claims), has_heir=has_heir):
            case Sweep.leave:
                self.unjudged += 1
            case Sweep.note:
                if self.repairs:
                    await asyncio.to_thread(_put_mark, store, Seen(place=self.here, gone_since=self.now))
            case Sweep.wait:
                pass
            case Sweep.name:
                self.findings.append(judge.left(run_id, claims))
            case Sweep.clear:
                finding = judge.left(run_id)
                if self.repairs and await self._run(run_id) is None:  # not started again just now
                    await asyncio.to_thread(store.clear)
                    finding = finding.model_copy(update={"repaired": True})
                self.findings.append(finding)

    async def _has_open_heir(self, run_id: str) -> bool:
        prefix = run_workflow_id(heirs_prefix(run_id))
        async for run in self._listed(f"{self._open()} AND {begins('WorkflowId', prefix)}"):
            if run.id.startswith(prefix):
                return True
        return False

    async def _claim(self, run_id: str, run: WorkflowExecutionDescription, store: Store, page: Page) -> None:
        claim = await asyncio.to_thread(_claim_of, store, page)
        if claim is not None and judge.is_fresh(claim.until, self.now):
            return
        keeper = run
        while heir := await self._run(resumed_id(run_id_of(keeper.id))):
            keeper = heir
        unasked = self.unasked
        state = None if _is_wedged(keeper) else await self._state(keeper.id)
        if self.unasked > unasked:
            return  # what the run knows of the call is not known here
        facts = Claimed(
            page=page,
            tool=claim.tool if claim else "",
            until=claim.until if claim else None,
            keeper=run_id_of(keeper.id),
            standing=_standing(keeper),
            asks=keeper.typed_search_attributes.get(AGENT_STATUS) == RunStatus.waiting_on_human,
            at_work=await self._is_at_work(keeper, page.step),
            state=state,
        )
        if finding := judge.unowned(run_id, facts, self.now):
            self.findings.append(finding)

    async def _is_at_work(self, run: WorkflowExecutionDescription, step: int) -> bool:
        """Whether a pending activity makes the call, or has not said yet which one it makes."""
        for pending in run.raw_description.pending_activities:
            if pending.activity_type.name != "call_tool":
                continue
            try:
                beats = await self.client.data_converter.decode(pending.heartbeat_details.payloads)
            except Exception:  # noqa: BLE001 - encrypted with a key that is not here
                return True
            if not beats or not isinstance(beats[0], dict) or beats[0].get("step") in (None, step):
                return True
        return False

    async def _state(self, workflow_id: str) -> RunState | None:
        """What the run says of itself, while there is somebody to answer for it."""
        if self.asked >= MOST_ASKED or self.silent >= MOST_SILENT:
            self.unasked += 1
            return None
        self.asked += 1
        handle = self.client.get_workflow_handle(workflow_id)
        try:
            snapshot: Snapshot = await handle.query("snapshot", result_type=Snapshot, rpc_timeout=ANSWER_WITHIN)
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError):
            return None  # refused at its start: it has no state
        except RPCError:
            self.silent += 1
            self.unasked += 1
            return None
        except Exception:  # noqa: BLE001 - encrypted with a key that is not here
            self.unasked += 1
            return None
        self.silent = 0
        return snapshot.state

    async def _run(self, run_id: str) -> WorkflowExecutionDescription | None:
        """The run of this id; one that was started under another id than ours is its own run id."""
        return await self._described(run_workflow_id(run_id)) or await self._described(run_id)

    async def _described(self, workflow_id: str, execution: str | None = None) -> WorkflowExecutionDescription | None:
        try:
            return await self.client.get_workflow_handle(workflow_id, run_id=execution).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

    def _open(self) -> str:
        ours = f"WorkflowType = 'AgentRun' AND {named('TaskQueue', self.here.task_queue)}"
        return f"{ours} AND ExecutionStatus = 'Running'"

    async def _listed(self, query: str) -> AsyncIterator[WorkflowExecution]:
        async for execution in self.client.list_workflows(query, limit=MOST_LISTED):
            yield execution

    def _ago(self, time: timedelta) -> str:
        return (self.now - time).isoformat()


def _standing(run: WorkflowExecution) -> Standing:
    """A run whose status is none of these goes on in another execution."""
    return _STANDINGS.get(run.status, Standing.open) if run.status else Standing.open


def _is_wedged(run: WorkflowExecution) -> bool:
    return run.typed_search_attributes.get(PROBLEMS) is not None


def _mark(store: Store) -> Seen | None:
    try:
        return Seen.model_validate_json(store.read(MARK))
    except (FileNotFoundError, ValidationError):
        return None


def _put_mark(store: Store, seen: Seen) -> None:
    store.put(MARK, seen.model_dump_json().encode())


def _claim_of(store: Store, page: Page) -> Claim | None:
    try:
        return Claim.model_validate_json(store.read(f"{ledger.FOLDER}/{page.name}.claim"))
    except (FileNotFoundError, ValidationError):
        return None
