"""How awake a bridge is: at work, idle after some empty cycles, dormant after a while of nothing (C6)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from contracts.models import Value


class Mode(StrEnum):
    running = "RUNNING"
    idle = "IDLE"
    dormant = "DORMANT"  # nothing is looked at until a file wakes it


@dataclass(frozen=True)
class Patience:
    """`idle_after` empty cycles a bridge is idle, `dormant_after` the last work dormant; None: never."""

    idle_after: int = 3
    dormant_after: timedelta | None = timedelta(minutes=5)


class Pace(Value):
    """`empty` cycles in a row, the last of them since nothing has happened `since`."""

    mode: Mode = Mode.running
    empty: int = 0
    since: datetime


def woken(pace: Pace, now: datetime) -> Pace:
    """Something has come, or may have: it is looked at before anything is decided."""
    return Pace(mode=Mode.idle if pace.mode is Mode.dormant else pace.mode, since=now)


def after_cycle(pace: Pace, *, has_worked: bool, must_look: bool, now: datetime, patience: Patience) -> Pace:
    """`must_look`: something is in hand that no event tells of, so there is no falling asleep over it."""
    if has_worked:
        return Pace(since=now)
    empty = pace.empty + 1
    is_idle = empty >= patience.idle_after
    is_over = patience.dormant_after is not None and now - pace.since >= patience.dormant_after
    if is_idle and is_over and not must_look:
        return Pace(mode=Mode.dormant, empty=empty, since=pace.since)
    mode = Mode.idle if is_idle or pace.mode is not Mode.running else Mode.running
    return Pace(mode=mode, empty=empty, since=pace.since)
