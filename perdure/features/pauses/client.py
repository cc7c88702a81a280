"""Pause and unpause, what is paused, and what still runs. All of it is read without a worker."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.held import find_held, held_query
from perdure.activities.temporal import IgnoreMissing
from perdure.client.errors import RejectedError, convert_rpc_errors
from perdure.client.run_list import convert_list_error
from perdure.decisions import ids
from perdure.decisions.errors import ReportedError
from perdure.decisions.ids import query_equals
from perdure.decisions.text.formatting import truncate
from perdure.features.pauses.contract import Pause, PauseChange, PauseState
from perdure.features.pauses.rules import ALL, PREFIX, apply_change, find_pause, pause_reason, pauses_id
from perdure.features.pauses.traits import find_traits
from perdure.features.schedules.client import ScheduleNotFoundError, find_schedule
from perdure.process.guard import all_acting
from perdure.registry import Check, Figures
from perdure.settings import Settings

MAX_RUNS = 5000  # of a query: their ids are in each worker's memory
KNOWN_AFTER = 2.0  # seconds; then all workers know of a change
READS_AT_ONCE = 20
READ_PAGE = 200  # runs
STARTS_NOTE = "paused by perdure pause"  # of a schedule; one with another note was paused by itself
_STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED


async def find_execution(client: Client, task_queue: str) -> str | None:
    """Return the Temporal run id of `Pauses`, if it is open. Raises RPCError."""
    try:
        described = await client.get_workflow_handle(pauses_id(task_queue)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return described.run_id if described.status is WorkflowExecutionStatus.RUNNING else None


async def follow_history(client: Client, task_queue: str, execution: str) -> AsyncIterator[PauseState]:
    """Yield the state that the history gives now, and each later one until the execution ends. Raises RPCError."""
    handle = client.get_workflow_handle(pauses_id(task_queue), run_id=execution)
    state, known = PauseState(), 0
    async for event in handle.fetch_history_events():
        state, known = await _after(client, state, event), known + 1
    yield state
    seen = 0
    async for event in handle.fetch_history_events(wait_new_event=True):
        seen += 1
        if seen > known:
            state = await _after(client, state, event)
            yield state


async def _after(client: Client, state: PauseState, event: HistoryEvent) -> PauseState:
    """Return the state after an event, as the workflow computes it. An ended release is not among its events."""
    if event.event_type == _STARTED:
        payloads = event.workflow_execution_started_event_attributes.input.payloads
    elif event.event_type == _SIGNALED and event.workflow_execution_signaled_event_attributes.signal_name == "change":
        payloads = event.workflow_execution_signaled_event_attributes.input.payloads
    else:
        return state
    given = await client.data_converter.decode(payloads)
    with suppress(ValidationError):
        if event.event_type == _STARTED:
            return PauseState.model_validate(given[0]) if given and given[0] is not None else state
        return apply_change(state, PauseChange.model_validate(given[0])) if len(given) == 1 else state
    return state


async def read_pauses(client: Client, task_queue: str) -> Sequence[Pause]:
    """Return what is paused. Raises TemporalUnavailableError."""
    with convert_rpc_errors("the pauses"):
        if (execution := await find_execution(client, task_queue)) is None:
            return ()
        return (await anext(follow_history(client, task_queue, execution))).pauses


async def change_pauses(client: Client, task_queue: str, change: PauseChange) -> None:
    """Begin and end pauses. Workers know of it within a second. Raises TemporalUnavailableError."""
    with convert_rpc_errors("the pauses"):
        await client.start_workflow(
            "Pauses",
            id=pauses_id(task_queue),
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="change",
            start_signal_args=[change.model_dump(mode="json", exclude_defaults=True)],
            static_summary="What perdure pause holds",
        )


@dataclass(frozen=True)
class InFlight:
    """A call that began before the pause, and goes on. `queue` is another team's, whose workers follow no pause."""

    run_id: str
    activity: str
    since: datetime
    queue: str | None = None


async def find_runs(client: Client, task_queue: str, query: str) -> tuple[str, ...]:
    """Return the ids of the open runs that a list filter finds. Raises RejectedError, TemporalUnavailableError."""
    own = f"{query_equals('TaskQueue', task_queue)} AND WorkflowType = 'AgentRun' AND ExecutionStatus = 'Running'"
    found: list[str] = []
    try:
        async for row in client.list_workflows(f"{own} AND ({query})"):
            found.append(ids.run_id_of_workflow(row.id))
            if len(found) > MAX_RUNS:
                raise RejectedError(
                    f"more than {MAX_RUNS} open runs match {query!r}: pause an agent, a schedule or all instead"
                )
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise RejectedError(f"the query is not valid: {truncate(error.message)}") from None
        raise convert_list_error(client, error) from None
    if not found:
        raise RejectedError(f"no open run matches {query!r}: nothing to pause")
    return tuple(found)


