"""`[web_ui]`: the door for front ends of the AI SDK."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.contracts.models import StrictModel
from perdure.settings import Settings
from perdure.settings.tables import Table


class WebUiSettings(StrictModel):
    """The door for [front ends of the AI SDK](../web-front-ends.md), with `use = ["web_ui"]` in `[features]`."""

    version: Literal[6, 7] = 6
    """The major version of `ai` in the pages. 7 takes back the text of a model call that is made again, and hears of
    approvals that were given elsewhere; 6 refuses such parts."""
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    """The agent of the chats; by default `default`."""


WEB_UI = Table("web_ui", WebUiSettings, WebUiSettings())


def read_web_ui(settings: Settings, _: Mapping[str, str]) -> WebUiSettings:
    """Return the door's settings. Raises ProjectError."""
    door = WEB_UI.of(settings.file)
    settings.check_reference(door.agent, settings.at("web_ui"))
    return door
