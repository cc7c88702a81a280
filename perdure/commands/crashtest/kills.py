"""The kills for a history: the moments just before and just after each of its events."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Literal

from contracts.models import FrozenModel

Event = Mapping[str, Any]

# The server writes these together with the event before them.
_JOINED = {
    "workflow_task_scheduled",
    "activity_task_scheduled",
    "activity_task_cancel_requested",
    "timer_started",
    "timer_canceled",
    "marker_recorded",
    "upsert_workflow_search_attributes",
    "workflow_properties_modified",
    "start_child_workflow_execution_initiated",
    "signal_external_workflow_execution_initiated",
    "request_cancel_external_workflow_execution_initiated",
    "workflow_execution_update_accepted",
    "workflow_execution_update_completed",
    "workflow_execution_completed",
    "workflow_execution_failed",
    "workflow_execution_canceled",
    "workflow_execution_continued_as_new",
}
_ACTIVITY_ENDS = {f"activity_task_{end}" for end in ("completed", "failed", "timed_out", "canceled")}


class Target(StrEnum):
    """The process that is killed."""

    worker = "worker"
    server = "server"


class KillMoment(FrozenModel):
    """A moment of a play. `at` is the id of an event, or of an activity for `begin` and `end`.

    It is in the history of the run, or of a `subtask` (`tree.RunTree`).

    `event`: history has the event. `task`: the workflow task that leads to the event has its commands, and the server
    does not. `begin`: a worker has the activity and has done nothing. `end`: the activity is done, and the server does
    not know it.
    """

    kind: Literal["event", "task", "begin", "end"]
    at: int
    subtask: str = ""


class KillPoint(FrozenModel):
    """One kill. The moments of several events can be one kill: a server writes them together."""

    target: Target
    moment: KillMoment

    @property
    def name(self) -> str:
        of = f"-of-{self.moment.subtask}" if self.moment.subtask else ""
        return f"{self.target}-{self.moment.kind}-{self.moment.at}{of}"


class EventRow(FrozenModel):
    """An event of the whole play, with the kills before and after it."""

    event: int
    type: str
    label: str = ""
    subtask: str = ""
    before: KillPoint | None = None
    after: KillPoint | None = None
    server: KillPoint | None = None


def plan_kills(events: Sequence[Event], subtask: str = "") -> list[EventRow]:
    """Return a row for each event of a run in a whole play, with the kills just before and just after it."""
    moment = partial(KillMoment, subtask=subtask)
    last = _last_of_batches(events)
    first = {end: min(event for event in last if last[event] == end) for end in last.values()}
    types = {event["id"]: event["type"] for event in events}
    scheduled = {event["id"]: event for event in events if event["type"] == "activity_task_scheduled"}
    rows = []
    for event in events:
        number, kind = event["id"], event["type"]
        opening = first[last[number]]
        seen = moment(kind="event", at=last[number])
        before = moment(kind="event", at=opening - 1) if opening > 1 else None
        if types[opening] == "workflow_task_completed":
            before = moment(kind="task", at=opening)
        activity = scheduled.get(event.get("scheduled_event_id", 0))
        if activity is not None and kind == "activity_task_started":
            before = moment(kind="event", at=last[activity["id"]])
            seen = moment(kind="begin", at=int(activity["activity_id"]))
        elif activity is not None and kind in _ACTIVITY_ENDS:
            before = moment(kind="end", at=int(activity["activity_id"]))
        row = EventRow(
            event=number,
            type=kind,
            label=(activity or event).get("summary", ""),
            subtask=subtask,
            before=before and KillPoint(target=Target.worker, moment=before),
            after=KillPoint(target=Target.worker, moment=seen),
            server=KillPoint(target=Target.server, moment=seen) if seen.kind == "event" else None,
        )
        rows.append(row)
    return rows


def _last_of_batches(events: Sequence[Event]) -> dict[int, int]:
    """Return for each event the last one that the server wrote together with it."""
    last: dict[int, int] = {}
    end = 0
    for event in reversed(events):
        end = end or event["id"]
        last[event["id"]] = end
        if event["type"] not in _JOINED:
            end = 0
    return last


def kill_points(rows: Iterable[EventRow], targets: Iterable[Target]) -> list[KillPoint]:
    """Return each kill of these targets once, in the order of the events."""
    points = (point for row in rows for point in (row.before, row.after, row.server))
    allowed = set(targets)
    return list(dict.fromkeys(point for point in points if point is not None and point.target in allowed))
