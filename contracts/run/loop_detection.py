"""A run that goes in circles: its latest calls, and what was seen in them (B3)."""

from enum import StrEnum

from contracts.models import Value


class Tier(StrEnum):
    identical = "identical"  # one tool, the same arguments
    pattern = "pattern"  # one tool, differing arguments


class Rung(StrEnum):
    """What is done about it, one after the other."""

    nudge = "nudge"
    directive = "directive"  # with a forced tool
    ask = "ask"  # a person


class Made(Value):
    """A call that was made, as far as the detector looks: digests of its arguments and of what it brought.

    `result` is None where the call failed or brought nothing.
    """

    tool: str
    arguments: str
    result: str | None
    is_new: bool  # it brought, or changed, something that the calls before it had not
    pollable: bool = False


class Thrash(Value):
    """Literally seen: `count` of the last calls are alike. `is_barren` says that they brought nothing new."""

    tier: Tier
    tool: str
    count: int
    is_barren: bool
