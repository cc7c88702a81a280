"""Schedules: runs that begin by the clock. Temporal keeps them and starts the runs; here they are made, read and ended.

A schedule of the name `nightly` is Temporal's schedule `schedule:nightly`, and begins runs `nightly-<time>`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecution,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.service import RPCError, RPCStatusCode

from contracts.run.events import StartEvent
from contracts.sender import SCHEDULE
from decisions import cron, ids
from decisions.text.formatting import cut, markdown
from perdure.client.errors import NotReachable, Refused, unanswered
from perdure.client.runs import must_fit

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# A start that was missed for longer, with the server down, is not made up for.
CATCH_UP = timedelta(minutes=10)
LOOK_FOR = 15.0  # seconds in which the server does what a trigger asks
LOOK_EVERY = 0.1
OVERLAPS = {
    "skip": ScheduleOverlapPolicy.SKIP,
    "buffer-one": ScheduleOverlapPolicy.BUFFER_ONE,
    "buffer-all": ScheduleOverlapPolicy.BUFFER_ALL,
    "allow-all": ScheduleOverlapPolicy.ALLOW_ALL,
}
WHEN = "when"  # of the memo: the server keeps a cron line as a calendar


class NoSuchSchedule(Refused):
    """There is no schedule of this name."""


@dataclass(frozen=True)
class Wanted:
    """A schedule to make. `cron` has five fields and is read in `time_zone`; either it or `every` is set."""

    name: str
    event: StartEvent
    cron: str | None = None
    every: timedelta | None = None
    time_zone: str | None = None  # None: UTC
    jitter: timedelta | None = None
    overlap: str = "skip"
    is_paused: bool = False

    @property
    def when(self) -> str:
        if self.every is not None:
            return f"every {_written(self.every)}"
        return f"{self.cron} ({self.time_zone or 'UTC'})"

    def checked(self) -> "Wanted":
        """With the time zone that holds, wherever it was named. Raises Refused for a line that is not taken."""
        if self.cron is None:
            return self
        try:
            line, zone = cron.split_zone(self.cron, self.time_zone)
            cron.check(line)
        except cron.CronError as error:
            raise Refused(str(error)) from None
        return replace(self, cron=line, time_zone=zone)


@dataclass(frozen=True)
class Scheduled:
    """A schedule as the server has it. `next` is None of one that never comes; `latest` is a run id, as in `at_work`.

    `when` is as it was given, `words` what that means, `time_zone` the zone that it is read in. `skipped` counts starts
    that found the run before still at work, `missed` those that came too late.
    """

    name: str
    when: str
    goal: str
    agent: str | None
    overlap: str
    is_paused: bool
    next: datetime | None
    latest: str | None
    at_work: tuple[str, ...]
    skipped: int
    missed: int
    words: str
    time_zone: str


async def add(client: Client, task_queue: str, wanted: Wanted) -> Scheduled:
    """Raises Refused."""
    if not NAME.fullmatch(wanted.name):
        name = cut(wanted.name, 110)
        raise Refused(f"{name!r} is no name of a schedule: letters, digits, - _ and . are taken, up to 100")
    must_fit(wanted.event)
    wanted = wanted.checked()
    start = ScheduleActionStartWorkflow(
        "AgentRun",
        wanted.event.model_copy(update={"sender": SCHEDULE}).model_dump(mode="json", exclude_defaults=True),
        id=ids.run_workflow_id(wanted.name),  # to which the server adds the time
        task_queue=task_queue,
        static_summary=markdown(cut(wanted.event.payload.goal, 200)),
    )
    schedule = Schedule(
        action=start,
        spec=ScheduleSpec(
            intervals=[ScheduleIntervalSpec(every=wanted.every)] if wanted.every else [],
            cron_expressions=[wanted.cron] if wanted.cron else [],
            jitter=wanted.jitter,
            time_zone_name=wanted.time_zone,
        ),
        policy=SchedulePolicy(overlap=OVERLAPS[wanted.overlap], catchup_window=CATCH_UP),
        state=ScheduleState(paused=wanted.is_paused),
    )
    try:
        handle = await client.create_schedule(ids.schedule_id(wanted.name), schedule, memo={WHEN: wanted.when})
        made = await _scheduled(client, await handle.describe())
    except ScheduleAlreadyRunningError:
        again = f"perdure schedule remove {wanted.name}"
        raise Refused(f"there is a schedule {wanted.name} already; to make it anew: {again}") from None
    except RPCError as error:
        raise _translated(error, wanted.name) from None
    if made.next is None:
        await handle.delete()
        raise Refused(f"{wanted.when} never comes; the schedule was not made")
    return made


async def every(client: Client, task_queue: str) -> AsyncIterator[Scheduled]:
    """Those of this task queue."""
    try:
        async for each in await client.list_schedules():
            if not each.id.startswith(ids.SCHEDULE):
                continue
            try:
                described = await client.get_schedule_handle(each.id).describe()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    continue  # somebody has just removed it
                raise
            if _action(described).task_queue == task_queue:
                yield await _scheduled(client, described)
    except RPCError as error:
        raise NotReachable(f"the schedules cannot be read: {cut(error.message, 200)}") from None


async def remove(client: Client, task_queue: str, name: str) -> None:
    """What it has begun goes on. Raises NoSuchSchedule."""
    await (await _found(client, task_queue, name))[0].delete()


async def pause(client: Client, task_queue: str, name: str) -> None:
    """Raises NoSuchSchedule."""
    await (await _found(client, task_queue, name))[0].pause(note="paused by perdure")


async def resume(client: Client, task_queue: str, name: str) -> None:
    """Raises NoSuchSchedule."""
    await (await _found(client, task_queue, name))[0].unpause(note="resumed by perdure")


async def trigger(client: Client, task_queue: str, name: str) -> str | None:
    """Starts a run now, as the overlap policy has it: its id, or None where it waits for the run before it.

    Raises NoSuchSchedule, Refused where the policy skips it, NotReachable where the server does not act.
    """
    handle, before = await _found(client, task_queue, name)
    known = {_run_id(each) for each in before.info.recent_actions}
    await handle.trigger()
    deadline = asyncio.get_running_loop().time() + LOOK_FOR
    while asyncio.get_running_loop().time() < deadline:
        now = await handle.describe()
        begun = [_run_id(each) for each in now.info.recent_actions if _run_id(each) not in known]
        if begun:
            return begun[-1]
        if now.info.num_actions_skipped_overlap > before.info.num_actions_skipped_overlap:
            raise Refused(f"not begun: {_at_work(now)} is still at work, and {name} has overlap skip")
        if now.raw_description.info.buffer_size > before.raw_description.info.buffer_size:
            return None
        await asyncio.sleep(LOOK_EVERY)
    raise NotReachable(f"Temporal has not begun a run within {LOOK_FOR:g} s; see perdure schedule list")


async def _found(client: Client, task_queue: str, name: str) -> tuple[ScheduleHandle, ScheduleDescription]:
    handle = client.get_schedule_handle(ids.schedule_id(name))
    try:
        described = await handle.describe()
    except RPCError as error:
        raise _translated(error, name) from None
    if _action(described).task_queue != task_queue:
        raise NoSuchSchedule(f"schedule {name} is of another project: task queue {_action(described).task_queue}")
    return handle, described


async def _scheduled(client: Client, described: ScheduleDescription) -> Scheduled:
    info, schedule = described.info, described.schedule
    payload, memo = await _start_payload(client, _action(described)), await described.memo()
    when, zone = str(memo.get(WHEN, "as Temporal has it")), schedule.spec.time_zone_name or "UTC"
    return Scheduled(
        name=described.id.removeprefix(ids.SCHEDULE),
        when=when,
        goal=str(payload.get("goal", "")),
        agent=payload.get("agent"),
        overlap=next((name for name, policy in OVERLAPS.items() if policy == schedule.policy.overlap), "other"),
        is_paused=schedule.state.paused,
        next=info.next_action_times[0] if info.next_action_times else None,
        latest=_run_id(info.recent_actions[-1]) if info.recent_actions else None,
        at_work=tuple(ids.run_id_of(each.workflow_id) for each in _started(info.running_actions)),
        skipped=info.num_actions_skipped_overlap,
        missed=info.num_actions_missed_catchup_window,
        words=_words(when, zone),
        time_zone=zone,
    )


def _words(when: str, zone: str) -> str:
    line, mark, _ = when.rpartition(" (")
    if not mark:
        return when
    with suppress(cron.CronError):  # of a schedule that was made elsewhere
        line, _ = cron.split_zone(line, None)
    return cron.describe(line, zone)


def _action(described: ScheduleDescription) -> ScheduleActionStartWorkflow:
    action = described.schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow):
        raise Refused(f"schedule {described.id} starts no workflow")
    return action


async def _start_payload(client: Client, action: ScheduleActionStartWorkflow) -> Mapping[str, Any]:
    """What its runs begin with, whoever made the schedule."""
    given = await client.data_converter.decode([each for each in action.args if isinstance(each, Payload)])
    payload = given[0].get("payload") if given and isinstance(given[0], dict) else None
    return payload if isinstance(payload, dict) else {}


def _started(actions: Any) -> list[ScheduleActionExecutionStartWorkflow]:
    return [each for each in actions if isinstance(each, ScheduleActionExecutionStartWorkflow)]


def _run_id(result: Any) -> str:
    execution: ScheduleActionExecution = result.action
    return ids.run_id_of(execution.workflow_id) if isinstance(execution, ScheduleActionExecutionStartWorkflow) else ""


def _at_work(described: ScheduleDescription) -> str:
    return ", ".join(ids.run_id_of(each.workflow_id) for each in _started(described.info.running_actions)) or "a run"


def _written(every: timedelta) -> str:
    """As people write it: "1h", "90m", "2d"."""
    seconds = every.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _translated(error: RPCError, name: str) -> Exception:
    if error.status is RPCStatusCode.NOT_FOUND:
        return NoSuchSchedule(f"there is no schedule {name}; to see which there are: perdure schedule list")
    return unanswered(error) or Refused(f"the server does not take the schedule: {cut(error.message, 300)}")
