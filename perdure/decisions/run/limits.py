"""The limits in force: run over agent over file over default. Each layer may raise or lower a limit."""

from collections.abc import Mapping
from datetime import timedelta
from functools import reduce
from math import ceil
from typing import Any

from perdure.contracts.failures import Escalation, RunFailure
from perdure.contracts.run.limits import LimitOverrides, Limits, Share, Spent
from perdure.contracts.run.state import Ending, RunState, RunStatus

SPARE_TURNS = 80  # for hints, plans and answers, besides one for each step
SOFT_PART = 0.75  # of the hard limit: the time until the last turn
DEFAULTS = Limits.model_construct(max_steps=20, max_turns=100, max_reframes=2, turn_timeout=timedelta(seconds=120))


def merge_limits(*overrides: LimitOverrides) -> Limits:
    """Merge limits; the nearest layer is first."""
    requested: dict[str, Any] = {}
    for layer in reversed(overrides):
        requested |= values_set_in(layer)
    return apply_requested(DEFAULTS, requested)


def values_set_in(overrides: LimitOverrides) -> dict[str, Any]:
    """Return the limits that are set, as JSON values: other versions must be able to read what a run carries."""
    return overrides.model_dump(mode="json", exclude_none=True)


def apply_requested(limits: Limits, requested: Mapping[str, Any]) -> Limits:
    """Apply the requested limits. Unknown ones are ignored.

    One that is set alone moves the other of its pair, unless that is set, too: else it could have no effect.
    """
    applied = Limits.model_validate({**limits.model_dump(mode="json"), **requested})
    moved: dict[str, Any] = {}
    if "max_steps" in requested and "max_turns" not in requested and limits.max_turns == _turns_for(limits.max_steps):
        moved["max_turns"] = _turns_for(applied.max_steps)
    if limits.soft_limit == limits.hard_limit * SOFT_PART:
        if "hard_limit" in requested and "soft_limit" not in requested:
            moved["soft_limit"] = applied.hard_limit * SOFT_PART
        elif "soft_limit" in requested and "hard_limit" not in requested:
            moved["hard_limit"] = max(applied.hard_limit, applied.soft_limit / SOFT_PART)
    return applied.evolve(**moved) if moved else applied


def _turns_for(steps: int) -> int:
    """Return the turns that suffice for so many steps, of one call each, and for what needs none."""
    return max(DEFAULTS.max_turns, steps + SPARE_TURNS)


def format_idle(limits: Limits) -> tuple[str, ...]:
    """Report each limit that another one makes idle, a line each."""
    lines = []
    if limits.max_turns < limits.max_steps:
        lines.append(f"max_steps {limits.max_steps} needs several calls a turn: max_turns is {limits.max_turns}")
    if limits.soft_limit >= limits.hard_limit:
        lines.append(f"soft_limit {limits.soft_limit} has no effect: hard_limit is {limits.hard_limit}")
    return tuple(lines)


def longest_turn(limits: Limits) -> timedelta:
    """Return the longest duration of a model turn: at least its silence limit."""
    return max(limits.turn_limit, limits.turn_timeout)


def limit_to_share(limits: Limits, share: Share) -> Limits:
    """Return a subtask's limits, bounded by its share of the tree's budget."""
    return limits.evolve(
        max_steps=min(limits.max_steps, share.steps),
        budget_tokens=min((n for n in (limits.budget_tokens, share.tokens) if n is not None), default=None),
        budget_usd=min((n for n in (limits.budget_usd, share.usd) if n is not None), default=None),
        max_follow_ups=min(n for n in (limits.max_follow_ups, share.follow_ups) if n is not None),
    )


def limits_in_force(state: RunState, limits: Limits) -> Limits:
    """Return the limits of a run. `limits` are those of agent, file and default.

    What the run itself sets, its share and the project's ceiling are applied to them.
    """
    limits = apply_requested(limits, state.requested)
    shares = (state.assignment.share if state.assignment else None, state.share)
    return apply_ceiling(reduce(limit_to_share, filter(None, shares), limits), state.ceiling)


def apply_ceiling(limits: Limits, ceiling: Mapping[str, Any]) -> Limits:
    """Bound limits by the project's ceiling. A budget that is not set becomes the ceiling's."""
    excess = _find_excess(limits, ceiling)
    return limits.evolve(**excess) if excess else limits


