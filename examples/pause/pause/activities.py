"""`limit_pause`: how long a pause may be here. A run cannot read settings: another worker may have others later."""

from typing import Self

from temporalio import activity

from pause.settings import limit_of
from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project


class PauseLimits:
    def __init__(self, project: Project) -> None:
        self._project = project  # which has no part of ours in a replay, where nothing is called

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.project)

    @activity.defn
    async def limit_pause(self, seconds: float) -> float:
        """Return the shorter of the two, in seconds."""
        most: float = limit_of(self._project).total_seconds()
        return min(seconds, most)
