"""The lane's next move. One turn runs at a time; the next one begins when everything for the last is done."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.conversation import LaneState, Queued, TurnNotice
from decisions.conversation.lane import CancelTurn, LaneErrand, is_lane_over


@dataclass(frozen=True)
class DeliverErrand:
    """Deliver to the running turn what has arrived for it."""

    errand: LaneErrand


@dataclass(frozen=True)
class ReportEnd:
    """Report to a mailbox how its request ended."""

    word: TurnNotice


@dataclass(frozen=True)
class RecordTurn:
    """Record the outcome of the turn that has ended."""


@dataclass(frozen=True)
class StopTurn:
    """Stop the running turn: the lane is cancelled."""

    errand: CancelTurn


@dataclass(frozen=True)
class DropAll:
    """Drop every waiting request: the lane is cancelled."""

    reason: str


@dataclass(frozen=True)
class EndExecution:
    """End this execution. The lane continues in another, unless it is over or cancelled."""


@dataclass(frozen=True)
class BeginTurn:
    """Begin the turn of the first request in the queue."""

    message: Queued


@dataclass(frozen=True)
class AwaitEvent:
    """Wait: nothing is due."""


LaneMove = DeliverErrand | ReportEnd | RecordTurn | StopTurn | DropAll | EndExecution | BeginTurn | AwaitEvent


@dataclass(frozen=True)
class LaneFacts:
    """The facts that the lane's state does not contain."""

    errand: LaneErrand | None = None  # the first errand to run
    turn_is_over: bool = False
    turn_is_told_to_stop: bool = False
    cancelled: str | None = None  # the reason, if the lane itself is cancelled
    history_is_long: bool = False
    leaves_build: bool = False  # another build is current


def errand_waits(_: LaneState, facts: LaneFacts) -> DeliverErrand | None:
    """Something has arrived for the turn."""
    return DeliverErrand(facts.errand) if facts.errand else None


def word_waits(state: LaneState, _: LaneFacts) -> ReportEnd | None:
    """A mailbox has not received the end of its request."""
    return ReportEnd(state.words[0]) if state.words else None


def turn_is_over(_: LaneState, facts: LaneFacts) -> RecordTurn | None:
    """The turn has ended."""
    return RecordTurn() if facts.turn_is_over else None


def turn_is_to_stop(state: LaneState, facts: LaneFacts) -> StopTurn | None:
    """The lane is cancelled, and its turn has not been asked to stop."""
    if facts.cancelled is None or facts.turn_is_told_to_stop or state.active is None:
        return None
    return StopTurn(CancelTurn(state.active.queued.run_id, facts.cancelled))


def queue_is_to_drop(state: LaneState, facts: LaneFacts) -> DropAll | None:
    """The lane is cancelled, nothing runs, and something waits."""
    is_left = facts.cancelled is not None and state.active is None and state.queue
    return DropAll(facts.cancelled or "") if is_left else None


def lane_moves(state: LaneState, facts: LaneFacts) -> EndExecution | None:
    """Another build is current, nothing runs, and the lane is not cancelled. The next turn begins on that build."""
    return EndExecution() if facts.leaves_build and state.active is None and facts.cancelled is None else None


def request_waits(state: LaneState, facts: LaneFacts) -> BeginTurn | None:
    """Nothing runs, something waits, and the lane is not cancelled."""
    return BeginTurn(state.queue[0]) if facts.cancelled is None and state.active is None and state.queue else None


def lane_is_done(state: LaneState, facts: LaneFacts) -> EndExecution | None:
    """If cancelled: nothing runs. If not: the history is long, or a lane that closes has nothing left to do."""
    if facts.cancelled is not None:
        # Even if the history is long: the cancel belongs to this execution, and would be lost with it.
        return EndExecution() if state.active is None else None
    return EndExecution() if facts.history_is_long or is_lane_over(state) else None


def nothing_is_due(_: LaneState, __: LaneFacts) -> AwaitEvent:
    """No other rule holds."""
    return AwaitEvent()


# Checked in this order; the first rule that holds decides.
LANE_RULES: tuple[Callable[[LaneState, LaneFacts], LaneMove | None], ...] = (
    errand_waits,
    word_waits,
    turn_is_over,
    turn_is_to_stop,
    queue_is_to_drop,
    lane_moves,
    request_waits,
    lane_is_done,
    nothing_is_due,
)


def next_lane_move(state: LaneState, facts: LaneFacts) -> LaneMove:
    """Return the lane's next move: the most urgent one that is due."""
    return next(move for rule in LANE_RULES if (move := rule(state, facts)) is not None)
