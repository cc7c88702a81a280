"""The activity `reconcile`: check the runs of a task queue and their stores, and repair what is safe.

`perdure.features.reconciler.rules` decides on the findings. A pass is bounded, whatever the number of runs: lists are
limited, and a pass checks one batch of stores.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Self

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution as ExecutionProto
from temporalio.api.enums.v1 import EventType, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    SignalWorkflowExecutionRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.effects.ledger import LEDGER_FOLDER, Claim
from perdure.activities.media.store import MEDIA_FOLDER
from perdure.activities.parts import WorkerParts
from perdure.activities.run.status import read_snapshot, workflow_status_of
from perdure.activities.storage.store import Store, Stores, read_model
from perdure.activities.storage.workspace import OutsideWorkspaceError, run_id_in
from perdure.activities.telemetry.attributes import AGENT_NAME, AGENT_STATUS, REPORTED_PROBLEMS
from perdure.activities.telemetry.metrics import add_counts
from perdure.activities.temporal import IgnoreMissing, VisibilityPace
from perdure.contracts.failures import WORKER_SHUTDOWN
from perdure.contracts.run.signals import WAKE_SIGNAL, CancelRequest
from perdure.contracts.run.state import RunState, RunStatus, WorkflowStatus
from perdure.decisions import ids, telemetry
from perdure.decisions.ids import query_differs, query_equals, run_id_of_workflow, run_workflow_id
from perdure.decisions.text.formatting import MEND_ADVICE
from perdure.features.notices.channels import Channel, channels_of, match_routes
from perdure.features.notices.contract import NoticeRequest
from perdure.features.notices.rules import CutOffRun, cut_off_request, wedged_request
from perdure.features.reconciler import rules as judge
from perdure.features.reconciler.contract import (
    CutOffWindow,
    Finding,
    Place,
    ReconcileReport,
    ReconcileRequest,
    Repair,
    StoreMark,
)
from perdure.features.reconciler.rules import LedgerKey, OpenClaim, Parent, Sweep

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

    async def is_quiet(self, workflow_id: str) -> bool:
        """Return whether the run is a trial, which announces nothing, by its first event."""
        with suppress(RPCError):
            first = await anext(self._client.get_workflow_handle(workflow_id).fetch_history_events(page_size=1))
            given = first.workflow_execution_started_event_attributes.input.payloads[:1]
            (start,) = await self._client.data_converter.decode(given) if given else ({},)
            payload = start.get("payload") or start.get("state") if isinstance(start, dict) else None
            return isinstance(payload, dict) and bool(payload.get("quiet") or payload.get("dry_run"))
        return False

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


MAX_CUT_OFF = 20  # runs of a pass: each is queried, and announced by a workflow of its own
FIRST_WINDOW = timedelta(hours=1)  # before the first pass
LIST_DELAY = timedelta(minutes=1)  # until a list has a run that has closed


class CutOffRuns:
    """The runs of this task queue that Temporal ended. `notices` are theirs."""

    def __init__(self, client: Client, server: ReconcileQueries, channels: Sequence[Channel]) -> None:
        self._client = client
        self._server = server
        self._channels = channels
        self.notices: list[NoticeRequest] = []

    async def find(self, window: CutOffWindow | None) -> CutOffWindow:
        """Find the runs that closed within a window, the latest first. Return the window of the next pass."""
        window = window or CutOffWindow(since=self._server.now - FIRST_WINDOW)
        query = f"{self._server.own_runs} AND ExecutionStatus IN ('Terminated', 'TimedOut')"
        query += f" AND CloseTime > '{(window.since - LIST_DELAY).isoformat()}'"
        query += f" AND CloseTime <= '{window.before.isoformat()}'" if window.before else ""
        runs = [run async for run in self._server.list_runs(query, limit=MAX_CUT_OFF)]
        for run in runs:
            if (notice := await self._announce(run)) is not None:
                self.notices.append(notice)
        upto = window.upto or self._server.now
        last = runs[-1].close_time if len(runs) == MAX_CUT_OFF else None
        if last is None or last == window.before:  # more than a pass of the same time: the others are left out
            return CutOffWindow(since=upto)
        return CutOffWindow(since=window.since, before=last, upto=upto)

    async def _announce(self, run: WorkflowExecution) -> NoticeRequest | None:
        latest = await self._server.describe_run(run.id)
        if latest is None or latest.run_id != run.run_id:  # it was reset, or another run has its id
            return None
        agent = run.typed_search_attributes.get(AGENT_NAME) or ""
        cut_off = CutOffRun(
            run_id=run_id_of_workflow(run.id),
            agent=agent,
            status=run.typed_search_attributes.get(AGENT_STATUS) or "",
            is_timed_out=run.status is WorkflowExecutionStatus.TIMED_OUT,
            reason=await self._read_reason(run),
            state=await self._server.query_state(run.id),
        )
        if cut_off.state is None and await self._server.is_quiet(run.id):
            return None
        return cut_off_request(cut_off, match_routes(self._channels, agent))

    async def _read_reason(self, run: WorkflowExecution) -> str:
        """Return the reason that was given for a terminate."""
        handle, last = self._client.get_workflow_handle(run.id, run_id=run.run_id), None
        with suppress(RPCError):
            closing = handle.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT)
            last = await anext(closing, None)
        if last is None or last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            return ""
        return last.workflow_execution_terminated_event_attributes.reason


MAX_CHECKED_STORES = 500  # per pass
MARK_FILE = "seen.json"  # a file in the store


class StoreChecks:
    """The checks of one pass. `unjudged` counts the stores that could not be checked."""

    def __init__(self, client: Client, stores: Stores, server: ReconcileQueries) -> None:
        self.checked = 0
        self.unjudged = 0
        self._client = client
        self._stores = stores
        self._server = server

    async def check_stores(self, after: str) -> str:
        """Check a batch of stores, beginning with the one behind `after`. Return the next pass's `after`."""
        folders: list[str] = []
        try:
            folders = await asyncio.to_thread(lambda: list(self._stores.list_folders()))
        except OSError as error:
            _log.warning("the stores cannot be looked at: %s", error)
        first = bisect_right(folders, after)
        batch = folders[first : first + MAX_CHECKED_STORES]
        for folder in batch:
            await self._check_store(folder)
        self.checked = len(batch)
        return batch[-1] if first + MAX_CHECKED_STORES < len(folders) else ""

    async def _check_store(self, folder: str) -> None:
        run_id = run_id_in(folder)
        if run_id is None:
            self.unjudged += 1
            return
        if run_id in (ids.GATEWAY_STORE, ids.GRANTS_STORE) or ids.conversation_id_of(run_id) != run_id:
            return  # the gateways', grants, or a conversation's, which stays: the conversation may continue
        store = self._stores.of(run_id)
        try:
            if run_id == ids.UPLOADS_STORE:
                if self._server.repairs:
                    await asyncio.to_thread(store.remove_older, MEDIA_FOLDER, self._server.now - judge.UPLOADS_KEPT)
                return
            run = await self._server.find_run(run_id)
            claims = judge.unsettled_claims(await asyncio.to_thread(store.names, LEDGER_FOLDER))
            seen = await asyncio.to_thread(read_model, store, MARK_FILE, StoreMark)
            if run is None:
                await self._sweep_store(run_id, store, seen, claims)
            elif run.task_queue == self._server.here.task_queue:
                if seen is None or (seen.place == self._server.here and seen.gone_since):
                    await asyncio.to_thread(_write_mark, store, StoreMark(place=self._server.here))
                for page in claims:
                    await self._check_claim(run_id, run, store, page)
        except (OSError, OutsideWorkspaceError) as error:
            self.unjudged += 1
            _log.warning("the store of run %s cannot be looked at: %s", run_id, error)

    async def _sweep_store(self, run_id: str, store: Store, seen: StoreMark | None, claims: list[LedgerKey]) -> None:
        has_heir = await self._has_open_heir(run_id)
        match judge.decide_sweep(seen, self._server.here, self._server.now, claims=len(claims), has_heir=has_heir):
            case Sweep.leave:
                self.unjudged += 1
            case Sweep.note:
                if self._server.repairs:
                    await asyncio.to_thread(
                        _write_mark, store, StoreMark(place=self._server.here, gone_since=self._server.now)
                    )
            case Sweep.wait:
                pass
            case Sweep.name:
                self._server.findings.append(judge.left_store_finding(run_id, claims))
            case Sweep.clear:
                finding = judge.left_store_finding(run_id)
                if self._server.repairs and await self._server.find_run(run_id) is None:  # not started again just now
                    await asyncio.to_thread(store.clear)
                    finding = finding.evolve(repaired=True)
                self._server.findings.append(finding)

    async def _has_open_heir(self, run_id: str) -> bool:
        prefix = ids.run_workflow_id(ids.successors_prefix(run_id))
        query = f"{self._server.open_runs} AND {ids.query_begins('WorkflowId', prefix)}"
        async for run in self._server.list_runs(query):
            if run.id.startswith(prefix):
                return True
        return False

    async def _check_claim(self, run_id: str, run: WorkflowExecutionDescription, store: Store, page: LedgerKey) -> None:
        name = f"{LEDGER_FOLDER}/{page.name}.claim"
        claim = await asyncio.to_thread(read_model, store, name, Claim)
        if claim is not None and judge.is_fresh(claim.until, self._server.now):
            return
        keeper = run
        while heir := await self._server.find_run(ids.resumed_id(ids.run_id_of_workflow(keeper.id))):
            keeper = heir
        unasked = self._server.unasked
        state = None if is_wedged(keeper) else await self._server.query_state(keeper.id)
        if self._server.unasked > unasked:
            return  # the run's own state of the call is unknown
        facts = OpenClaim(
            page=page,
            tool=claim.tool if claim else "",
            until=claim.until if claim else None,
            keeper=ids.run_id_of_workflow(keeper.id),
            standing=workflow_status_of(keeper),
            asks=keeper.typed_search_attributes.get(AGENT_STATUS) == RunStatus.waiting_on_human,
            at_work=await self._is_at_work(keeper, page.step),
            state=state,
        )
        if finding := judge.unowned_finding(run_id, facts, self._server.now):
            self._server.findings.append(finding)

    async def _is_at_work(self, run: WorkflowExecutionDescription, step: int) -> bool:
        """Return True if a pending activity makes the call, or has not reported its call yet."""
        for pending in run.raw_description.pending_activities:
            if pending.activity_type.name != "call_tool":
                continue
            try:
                beats = await self._client.data_converter.decode(pending.heartbeat_details.payloads)
            except Exception:  # noqa: BLE001 - encrypted with an unknown key
                return True
            if not beats or not isinstance(beats[0], dict) or beats[0].get("step") in (None, step):
                return True
        return False


def _write_mark(store: Store, seen: StoreMark) -> None:
    store.write(MARK_FILE, seen.model_dump_json().encode())


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

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.project.stores, parts.task_queue, channels=channels_of(parts.project))

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
            stores=stores.checked,
            unjudged=stores.unjudged,
            unasked=server.unasked,
            outdated=outdated,
            notices=(*await self._wedged_notices(server, runs.wedged), *cut_off.notices) if self._channels else (),
            cut_off=window,
            after=upto,
            older=server.older,
        )

    async def _wedged_notices(self, server: ReconcileQueries, wedged: Mapping[str, str]) -> tuple[NoticeRequest, ...]:
        requests = []
        for run_id, agent in islice(wedged.items(), judge.MAX_FINDINGS):
            request = wedged_request(run_id, agent, MEND_ADVICE, match_routes(self._channels, agent))
            if request is not None and not await server.is_quiet(run_workflow_id(run_id)):
                requests.append(request)
        return tuple(requests)


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
                finding = finding.evolve(repaired=await self._server.cancel_run(run.id, reason))
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
