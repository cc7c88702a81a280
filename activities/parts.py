"""The parts that a worker's activities share, and the activities of an object."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.model.turn import Turns
from perdure.activities.project import Project
from perdure.activities.providers.port import Model
from perdure.activities.tools.call import ToolCalls

DEFINITION = "__temporal_activity_definition"  # what the SDK's decorator sets


@dataclass(frozen=True)
class WorkerParts:
    """The parts from which a worker's activities are built."""

    client: Client
    project: Project
    task_queue: str
    model: Model
    transcripts: TranscriptCache
    turns: Turns
    calls: ToolCalls
    grace: timedelta
    """The time for active calls to end after SIGTERM."""


def activities_of(owner: object) -> list[Callable[..., Any]]:
    """Return the methods of an object that are activities."""
    kind = type(owner)
    return [getattr(owner, name) for name in dir(kind) if hasattr(getattr(kind, name), DEFINITION)]