def format_excess(limits: Limits, ceiling: Mapping[str, Any]) -> tuple[str, ...]:
    """Report each limit that is above the project's ceiling, a line each."""
    return tuple(
        f"{name} {getattr(limits, name)} is above the project's ceiling of {highest}"
        for name, highest in _find_excess(limits, ceiling).items()
        if getattr(limits, name) is not None and (name in ceiling or name != "soft_limit")
    )


def _find_excess(limits: Limits, ceiling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ceiling of each limit that is above it.

    Silence is part of a turn, so `turn_limit` bounds it too; the soft limit comes before the hard one.
    """
    known = apply_requested(limits, ceiling)
    highest = {name: getattr(known, name) for name in Limits.model_fields if name in ceiling}
    if "turn_limit" in highest:
        highest["turn_timeout"] = min(known.turn_timeout, known.turn_limit)
    if "hard_limit" in highest and "soft_limit" not in highest:
        highest["soft_limit"] = known.hard_limit * SOFT_PART  # else a run has no last turn
    current = dict(limits)
    return {name: bound for name, bound in highest.items() if current[name] is None or current[name] > bound}


def total_spent(state: RunState) -> Spent:
    """Return what counts against the run's budgets: its own use, and all that it delegated."""
    own = Spent(steps=state.step, tokens=state.usage.total, usd=state.cost_usd, follow_ups=state.follow_ups)
    return own + state.delegated


def is_out_of_steps(state: RunState, step: int) -> bool:
    """Return whether no step is left after `step`."""
    return step + state.delegated.steps >= state.limits.max_steps


def is_out_of_time(state: RunState) -> bool:
    return state.ending is None and _is_past(state, state.limits.hard_limit)


def is_nearly_out_of_time(state: RunState) -> bool:
    """Return whether the soft limit is passed and the final turn has not started."""
    return not state.is_closing and _is_past(state, state.limits.soft_limit)


def _is_past(state: RunState, limit: timedelta) -> bool:
    """Return whether the run's active time is past `limit`. Only activities count, not waiting (B6)."""
    return state.active_ms >= limit / timedelta(milliseconds=1)


def time_left_ms(state: RunState) -> int:
    """Return the active time until the soft or the hard limit is passed."""
    return ceil(min(state.limits.soft_limit, state.limits.hard_limit) / timedelta(milliseconds=1)) - state.active_ms


def timed_out_ending(state: RunState) -> Ending:
    text = f"{state.active_ms / 1000:.0f} s of active time are used, and {state.limits.hard_limit} was the limit"
    return Ending(status=RunStatus.timed_out, text=text, reason=RunFailure.hard_limit)


def budget_ending(state: RunState) -> Ending | None:
    """Return the ending if turns, tokens or money are used up.

    Checked before each model call, so a run overshoots by one call at most. A subtask stops before the call that would
    exceed the budget. Parallel subtasks can each overshoot by one call.
    """
    if state.turns >= state.limits.max_turns:
        return escalation_ending(Escalation.turn_budget, f"all {state.limits.max_turns} turns are used up")
    return spending_ending(state)


def spending_ending(state: RunState) -> Ending | None:
    """Return the ending if tokens or money are used up. Tokens without a known price do not count as money."""
    limits, used = state.limits, total_spent(state)
    if limits.budget_tokens is not None and used.tokens + state.last_call >= limits.budget_tokens:
        detail = f"{used.tokens:,} tokens are used, and the budget was {limits.budget_tokens:,}"
        return escalation_ending(Escalation.token_budget, detail)
    own = state.known_usd if state.cost_usd is None else state.cost_usd
    usd = own + (state.delegated.usd or 0.0)
    if limits.budget_usd is not None and usd >= limits.budget_usd:
        detail = f"USD {usd:.4f} are spent, and the budget was {limits.budget_usd:g}"
        return escalation_ending(Escalation.money_budget, detail)
    return None


def budgets_left(state: RunState) -> dict[str, Any]:
    """Return the tokens and the USD that the next turn may use, if there is a budget of them."""
    limits, used = state.limits, total_spent(state)
    left: dict[str, Any] = {}
    if limits.budget_tokens is not None:
        left["tokens_left"] = limits.budget_tokens - used.tokens
    if limits.budget_usd is not None and used.usd is not None:
        left["usd_left"] = limits.budget_usd - used.usd
    return left


def escalation_ending(reason: Escalation, detail: str) -> Ending:
    return Ending(status=RunStatus.escalated, text=detail, reason=reason)
