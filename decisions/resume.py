"""How a run goes on from another one: resumed where it failed, or forked after any of its steps.

Neither repeats an effect: what has a result keeps it, and a call in flight keeps its key and its page of the ledger.
"""

from collections.abc import Sequence
from datetime import datetime

from contracts.failures import ToolFault
from contracts.journal import Journal
from contracts.run import Inheritance, RunState, RunStatus
from contracts.tool import Effect, failed
from contracts.transcript import Part, PartKind
from contracts.turn import Usage
from decisions.builtins import REFRAME
from decisions.transcript import note_part, result_part

RESUMABLE = frozenset({RunStatus.failed, RunStatus.timed_out})


def refusal(run_id: str, status: RunStatus) -> str | None:
    """Why a run is not one to resume; None if it is (B15)."""
    if status in RESUMABLE:
        return None
    if status in (RunStatus.completed, RunStatus.escalated, RunStatus.cancelled):
        fork = f"go on from one of its steps with: perdure fork {run_id} --step N"
        return f"run {run_id} has ended {status}, and only failed or timed-out runs are resumed; {fork}"
    return f"run {run_id} is {status}; it goes on by itself wherever a worker is"


def owner_of(state: RunState, step: int) -> str | None:
    """The run under whose keys a step is made, where it is not this run."""
    return next((each.run_id for each in state.inherited if step <= each.through), None)


def resumed(origin: RunState, run_id: str, now: datetime) -> RunState:
    """The origin's state at its last safe point. Calls without an outcome are made, or looked up, under its keys."""
    changes = {
        "run_id": run_id,
        "created_at": now,
        "updated_at": now,
        "status": RunStatus.running if origin.definition else RunStatus.queued,
        "question": None,
        "pending": (),
        "ending": None,
        "unusable_replies": 0,
        "approved_tools": (),
        "ignored": (),
        "inherited": (*origin.inherited, Inheritance(run_id=origin.run_id, through=origin.step)),
        "interrupted": bool(origin.definition),
    }
    return origin.model_copy(update=changes)


class NoSuchStep(ValueError):
    """The step is not in the conversation. The message says which ones are."""


def cut_after(origin: RunState, parts: Sequence[Part], step: int, say: str | None) -> tuple[Part, ...]:
    """The conversation up to `step` (0: before the first turn), and a note that tells the model of the fork.

    Later calls of the same turn are answered as not made, so that each tool use has its result. Raises NoSuchStep.
    """
    return (*_through(parts, step), note_part(_told(origin, parts, step, say)))


def forked(origin: RunState, kept: Sequence[Part], step: int, run_id: str, now: datetime) -> RunState:
    """The state that goes with what `cut_after` kept. What the origin has cost is not counted again."""
    reframes = sum(p.about.get("tool") == REFRAME and not p.content[0].get("is_error") for p in kept)
    changes = {
        "step": step,
        "turns": sum(p.kind is PartKind.reply for p in kept),
        "reframes": reframes,
        "questions": 0,
        "calls": (),
        "usage": Usage(),
        "cost_usd": 0.0,
        "artifacts": (),
        "journal": Journal(objective=origin.journal.objective),
        "last_finding": "",
        # Only for the lineage: later steps are this run's own, however they are numbered in the origin.
        "inherited": (Inheritance(run_id=origin.run_id, through=step),),
    }
    return resumed(origin, run_id, now).model_copy(update=changes)


def _through(parts: Sequence[Part], step: int) -> list[Part]:
    if step == 0:
        first = next((i for i, part in enumerate(parts) if part.kind is PartKind.reply), len(parts))
        return list(parts[:first])
    at = next((i for i, part in enumerate(parts) if part.about.get("step") == step), None)
    if at is None:
        last = max((part.about.get("step") or 0 for part in parts), default=0)
        raise NoSuchStep(f"there is no finished step {step} to fork after; the steps are 0 to {last}")
    kept = list(parts[: at + 1])
    for part in parts[at + 1 :]:
        if part.kind is not PartKind.result:
            break
        kept.append(_not_made(part) if (part.about.get("step") or 0) > step else part)
    return kept


def _not_made(part: Part) -> Part:
    outcome = failed(ToolFault.interrupted, "not made in this run, which was forked from another before this call")
    return result_part(part.content[0]["tool_use_id"], part.about["tool"], None, outcome)


def _told(origin: RunState, parts: Sequence[Part], step: int, say: str | None) -> str:
    """The model is told the truth: what its origin did afterwards is not undone."""
    effects = later_effects(origin, parts, step)
    done = (
        f" It went on from here and made: {', '.join(effects)}. That has happened, and is not undone."
        if effects
        else ""
    )
    said = f"\n\n{say}" if say else " Go on from here."
    return f"This is a fork of run {origin.run_id}, after step {step}.{done}{said}"


def later_effects(origin: RunState, parts: Sequence[Part], step: int) -> tuple[str, ...]:
    """The effects that the origin made after `step`, as "charge (step 5)"."""
    effects = {route.name for route in origin.tools if route.effect is not Effect.read}
    later = [p for p in parts if (p.about.get("step") or 0) > step and p.about.get("tool") in effects]
    return tuple(f"{p.about['tool']} (step {p.about['step']})" for p in later)
