"""The reconciler's schedule: a check every five minutes, and one when a worker starts.

The worker does not wait for it, and works without it if the server has no schedules or denies access.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

RECONCILE_INTERVAL = timedelta(minutes=5)
RECENT_CHECK = timedelta(minutes=1)  # a starting worker triggers no check after one of this age
CATCH_UP = timedelta(seconds=10)  # the server's minimum: a missed check is skipped

_log = logging.getLogger(__name__)


def reconcile_schedule_id(task_queue: str) -> str:
    return f"perdure-reconcile:{task_queue}"


@asynccontextmanager
async def maintain_schedule(client: Client, task_queue: str) -> AsyncIterator[None]:
    """Update the schedule in the background while the block runs."""
    task = asyncio.create_task(_try_schedule(client, task_queue))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _try_schedule(client: Client, task_queue: str) -> None:
    try:
        await ensure_schedule(client, task_queue)
    except Exception as error:  # noqa: BLE001 - the worker works without it
        _log.warning("the reconciler is not scheduled: %s", error)


async def ensure_schedule(client: Client, task_queue: str) -> None:
    """Create or update the schedule, and trigger a check unless one was recent."""
    expected = _build_schedule(task_queue)
    try:
        await client.create_schedule(reconcile_schedule_id(task_queue), expected, trigger_immediately=True)
    except ScheduleAlreadyRunningError:
        handle = client.get_schedule_handle(reconcile_schedule_id(task_queue))
        existing = await handle.describe()
        if _is_different(existing.schedule, expected):
            await handle.update(_create_update(expected))
        if not existing.schedule.state.paused and not _is_recently_checked(existing, datetime.now(UTC)):
            await handle.trigger(overlap=ScheduleOverlapPolicy.SKIP)


async def last_check_time(client: Client, task_queue: str) -> datetime | None:
    """Return the time of the last check, if any. Raises RPCError if it is not scheduled."""
    info = (await client.get_schedule_handle(reconcile_schedule_id(task_queue)).describe()).info
    return info.recent_actions[-1].started_at if info.recent_actions else None


def _build_schedule(task_queue: str) -> Schedule:
    look = ScheduleActionStartWorkflow(
        "Reconcile",
        id=f"reconcile:{task_queue}",
        task_queue=task_queue,
        static_summary="The reconciler: wedged runs, orphans, claims, waits, left stores",
        memo={"about": "Perdure looks after its runs every five minutes. Pause the schedule to stop it."},
    )
    return Schedule(
        action=look,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=RECONCILE_INTERVAL)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
    )


def _is_different(existing: Schedule, expected: Schedule) -> bool:
    """Compare what Perdure sets. A schedule that a person paused stays paused."""
    return _comparable_parts(existing) != _comparable_parts(expected)


def _comparable_parts(schedule: Schedule) -> tuple[object, ...]:
    action = schedule.action
    start = (action.workflow, action.task_queue) if isinstance(action, ScheduleActionStartWorkflow) else None
    return start, list(schedule.spec.intervals), schedule.policy


def _create_update(expected: Schedule) -> Callable[[ScheduleUpdateInput], ScheduleUpdate]:
    def update(current: ScheduleUpdateInput) -> ScheduleUpdate:
        state = current.description.schedule.state
        return ScheduleUpdate(Schedule(action=expected.action, spec=expected.spec, policy=expected.policy, state=state))

    return update


def _is_recently_checked(existing: ScheduleDescription, now: datetime) -> bool:
    """Return whether a check is active or recent."""
    info = existing.info
    return bool(info.running_actions) or any(now - action.started_at < RECENT_CHECK for action in info.recent_actions)
