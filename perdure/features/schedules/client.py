"""Schedules of runs, which Temporal stores and triggers: create, list, pause, trigger and remove them.

The schedule `nightly` is Temporal's schedule `schedule:nightly`, and starts runs `nightly-<time>`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
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
from temporalio.common import TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.telemetry.attributes import of_start
from perdure.client.door import check_start
from perdure.client.errors import RejectedError, TemporalUnavailableError, to_unavailable_error
from perdure.client.runs import start_with_attributes
from perdure.contracts.models import FrozenModel
from perdure.contracts.people import SCHEDULE
from perdure.contracts.run.events import StartEvent
from perdure.decisions import ids
from perdure.decisions.text.formatting import escape_markdown, truncate
from perdure.features.schedules import rules as cron
from perdure.settings import Settings

SCHEDULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# A start that was missed for longer, with the server down, is skipped.
CATCH_UP = timedelta(minutes=10)
TRIGGER_TIMEOUT = 15.0  # seconds for the server to act on a trigger
TRIGGER_POLL_INTERVAL = 0.1
MAX_UPCOMING = 3
OVERLAPS = {
    "skip": ScheduleOverlapPolicy.SKIP,
    "buffer-one": ScheduleOverlapPolicy.BUFFER_ONE,
    "buffer-all": ScheduleOverlapPolicy.BUFFER_ALL,
    "allow-all": ScheduleOverlapPolicy.ALLOW_ALL,
}
TIMING_MEMO = "when"  # of the memo: the server keeps a cron line as a calendar


class ScheduleNotFoundError(RejectedError):
    """No schedule has this name."""


@dataclass(frozen=True)
class NewSchedule:
    """A schedule to create, by either `cron` (five fields, read in `time_zone`) or `every`."""

    name: str
    event: StartEvent
    cron: str | None = None
    every: timedelta | None = None
    time_zone: str | None = None  # None: UTC
    jitter: timedelta | None = None
    overlap: str = "skip"
    is_paused: bool = False

    @property
    def timing(self) -> str:
        if self.every is not None:
            return f"every {_format_interval(self.every)}"
        return f"{self.cron} ({self.time_zone or 'UTC'})"

    def with_time_zone(self) -> "NewSchedule":
        """Return it with the time zone of the cron line or of the option. Raises RejectedError for an invalid line."""
        if self.cron is None:
            return self
        try:
            line, zone = cron.split_zone(self.cron, self.time_zone)
            cron.check_cron(line)
        except cron.CronError as error:
            raise RejectedError(str(error)) from None
        return replace(self, cron=line, time_zone=zone)


class ScheduleInfo(FrozenModel):
    """A schedule as the server has it."""

    name: str
    when: str  # as it was written, with its time zone
    goal: str
    agent: str | None
    overlap: str  # what happens if the previous run is still active
    is_paused: bool
    next: datetime | None  # the next start
    upcoming: tuple[datetime, ...]  # the next starts, three at most
    latest: str | None  # the latest run
    at_work: tuple[str, ...]  # its runs that are active
    skipped: int  # starts that were left out, as the previous run was active
    missed: int  # starts that were left out, as the server was down for too long
    time_zone: str


async def add_schedule(
    client: Client, task_queue: str, spec: NewSchedule, project: Settings | None = None
) -> ScheduleInfo:
    """Create a schedule. `project` is as of `start_or_get_run`. Raises RejectedError."""
    if not SCHEDULE_NAME.fullmatch(spec.name):
        name = truncate(spec.name, 110)
        raise RejectedError(f"{name!r} is not a valid schedule name: use up to 100 letters, digits, - _ and .")
    await check_start(spec.event.payload, project)
    spec = spec.with_time_zone()
    action = ScheduleActionStartWorkflow(
        "AgentRun",
        spec.event.evolve(sender=SCHEDULE).model_dump(mode="json", exclude_defaults=True),
        id=ids.run_workflow_id(spec.name),  # to which the server adds the time
        task_queue=task_queue,
        static_summary=escape_markdown(truncate(spec.event.payload.goal, 200)),
    )
    schedule = Schedule(
        action=action,
        spec=ScheduleSpec(
            intervals=[ScheduleIntervalSpec(every=spec.every)] if spec.every else [],
            cron_expressions=[spec.cron] if spec.cron else [],
            jitter=spec.jitter,
            time_zone_name=spec.time_zone,
        ),
        policy=SchedulePolicy(overlap=OVERLAPS[spec.overlap], catchup_window=CATCH_UP),
        state=ScheduleState(paused=spec.is_paused),
    )

    async def create(known: TypedSearchAttributes) -> ScheduleHandle:
        started = replace(schedule, action=replace(action, typed_search_attributes=known))
        return await client.create_schedule(ids.run_schedule_id(spec.name), started, memo={TIMING_MEMO: spec.timing})

    try:
        handle = await start_with_attributes(create, of_start(spec.event.payload))
        created = await _to_schedule_info(client, await handle.describe())
    except ScheduleAlreadyRunningError:
        remove_it = f"perdure schedule remove {spec.name}"
        raise RejectedError(
            f"schedule {spec.name} already exists; to replace it, remove it first: {remove_it}"
        ) from None
    except RPCError as error:
        raise _convert_schedule_error(error, spec.name) from None
    if created.next is None:
        await handle.delete()
        raise RejectedError(f"{spec.timing} never occurs; the schedule was not created")
    return created


async def list_schedules(client: Client, task_queue: str) -> AsyncIterator[ScheduleInfo]:
    """Yield the schedules of this task queue. Each costs a request to Temporal. Raises TemporalUnavailableError."""
    try:
        async for entry in await client.list_schedules():
            if not entry.id.startswith(ids.SCHEDULE_PREFIX):
                continue
            try:
                described = await client.get_schedule_handle(entry.id).describe()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    continue  # it was just removed
                raise
            if _start_action(described).task_queue == task_queue:
                yield await _to_schedule_info(client, described)
    except RPCError as error:
        raise TemporalUnavailableError(f"the schedules cannot be read: {truncate(error.message)}") from None


async def remove_schedule(client: Client, task_queue: str, name: str) -> None:
    """Remove a schedule; its active runs continue. Raises ScheduleNotFoundError."""
    await (await find_schedule(client, task_queue, name))[0].delete()


async def pause_schedule(client: Client, task_queue: str, name: str) -> None:
    """Pause a schedule. Raises ScheduleNotFoundError."""
    await (await find_schedule(client, task_queue, name))[0].pause(note="paused by perdure")


async def unpause_schedule(client: Client, task_queue: str, name: str) -> None:
    """Let a paused schedule start runs again. Raises ScheduleNotFoundError."""
    await (await find_schedule(client, task_queue, name))[0].unpause(note="unpaused by perdure")


async def trigger_schedule(client: Client, task_queue: str, name: str) -> str | None:
    """Start a run now, if the overlap policy allows. Return its id, unless it waits for the previous run.

    Raises ScheduleNotFoundError, RejectedError if the policy skips the run, TemporalUnavailableError if the server
    does not act.
    """
    handle, before = await find_schedule(client, task_queue, name)
    known = {_run_id(action) for action in before.info.recent_actions}
    await handle.trigger()
    deadline = asyncio.get_running_loop().time() + TRIGGER_TIMEOUT
    while asyncio.get_running_loop().time() < deadline:
        now = await handle.describe()
        new = [run_id for run_id in map(_run_id, now.info.recent_actions) if run_id not in known]
        if new:
            return new[-1]
        if now.info.num_actions_skipped_overlap > before.info.num_actions_skipped_overlap:
            active = ", ".join(_active_runs(now)) or "a run"
            raise RejectedError(f"not started: {active} is still active, and the overlap policy of {name} is skip")
        if now.raw_description.info.buffer_size > before.raw_description.info.buffer_size:
            return None
        await asyncio.sleep(TRIGGER_POLL_INTERVAL)
    raise TemporalUnavailableError(f"Temporal started no run within {TRIGGER_TIMEOUT:g} s; see perdure schedule list")


async def find_schedule(client: Client, task_queue: str, name: str) -> tuple[ScheduleHandle, ScheduleDescription]:
    """Describe a schedule. Raises ScheduleNotFoundError."""
    handle = client.get_schedule_handle(ids.run_schedule_id(name))
    try:
        described = await handle.describe()
    except RPCError as error:
        raise _convert_schedule_error(error, name) from None
    if _start_action(described).task_queue != task_queue:
        raise ScheduleNotFoundError(
            f"schedule {name} belongs to another project: task queue {_start_action(described).task_queue}"
        )
    return handle, described


async def _to_schedule_info(client: Client, described: ScheduleDescription) -> ScheduleInfo:
    info, schedule = described.info, described.schedule
    payload, memo = await _start_payload(client, _start_action(described)), await described.memo()
    when, zone = str(memo.get(TIMING_MEMO, "as Temporal has it")), schedule.spec.time_zone_name or "UTC"
    return ScheduleInfo(
        name=described.id.removeprefix(ids.SCHEDULE_PREFIX),
        when=when,
        goal=str(payload.get("goal", "")),
        agent=payload.get("agent"),
        overlap=next((name for name, policy in OVERLAPS.items() if policy == schedule.policy.overlap), "other"),
        is_paused=schedule.state.paused,
        next=next(iter(info.next_action_times), None),
        upcoming=tuple(info.next_action_times[:MAX_UPCOMING]),
        latest=_run_id(info.recent_actions[-1]) if info.recent_actions else None,
        at_work=_active_runs(described),
        skipped=info.num_actions_skipped_overlap,
        missed=info.num_actions_missed_catchup_window,
        time_zone=zone,
    )


def _start_action(described: ScheduleDescription) -> ScheduleActionStartWorkflow:
    action = described.schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow):
        raise RejectedError(f"schedule {described.id} starts no workflow")
    return action


async def _start_payload(client: Client, action: ScheduleActionStartWorkflow) -> Mapping[str, Any]:
    """Return the payload of the runs' start event; empty if it is not one."""
    inputs = await client.data_converter.decode([argument for argument in action.args if isinstance(argument, Payload)])
    payload = inputs[0].get("payload") if inputs and isinstance(inputs[0], dict) else None
    return payload if isinstance(payload, dict) else {}


def _run_id(result: Any) -> str:
    execution: ScheduleActionExecution = result.action
    return (
        ids.run_id_of_workflow(execution.workflow_id)
        if isinstance(execution, ScheduleActionExecutionStartWorkflow)
        else ""
    )


def _active_runs(described: ScheduleDescription) -> tuple[str, ...]:
    starts = (s for s in described.info.running_actions if isinstance(s, ScheduleActionExecutionStartWorkflow))
    return tuple(ids.run_id_of_workflow(start.workflow_id) for start in starts)


def _format_interval(every: timedelta) -> str:
    """Format an interval as "1h", "90m" or "2d"."""
    seconds = every.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _convert_schedule_error(error: RPCError, name: str) -> Exception:
    if error.status is RPCStatusCode.NOT_FOUND:
        return ScheduleNotFoundError(f"there is no schedule {name}; to list all: perdure schedule list")
    return to_unavailable_error(error) or RejectedError(f"the server rejected the schedule: {truncate(error.message)}")
