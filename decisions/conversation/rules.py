"""What a lane does next. One turn at a time, and before the next one begins, whatever came for the last is done."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.conversation import LaneState, Queued, Word
from decisions.conversation.lane import Cancel, Errand, is_over


@dataclass(frozen=True)
class Bring:
    """Bring the turn that runs what has come for it."""

    errand: Errand


@dataclass(frozen=True)
class Tell:
    """Tell a mailbox how its request ended."""

    word: Word


@dataclass(frozen=True)
class CloseTurn:
    """The turn has ended: keep what it said."""


@dataclass(frozen=True)
class StopTurn:
    """The lane is cancelled: its turn has to end first."""

    errand: Cancel


@dataclass(frozen=True)
class DropAll:
    """The lane is cancelled: what waits will not run."""

    reason: str


@dataclass(frozen=True)
class Leave:
    """End this execution. The lane goes on in another, unless it is over or cancelled."""


@dataclass(frozen=True)
class Begin:
    """The first request of the queue becomes the turn that runs."""

    message: Queued


@dataclass(frozen=True)
class Wait:
    """Nothing is due before something comes."""


Move = Bring | Tell | CloseTurn | StopTurn | DropAll | Leave | Begin | Wait


@dataclass(frozen=True)
class Facts:
    """What a lane's state does not say."""

    errand: Errand | None = None  # the first of those that are to be run
    turn_is_over: bool = False
    turn_is_told_to_stop: bool = False
    cancelled: str | None = None  # why, where the lane itself is
    history_is_long: bool = False


def errand_waits(_: LaneState, facts: Facts) -> Bring | None:
    """Something has come for the turn."""
    return Bring(facts.errand) if facts.errand else None


def word_waits(state: LaneState, _: Facts) -> Tell | None:
    """A mailbox has not heard yet how its request ended."""
    return Tell(state.words[0]) if state.words else None


def turn_is_over(_: LaneState, facts: Facts) -> CloseTurn | None:
    """The turn has ended."""
    return CloseTurn() if facts.turn_is_over else None


def turn_is_to_stop(state: LaneState, facts: Facts) -> StopTurn | None:
    """The lane is cancelled, and its turn has not been told."""
    if facts.cancelled is None or facts.turn_is_told_to_stop or state.active is None:
        return None
    return StopTurn(Cancel(state.active.queued.run_id, facts.cancelled))


def queue_is_to_go(state: LaneState, facts: Facts) -> DropAll | None:
    """The lane is cancelled, nothing runs, and something waits."""
    is_left = facts.cancelled is not None and state.active is None and state.queue
    return DropAll(facts.cancelled or "") if is_left else None


def request_waits(state: LaneState, facts: Facts) -> Begin | None:
    """Nothing runs, something waits, and the lane is not cancelled: its sender is told that it runs now."""
    return Begin(state.queue[0]) if facts.cancelled is None and state.active is None and state.queue else None


def lane_is_done(state: LaneState, facts: Facts) -> Leave | None:
    """Cancelled: nothing is left. Otherwise the history is long, or nothing is left in a lane that closes."""
    if facts.cancelled is not None:
        # However long its history is: the cancel belongs to this execution, and would be lost with it.
        return Leave() if state.active is None else None
    return Leave() if facts.history_is_long or is_over(state) else None


def nothing_is_due(_: LaneState, __: Facts) -> Wait:
    """None of the above."""
    return Wait()


# In this order: the first that holds says what is done.
RULES: tuple[Callable[[LaneState, Facts], Move | None], ...] = (
    errand_waits,
    word_waits,
    turn_is_over,
    turn_is_to_stop,
    queue_is_to_go,
    request_waits,
    lane_is_done,
    nothing_is_due,
)


def next_move(state: LaneState, facts: Facts) -> Move:
    """What the lane does next, the most urgent of what is due."""
    return next(move for rule in RULES if (move := rule(state, facts)) is not None)
