"""Runs that Temporal ended, by a terminate or a timeout: they could not announce their end, so the reconciler does."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHistoryEventFilterType
from temporalio.service import RPCError

from activities.people.channels import Channel, match_routes
from activities.reconcile.queries import ReconcileQueries
from activities.telemetry.attributes import AGENT_NAME, AGENT_STATUS
from contracts.people.notice import NoticeRequest
from contracts.reconcile import CutOffWindow
from decisions.ids import run_id_of_workflow
from decisions.people.notice import CutOffRun, cut_off_request

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
