"""Loop detection: a run's latest calls, and loops found in them (B3)."""

from enum import StrEnum

from perdure.contracts.models import FrozenModel


class Tier(StrEnum):
    identical = "identical"  # one tool, the same arguments
    pattern = "pattern"  # one tool, differing arguments


class Rung(StrEnum):
    """The responses to a loop, in order."""

    nudge = "nudge"
    directive = "directive"  # with a forced tool
    ask = "ask"  # a person


class RecentCall(FrozenModel):
    """A call as the detector sees it: digests of its arguments and result.

    `result` is None if the call failed or returned nothing.
    """

    tool: str
    arguments: str
    result: str | None
    is_new: bool  # it returned or changed something new
    pollable: bool = False


class Thrash(FrozenModel):
    """A detected loop: `count` of the last calls are alike. `is_barren`: they returned nothing new."""

    tier: Tier
    tool: str
    count: int
    is_barren: bool
