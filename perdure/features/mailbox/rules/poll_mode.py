"""The poll mode of a bridge: running, idle after some empty cycles, dormant after a longer time without work (C6).

A bridge beside another one of the same folder is on standby.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.contracts.models import FrozenModel


class PollMode(StrEnum):
    running = "RUNNING"
    idle = "IDLE"
    dormant = "DORMANT"  # does not poll until a file wakes it
    standby = "STANDBY"  # another bridge serves the folder


@dataclass(frozen=True)
class PollPolicy:
    """The limits of a mode: a number of empty cycles, and the time since the last work (`None`: never dormant)."""

    idle_after: int = 3
    dormant_after: timedelta | None = timedelta(minutes=5)


class PollState(FrozenModel):
    """The mode of a bridge, with its `empty` cycles in a row and the time of its last work in `since`."""

    mode: PollMode = PollMode.running
    empty: int = 0
    since: datetime


def wake(state: PollState, now: datetime) -> PollState:
    """Return the state after a wake-up: the bridge scans the folder before it changes mode."""
    return PollState(mode=PollMode.idle if state.mode is PollMode.dormant else state.mode, since=now)


def after_cycle(
    state: PollState, *, has_worked: bool, must_scan: bool, now: datetime, patience: PollPolicy
) -> PollState:
    """Return the state after a cycle. `must_scan` prevents dormancy: no event reports a change of the open work."""
    if has_worked:
        return PollState(since=now)
    empty = state.empty + 1
    is_idle = empty >= patience.idle_after
    is_over = patience.dormant_after is not None and now - state.since >= patience.dormant_after
    if is_idle and is_over and not must_scan:
        return PollState(mode=PollMode.dormant, empty=empty, since=state.since)
    mode = PollMode.idle if is_idle or state.mode is not PollMode.running else PollMode.running
    return PollState(mode=mode, empty=empty, since=state.since)
