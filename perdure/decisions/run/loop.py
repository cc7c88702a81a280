"""The run's state machine: the next move, and the state after each move.

A turn is one model call and the calls that it asks for. A run thinks (`plan` first, `reflect` after), makes the calls
of the turn batch by batch, and thinks again, until there is an ending. `perdure.decisions.run.reply` applies a reply.
"""

from collections.abc import Callable
from dataclasses import dataclass

from perdure.contracts.model_settings import Pace
from perdure.contracts.run.state import Call, Ending, RunState, RunStatus
from perdure.contracts.run.turn import MAX_FUSED_READS
from perdure.decisions.run.limits import (
    budget_ending,
    is_nearly_out_of_time,
    is_out_of_time,
    spending_ending,
    time_left_ms,
    timed_out_ending,
)
from perdure.decisions.run.loop_detection import LoopCheck, check_for_loops, may_answer_loop
from perdure.decisions.run.next_calls import is_plain_read, next_batch
from perdure.decisions.run.outcome import RUBRIC, needs_acceptance
from perdure.decisions.tools import STATE_TOOLS


@dataclass(frozen=True)
class Think:
    """Call the model."""


@dataclass(frozen=True)
class Act:
    """Make these calls at the same time."""

    batch: tuple[Call, ...]


@dataclass(frozen=True)
class TakeFusedTurn:
    """Make these reads and call the model, in one activity."""

    batch: tuple[Call, ...]


@dataclass(frozen=True)
class CloseTurn:
    """Add the results to the conversation: every call has its outcome."""


@dataclass(frozen=True)
class Rotate:
    """Continue as new: the history is long, and nothing is in flight."""


@dataclass(frozen=True)
class End:
    ending: Ending


@dataclass(frozen=True)
class FinalTurn:
    """Start the final turn: the time is nearly used up."""


@dataclass(frozen=True)
class Listen:
    """Add the user's new message to the conversation before the next model call."""


@dataclass(frozen=True)
class CheckOutcome:
    """Check the outcome by the agent's `accept`."""


Move = Think | Act | TakeFusedTurn | CloseTurn | Rotate | FinalTurn | Listen | CheckOutcome | End


@dataclass(frozen=True)
class LoopFacts:
    """The facts that the rules read."""

    state: RunState
    batch: tuple[Call, ...]  # the calls to make, if there are any
    history_is_long: bool
    is_spoken_to: bool  # the user has sent something that is not in the conversation yet


def time_is_up(now: LoopFacts) -> End | None:
    """The hard limit is passed, there is no ending, and the next move takes time."""
    is_up = is_out_of_time(now.state) and not _takes_no_time(now.batch)
    return End(timed_out_ending(now.state)) if is_up else None


def reads_are_fused(now: LoopFacts) -> TakeFusedTurn | None:
    """The agent fuses reads, the turn has no other calls, and nothing is due before the next model call."""
    is_fused = _is_fused(now.state, now.batch) and not (now.history_is_long or now.is_spoken_to)
    return TakeFusedTurn(now.batch) if is_fused else None


def calls_wait(now: LoopFacts) -> Act | None:
    """A call of the turn has no outcome yet."""
    return Act(now.batch) if now.batch else None


def calls_are_made(now: LoopFacts) -> CloseTurn | None:
    """The turn has calls, and each has its outcome."""
    return CloseTurn() if now.state.calls else None


def user_has_spoken(now: LoopFacts) -> Listen | None:
    """The user has sent another message, and another turn can follow."""
    return Listen() if now.is_spoken_to and _may_go_on(now.state) else None


def outcome_is_unchecked(now: LoopFacts) -> CheckOutcome | None:
    """There is an outcome that the agent's `accept` has not accepted yet, and budget for a model that judges it."""
    can_pay = not now.state.accept.startswith(RUBRIC) or spending_ending(now.state) is None
    return CheckOutcome() if needs_acceptance(now.state) and can_pay else None


def work_is_over(now: LoopFacts) -> End | None:
    """There is an ending, or turns, tokens or money are used up."""
    ending = None if needs_acceptance(now.state) else now.state.ending
    ending = ending or budget_ending(now.state)
    return End(ending) if ending else None


def history_is_long(now: LoopFacts) -> Rotate | None:
    """The server suggests it, and the conversation holds every message sent to the run."""
    # A closing run takes no more messages, so an unread one would be carried along forever.
    return Rotate() if now.history_is_long and not now.is_spoken_to else None


def time_runs_short(now: LoopFacts) -> FinalTurn | None:
    """The soft limit is passed."""
    return FinalTurn() if is_nearly_out_of_time(now.state) else None


def nothing_else(now: LoopFacts) -> Think:  # noqa: ARG001 - as every rule
    """No other rule holds."""
    return Think()


# Checked in this order; the first rule that holds decides. docs/architecture.md has the same table.
RULES: tuple[Callable[[LoopFacts], Move | None], ...] = (
    time_is_up,
    reads_are_fused,
    calls_wait,
    calls_are_made,
    user_has_spoken,
    outcome_is_unchecked,
    work_is_over,
    history_is_long,
    time_runs_short,
    nothing_else,
)


def next_move(state: RunState, *, history_is_long: bool, is_spoken_to: bool = False) -> Move:
    """Return the run's next move. Call only when nothing is in flight."""
    now = LoopFacts(state, next_batch(state), history_is_long, is_spoken_to)
    return next(move for rule in RULES if (move := rule(now)) is not None)


def _is_fused(state: RunState, batch: tuple[Call, ...]) -> bool:
    """Return whether the batch is the whole turn, of reads that one activity can make with the next model call."""
    return (
        state.fuse_reads
        and state.pace is not Pace.batch
        and 0 < len(batch) == len(state.calls) <= MAX_FUSED_READS
        and not (state.ending or state.forced or state.is_closing or state.interrupted)
        and time_left_ms(state) > 0
        and budget_ending(state) is None
        and all(is_plain_read(state, call) for call in batch)
        and not may_answer_loop(state, batch)
    )


def _may_go_on(state: RunState) -> bool:
    """Return whether another turn can follow. An outcome is kept if the budget allows no further turn."""
    ending = state.ending
    return (
        not state.is_closing
        and budget_ending(state) is None
        and (ending is None or ending.status is RunStatus.completed)
    )


def _takes_no_time(batch: tuple[Call, ...]) -> bool:
    """Return whether the workflow settles these calls itself. The hard limit does not refuse such an outcome."""
    return bool(batch) and all(call.tool in STATE_TOOLS for call in batch)


def reopen_run(state: RunState) -> RunState:
    """Remove the ending: a message arrived after the outcome was given."""
    return state.evolve(ending=None)


LAST_TURN = (
    "The time for this run is used up. This is its last turn, and no tool can be called in it. Say what has been done, "
    "where the results are, and what is left to do."
)


LAST_TYPED_TURN = (
    "The time for this run is used up. This is its last turn: call `finish`, with the best result that the work so far "
    "allows. No other tool can be called."
)


def final_turn_note(state: RunState) -> str:
    return LAST_TYPED_TURN if state.is_typed else LAST_TURN


def start_final_turn(state: RunState) -> RunState:
    """Make the next turn the last one (B6)."""
    return state.evolve(is_closing=True, forced=None)


def settle_turn(state: RunState) -> LoopCheck:
    """Move the turn's calls into the conversation, and look for loops."""
    return check_for_loops(state.evolve(calls=(), forced=None), state.calls)
