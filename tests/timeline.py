"""The activities of a run as its history has them, local ones too."""

import json
from typing import Any

from temporalio.api.history.v1 import HistoryEvent


def activity_in(event: HistoryEvent) -> str:
    """The activity that the event schedules, or that was made locally; empty for other events."""
    if event.HasField("activity_task_scheduled_event_attributes"):
        return event.activity_task_scheduled_event_attributes.activity_type.name
    marker = event.marker_recorded_event_attributes
    if marker.marker_name == "core_local_activity" and not marker.HasField("failure"):
        return str(json.loads(marker.details["data"].payloads[0].data)["activity_type"])
    return ""


async def timeline(run: Any) -> list[str]:
    """Their names in the order in which they were begun; of local ones, those that came to their end."""
    return [name async for event in run.fetch_history_events() if (name := activity_in(event))]
