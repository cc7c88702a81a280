"""The run's state machine: what to do next, and what each move makes of the state.

A turn is one model call and the calls it asked for. A run thinks (`plan` first, `reflect` after), makes the calls
of the turn batch by batch, and thinks again, until there is an ending. What a reply makes of it: `decisions.run.reply`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.delegation import Spent
from contracts.run.compaction import Summary
from contracts.run.state import Call, Ending, RunState, RunStatus
from decisions.builtin_tools import CONTROL, JOURNAL
from decisions.run.calls import next_batch
from decisions.run.limits import is_nearly_out_of_time, is_out_of_time, timed_out, used_up
from decisions.run.loop_detection import Looked, looked


@dataclass(frozen=True)
class Think:
    """Call the model."""


@dataclass(frozen=True)
class Act:
    """Make these calls at the same time."""

    batch: tuple[Call, ...]


@dataclass(frozen=True)
class CloseTurn:
    """Every call has its outcome: hand the results to the conversation."""


@dataclass(frozen=True)
class Rotate:
    """Continue as new: the history is long, and nothing is in flight."""


@dataclass(frozen=True)
class End:
    ending: Ending


@dataclass(frozen=True)
class Wind:
    """The time is nearly used up: the next turn is the last one, and says what there is."""


@dataclass(frozen=True)
class Listen:
    """Its user has said something more, which joins the conversation before the next model call."""


Move = Think | Act | CloseTurn | Rotate | Wind | Listen | End


@dataclass(frozen=True)
class Now:
    """What the rules look at."""

    state: RunState
    batch: tuple[Call, ...]  # the calls to make, if there are any
    history_is_long: bool
    is_spoken_to: bool  # its user has said something that is not in the conversation yet


def time_is_up(now: Now) -> End | None:
    """The hard limit is passed, there is no ending, and what comes next takes time."""
    is_up = is_out_of_time(now.state) and not _takes_no_time(now.batch)
    return End(timed_out(now.state)) if is_up else None


def calls_wait(now: Now) -> Act | None:
    """A call of the turn has no outcome yet."""
    return Act(now.batch) if now.batch else None


def calls_are_made(now: Now) -> CloseTurn | None:
    """The turn has calls, and each has its outcome."""
    return CloseTurn() if now.state.calls else None


def user_has_spoken(now: Now) -> Listen | None:
    """Its user has said something more, and another turn can follow."""
    return Listen() if now.is_spoken_to and _may_go_on(now.state) else None


def work_is_over(now: Now) -> End | None:
    """There is an ending, or turns, tokens or money are used up."""
    ending = now.state.ending or used_up(now.state)
    return End(ending) if ending else None


def history_is_long(now: Now) -> Rotate | None:
    """The server says so, and all that was said to the run is in its conversation."""
    # A run that is closing hears no more, so what it was told would go along without end.
    return Rotate() if now.history_is_long and not now.is_spoken_to else None


def time_runs_short(now: Now) -> Wind | None:
    """The soft limit is passed."""
    return Wind() if is_nearly_out_of_time(now.state) else None


def nothing_else(now: Now) -> Think:  # noqa: ARG001 - as every rule
    """None of the above."""
    return Think()


# In this order: the first that holds says what is done. docs/architecture.md shows them as a table.
RULES: tuple[Callable[[Now], Move | None], ...] = (
    time_is_up,
    calls_wait,
    calls_are_made,
    user_has_spoken,
    work_is_over,
    history_is_long,
    time_runs_short,
    nothing_else,
)


def next_move(state: RunState, *, history_is_long: bool, is_spoken_to: bool = False) -> Move:
    """What the run does next. Nothing is in flight when this is asked."""
    now = Now(state, next_batch(state), history_is_long, is_spoken_to)
    return next(move for rule in RULES if (move := rule(now)) is not None)


def _may_go_on(state: RunState) -> bool:
    """Whether another turn can follow: an outcome is not risked for one that no budget is left for."""
    ending = state.ending
    return not state.is_closing and used_up(state) is None and (ending is None or ending.status is RunStatus.completed)


def _takes_no_time(batch: tuple[Call, ...]) -> bool:
    """What is settled inside the workflow: an outcome that is there already is not refused for the time it took."""
    return bool(batch) and all(call.tool in (*CONTROL, *JOURNAL) for call in batch)


def reopened(state: RunState) -> RunState:
    """There is more to do than was known when the outcome was given."""
    return state.model_copy(update={"ending": None})


LAST_TURN = (
    "The time for this run is used up. This is its last turn, and no tool can be called in it. Say what has been done, "
    "where the results are, and what is left to do."
)


def wound_up(state: RunState) -> RunState:
    """From here on there is one turn more (B6)."""
    return state.model_copy(update={"is_closing": True, "forced": None})


def delegated(state: RunState, spent: Spent) -> RunState:
    """What a delegation has used is settled onto the run that made it."""
    return state.model_copy(update={"delegated": state.delegated + spent})


def closed_turn(state: RunState) -> Looked:
    """The turn's calls have their outcomes, which go into the conversation now. Does the run go in circles?"""
    return looked(state.model_copy(update={"calls": (), "forced": None}), state.calls)


def summarised(state: RunState, summary: Summary) -> RunState:
    """What a summary has cost."""
    cost = None if state.cost_usd is None or summary.cost_usd is None else state.cost_usd + summary.cost_usd
    changes = {
        "usage": state.usage + summary.usage,
        "cost_usd": cost,
        "active_ms": state.active_ms + summary.duration_ms,
    }
    return state.model_copy(update=changes)
