"""`[pause]` in perdure.toml, and what a worker keeps of it."""

from datetime import timedelta
from typing import Any

from perdure.activities.project import Project
from perdure.contracts.models import Duration, StrictModel
from perdure.settings.tables import Table


class PauseSettings(StrictModel):
    most: Duration = timedelta(days=7)
    """The longest pause."""


PAUSE = Table("pause", PauseSettings, PauseSettings())


def read_limit(settings: Any, _client: object) -> timedelta:
    """Return the feature's part of a worker's project."""
    return PAUSE.of(settings.file).most


def limit_of(project: Project) -> timedelta:
    limit: timedelta = project.parts["pause"]
    return limit
