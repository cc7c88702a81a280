"""The reconciler's schedule: a check every five minutes, and one when a worker starts.

The worker does not wait for it, and works without it if the server has no schedules or denies access.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import temporalio.client as temporal
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.decisions.errors import ReportedError
from perdure.decisions.text.formatting import truncate
from perdure.features.reconciler.activities import Reconciler
from perdure.features.reconciler.contract import FindingKind, ReconcileReport
from perdure.registry import Check, Figures
from perdure.settings import Settings

RECONCILE_INTERVAL = timedelta(minutes=5)
RECENT_CHECK = timedelta(minutes=1)  # a starting worker triggers no check after one of this age
CATCH_UP = timedelta(seconds=10)  # the server's minimum: a missed check is skipped

_log = logging.getLogger(__name__)


def reconcile_schedule_id(task_queue: str) -> str:
    return f"perdure-reconcile:{task_queue}"


@asynccontextmanager
async def maintain_schedule(client: temporal.Client, task_queue: str) -> AsyncIterator[None]:
    """Update the schedule in the background while the block runs."""
    task = asyncio.create_task(_try_schedule(client, task_queue))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _try_schedule(client: temporal.Client, task_queue: str) -> None:
    try:
        await ensure_schedule(client, task_queue)
    except Exception as error:  # noqa: BLE001 - the worker works without it
        _log.warning("the reconciler is not scheduled: %s", error)


async def ensure_schedule(client: temporal.Client, task_queue: str) -> None:
    """Create or update the schedule, and trigger a check unless one was recent."""
    expected = _build_schedule(task_queue)

    def update(current: temporal.ScheduleUpdateInput) -> temporal.ScheduleUpdate:
        """Keep the state: a schedule that a person paused stays paused."""
        return temporal.ScheduleUpdate(replace(expected, state=current.description.schedule.state))

    try:
        await client.create_schedule(reconcile_schedule_id(task_queue), expected, trigger_immediately=True)
    except temporal.ScheduleAlreadyRunningError:
        handle = client.get_schedule_handle(reconcile_schedule_id(task_queue))
        existing = await handle.describe()
        if _comparable_parts(existing.schedule) != _comparable_parts(expected):
            await handle.update(update)
        now, info = datetime.now(UTC), existing.info
        is_recent = info.running_actions or any(now - run.started_at < RECENT_CHECK for run in info.recent_actions)
        if not existing.schedule.state.paused and not is_recent:
            await handle.trigger(overlap=temporal.ScheduleOverlapPolicy.SKIP)


async def last_check_time(client: temporal.Client, task_queue: str) -> datetime | None:
    """Return the time of the last check, if any. Raises RPCError if it is not scheduled."""
    info = (await client.get_schedule_handle(reconcile_schedule_id(task_queue)).describe()).info
    return info.recent_actions[-1].started_at if info.recent_actions else None


def _build_schedule(task_queue: str) -> temporal.Schedule:
    action = temporal.ScheduleActionStartWorkflow(
        "Reconcile",
        id=f"reconcile:{task_queue}",
        task_queue=task_queue,
        static_summary="The reconciler: wedged runs, orphans, claims, waits, left stores",
        memo={"about": "Perdure looks after its runs every five minutes. Pause the schedule to stop it."},
    )
    return temporal.Schedule(
        action=action,
        spec=temporal.ScheduleSpec(intervals=[temporal.ScheduleIntervalSpec(every=RECONCILE_INTERVAL)]),
        policy=temporal.SchedulePolicy(overlap=temporal.ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
    )


def _comparable_parts(schedule: temporal.Schedule) -> tuple[object, ...]:
    """Return what Perdure sets."""
    action = schedule.action
    start = (action.workflow, action.task_queue) if isinstance(action, temporal.ScheduleActionStartWorkflow) else None
    return start, list(schedule.spec.intervals), schedule.policy


REPORTS_READ = 2  # of the latest checks: the last one may be under way, or have failed


async def count_findings(client: Client, settings: Settings) -> Figures | None:
    """Return the findings of the last check, by `FindingKind`; None if there is none. Raises RPCError."""
    try:
        info = (await client.get_schedule_handle(reconcile_schedule_id(settings.task_queue)).describe()).info
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    starts = temporal.ScheduleActionExecutionStartWorkflow
    active = {check.first_execution_run_id for check in info.running_actions if isinstance(check, starts)}
    for latest in reversed(info.recent_actions[-REPORTS_READ:]):
        check = latest.action
        if not isinstance(check, starts) or check.first_execution_run_id in active:
            continue
        with suppress(temporal.WorkflowFailureError):
            handle = client.get_workflow_handle(check.workflow_id, run_id=check.first_execution_run_id)
            found = (await handle.result())["found"]  # as it is written: a later version may find more
            return Figures({kind.value: found.get(kind, 0) for kind in FindingKind}, latest.started_at)
    return None


MAX_FINDINGS_SHOWN = 5  # findings in a line
HEADINGS = {
    FindingKind.wedged: "wedged runs",
    FindingKind.orphaned: "orphaned runs",
    FindingKind.unattended: "unattended runs",
    FindingKind.claim: "claims",
    FindingKind.overdue: "waits",
    FindingKind.left_store: "left stores",
}


async def check_schedule(client: Client, settings: Settings) -> list[Check]:
    """Say whether the reconciler is scheduled, and when it last ran."""
    try:
        at = await last_check_time(client, settings.task_queue)
    except RPCError as error:
        reason = "" if error.status == RPCStatusCode.NOT_FOUND else f" ({truncate(error.message, 100)})"
        found = f"not scheduled yet{reason}; a worker schedules it when it starts"
        return [Check("reconciler", ok=True, found=found)]
    found = f"every five minutes, {f'last at {at:%Y-%m-%d %H:%M} UTC' if at else 'not run yet'}"
    return [Check("reconciler", ok=True, found=found)]


async def check_runs(client: Client, settings: Settings) -> list[Check]:
    """Run the reconciler's checks, without repairs."""
    try:
        report = await Reconciler(client, settings.stores, settings.task_queue).run_pass()
    except ReportedError as error:
        return [Check("runs", ok=False, found=f"not checked: {error}")]
    except RPCError as error:
        return [Check("runs", ok=False, found=f"cannot be checked: {truncate(error.message)}")]
    return [_problem_check(problem, report) for problem in FindingKind]


def _problem_check(problem: FindingKind, report: ReconcileReport) -> Check:
    findings = [finding for finding in report.findings if finding.problem is problem]
    count = report.found.get(problem, 0)
    lines = "; ".join(
        f"{finding.run_id}: {finding.found} → {finding.advice}" for finding in findings[:MAX_FINDINGS_SHOWN]
    )
    found = f"{count}: {lines}{' …' if count > MAX_FINDINGS_SHOWN else ''}" if count else "none"
    if problem in (FindingKind.claim, FindingKind.overdue) and report.unasked:
        found += f" ({report.unasked} runs did not answer or were not queried)"
    if problem in (FindingKind.claim, FindingKind.left_store) and report.after:
        found += f" (in the first {report.stores} stores; the reconciler checks the others)"
    return Check(HEADINGS[problem], ok=all(finding.repair is not None for finding in findings), found=found)
