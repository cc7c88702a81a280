"""The messages to the workflow `Places`, and its state.

The key of a place is `agent:NAME`, `agent:NAME/OWNER` or `tool:NAME`.
"""

from pydantic import Field

from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.tool import Holdable


class Seat(FrozenModel):
    """The holder of a place, or one that waits: a run, or an activity of it that makes a call.

    `execution` and `paused` name the activity that waits, paused on the server.
    """

    workflow_id: str
    activity_id: str = omit_default("")
    execution: str = omit_default("")
    paused: str = omit_default("")


class TakePlace(FrozenModel):
    """The body of the update `take`: one of `most` places for `holder`. One that `waits` is woken in its turn."""

    key: str
    holder: str
    most: int = Field(ge=1)
    seat: Seat
    waits: bool = omit_default(default=True)


class LeavePlace(FrozenModel):
    """The body of the signal `leave`."""

    key: str
    holder: str


class PlaceAnswer(FrozenModel):
    """The answer of `take`: whether the holder has a place, and how many are taken."""

    is_granted: bool
    taken: int


class PlacesState(FrozenModel):
    """The state of `Places`: by key, the most places, and who has one or waits, in order."""

    most: dict[str, int] = omit_default({})
    held: dict[str, dict[str, Seat]] = omit_default({})
    waiting: dict[str, dict[str, Seat]] = omit_default({})


class PlaceRequest(FrozenModel):
    """The input of the activity `take_place`: the key of the run's place."""

    key: str
    most: int


class PlaceTaken(Holdable):
    """The result of `take_place`."""


class Seats(FrozenModel):
    """The input of `wake_waiting` and `find_gone`: holders with their seats."""

    seats: dict[str, Seat]