async def find_in_flight(client: Client, task_queue: str, pause: Pause) -> AsyncIterator[InFlight]:
    """Yield the calls of a pause's runs that have begun, reading each open run. Raises TemporalUnavailableError."""
    query = f"{query_equals('TaskQueue', task_queue)} AND WorkflowType = 'AgentRun' AND ExecutionStatus = 'Running'"
    slots = asyncio.Semaphore(READS_AT_ONCE)

    async def read(workflow_id: str, execution: str) -> list[InFlight]:
        async with slots:
            with IgnoreMissing():
                described = await client.get_workflow_handle(workflow_id, run_id=execution).describe()
                run_id, pending = ids.run_id_of_workflow(workflow_id), described.raw_description.pending_activities
                begun = [call for each in pending if (call := _in_flight(run_id, task_queue, each))]
                if begun and await _is_held_by(client, pause, workflow_id, execution):
                    return begun
        return []

    with convert_rpc_errors("the runs"):
        rows = [(row.id, row.run_id) async for row in client.list_workflows(query)]
        for at in range(0, len(rows), READ_PAGE):
            for calls in await asyncio.gather(*(read(*row) for row in rows[at : at + READ_PAGE])):
                for call in calls:
                    yield call


async def _is_held_by(client: Client, pause: Pause, workflow_id: str, execution: str) -> bool:
    return pause.name == ALL or bool(find_pause([pause], await find_traits(client, workflow_id, execution)))


def _in_flight(run_id: str, task_queue: str, pending: PendingActivityInfo) -> InFlight | None:
    """Return a pending activity as a call that no pause stops, if it is one."""
    queue = pending.activity_options.task_queue.name
    is_begun = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    kind, since = pending.activity_type.name, pending.last_started_time if is_begun else pending.scheduled_time
    if queue not in ("", task_queue):
        return InFlight(run_id, kind, since.ToDatetime(UTC), queue)
    return InFlight(run_id, kind, since.ToDatetime(UTC)) if is_begun and kind in all_acting() else None


async def count_held(client: Client, task_queue: str) -> Counter[str]:
    """Return the number of activities by what holds them. Raises TemporalUnavailableError."""
    with convert_rpc_errors("the held runs"):
        return Counter([held.by async for held in find_held(client, task_queue)])


async def count_held_runs(client: Client, settings: Settings) -> Figures | None:
    """Return the number of runs that are held, if there are any. Raises RPCError."""
    held = await client.count_workflows(held_query(settings.task_queue))
    return Figures({"held": held.count}) if held.count else None


async def pause_starts(client: Client, task_queue: str, name: str) -> None:
    """Pause a schedule, too. Raises ScheduleNotFoundError."""
    handle, described = await find_schedule(client, task_queue, name)
    if not described.schedule.state.paused:
        await handle.pause(note=STARTS_NOTE)


async def unpause_starts(client: Client, task_queue: str, name: str) -> None:
    """Let a schedule start runs again, unless it was paused by itself, or is gone."""
    with suppress(ScheduleNotFoundError):
        handle, described = await find_schedule(client, task_queue, name)
        if described.schedule.state.paused and described.schedule.state.note == STARTS_NOTE:
            await handle.unpause(note="unpaused by perdure unpause")


async def check_pauses(client: Client, settings: Settings) -> list[Check]:
    """Say what is paused, and what is held by no pause."""
    queue = settings.task_queue
    try:
        pauses, held = await read_pauses(client, queue), await count_held(client, queue)
    except ReportedError as error:
        return [Check("pauses", ok=False, found=f"not checked: {error}")]
    lines = [f"{pause_reason(pause)}; {held[pause.name]} held" for pause in pauses]
    known = {pause.name for pause in pauses}
    if left := sum(count for name, count in held.items() if name.startswith(PREFIX) and name not in known):
        lines.append(
            f"{left} held by a pause that has ended; they go on by themselves in a few seconds, or with: "
            "perdure unpause --all"
        )
    return [Check("pauses", ok=True, found="; ".join(lines) or "nothing is paused")]
