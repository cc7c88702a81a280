"""The schema of `pause`, and its arguments. Pure: a run may read them again at any time."""

from perdure.contracts.models import Duration, StrictModel
from perdure.decisions.tools import tool_schema

PAUSE_SCHEMA = tool_schema(
    "pause", "Wait, and go on afterwards.", {"duration": 'Such as "30m", "8h" or "3d".', "reason": ""}, "duration"
)


class PauseArguments(StrictModel):
    """The arguments of `pause`."""

    duration: Duration
    reason: str = ""
