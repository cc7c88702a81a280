"""The reconciler's schedule: a look every five minutes, and one at each worker's start.

The worker does not wait for it, and works without it where the server has no schedules, or does not let us.
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

EVERY = timedelta(minutes=5)
RECENT = timedelta(minutes=1)  # a look of this age does for a worker that starts
CATCH_UP = timedelta(seconds=10)  # the least the server takes: a look that was missed is not made up for

_log = logging.getLogger(__name__)


def schedule_id(task_queue: str) -> str:
    return f"perdure-reconcile:{task_queue}"


@asynccontextmanager
async def reconciling(client: Client, task_queue: str) -> AsyncIterator[None]:
    """Sees to the schedule while the block runs, and to nothing else: it is neither waited for nor missed."""
    task = asyncio.create_task(_seen_to(client, task_queue))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _seen_to(client: Client, task_queue: str) -> None:
    try:
        await schedule(client, task_queue)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the worker works without it
        _log.warning("the reconciler is not scheduled: %s", error)


async def schedule(client: Client, task_queue: str) -> None:
    """Creates the schedule, or brings it up to date; asks for a look now, unless there was one just before."""
    wanted = _schedule(task_queue)
    try:
        await client.create_schedule(schedule_id(task_queue), wanted, trigger_immediately=True)
    except ScheduleAlreadyRunningError:
        handle = client.get_schedule_handle(schedule_id(task_queue))
        there = await handle.describe()
        if _differs(there.schedule, wanted):
            await handle.update(_brought_up_to(wanted))
        if not there.schedule.state.paused and not _has_looked(there, datetime.now(UTC)):
            await handle.trigger(overlap=ScheduleOverlapPolicy.SKIP)


async def latest_look(client: Client, task_queue: str) -> datetime | None:
    """When the reconciler looked last; None where it has not yet. Raises RPCError where it is not scheduled."""
    info = (await client.get_schedule_handle(schedule_id(task_queue)).describe()).info
    return info.recent_actions[-1].started_at if info.recent_actions else None


def _schedule(task_queue: str) -> Schedule:
    look = ScheduleActionStartWorkflow(
        "Reconcile",
        id=f"reconcile:{task_queue}",
        task_queue=task_queue,
        static_summary="The reconciler: wedged runs, orphans, claims, waits, left stores",
        memo={"about": "Perdure looks after its runs every five minutes. Pause the schedule to stop it."},
    )
    return Schedule(
        action=look,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=EVERY)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
    )


def _differs(there: Schedule, wanted: Schedule) -> bool:
    """In what we set. A person may have paused it, and it stays so."""
    return _told(there) != _told(wanted)


def _told(each: Schedule) -> tuple[object, ...]:
    action = each.action
    started = (action.workflow, action.task_queue) if isinstance(action, ScheduleActionStartWorkflow) else None
    return started, list(each.spec.intervals), each.policy


def _brought_up_to(wanted: Schedule) -> Callable[[ScheduleUpdateInput], ScheduleUpdate]:
    def update(there: ScheduleUpdateInput) -> ScheduleUpdate:
        state = there.description.schedule.state
        return ScheduleUpdate(Schedule(action=wanted.action, spec=wanted.spec, policy=wanted.policy, state=state))

    return update


def _has_looked(there: ScheduleDescription, now: datetime) -> bool:
    """A look is under way, or was just made."""
    info = there.info
    return bool(info.running_actions) or any(now - each.started_at < RECENT for each in info.recent_actions)
