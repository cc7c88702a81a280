"""`[ag_ui]`: the door for front ends of AG-UI."""

from collections.abc import Mapping

from pydantic import Field

from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.contracts.models import StrictModel
from perdure.settings import Settings
from perdure.settings.tables import Table


class AgUiSettings(StrictModel):
    """The door for [front ends of AG-UI](../ag-ui.md), with `use = ["ag_ui"]` in `[features]`."""

    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The agent of the threads; by default `default`."""


AG_UI = Table("ag_ui", AgUiSettings, AgUiSettings())


def read_ag_ui(settings: Settings, _: Mapping[str, str]) -> AgUiSettings:
    """Return the door's settings. Raises ProjectError."""
    door = AG_UI.of(settings.file)
    settings.check_reference(door.agent, settings.at("ag_ui"))
    return door
