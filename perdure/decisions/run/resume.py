"""A run that continues another one: resumed where it failed, or forked after one of its steps.

Neither repeats an effect: a call with a result keeps it, and a call in flight keeps its key and its ledger entry.
"""

from collections.abc import Sequence
from datetime import datetime

from perdure.contracts.bounds import LatestNotices
from perdure.contracts.failures import ToolFault
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.limits import Spent
from perdure.contracts.run.state import Call, Inheritance, OutsideResults, RecentCalls, RunState, RunStatus
from perdure.contracts.run.transcript import Part, PartKind
from perdure.contracts.run.turn import Recoveries, Usage
from perdure.contracts.tool import Effect, error_outcome
from perdure.decisions.people.terms import work_of
from perdure.decisions.run.compaction import latest_goal
from perdure.decisions.run.journal import digest_journal, fill_journal, is_written, rebuild_journal, render_journal
from perdure.decisions.run.next_calls import needs_approval
from perdure.decisions.run.transcript import call_part, journal_part, note_part, result_part
from perdure.decisions.tools import DELEGATE, REFRAME

_NOT_MADE = frozenset(
    {
        ToolFault.denied,
        ToolFault.invalid_arguments,
        ToolFault.unknown_tool,
        ToolFault.broken_json,
        ToolFault.budget,
        ToolFault.interrupted,
        ToolFault.unknown_agent,
        ToolFault.too_many,
        ToolFault.too_deep,
    }
)
RESUMABLE = frozenset({RunStatus.failed, RunStatus.timed_out})


def resume_rejection(run_id: str, status: RunStatus) -> str | None:
    """Return the reason why a run cannot be resumed, if any (B15)."""
    if status in RESUMABLE:
        return None
    if status in (RunStatus.completed, RunStatus.escalated, RunStatus.cancelled):
        fork = f"to continue from one of its steps, use: perdure fork {run_id} --step N"
        return f"run {run_id} has ended {status}; only failed or timed-out runs can be resumed; {fork}"
    return f"run {run_id} is {status}; it continues by itself as soon as a worker runs"


def origin_of(state: RunState, step: int) -> Inheritance | None:
    """Return the other run under whose keys a step is made, if any."""
    return next((run for run in state.inherited if step <= run.through), None)


def step_key_id(state: RunState, step: int) -> str:
    """Return the id that the keys of a step are derived from: the origin's if the step was first made there."""
    maker = origin_of(state, step) or state
    return maker.key_id or maker.run_id


def resume_state(origin: RunState, run_id: str, execution: str, now: datetime) -> RunState:
    """Return the origin's state at its last safe point. Open calls are made, or looked up, under its keys."""
    return origin.evolve(
        run_id=run_id,
        execution=execution,
        key_id="",
        created_at=now,
        updated_at=now,
        status=RunStatus.running if origin.definition else RunStatus.queued,
        asked=(),
        expired=None,
        pending=(),
        ending=None,
        unusable_replies=0,
        invalid_results=0,
        rejections=0,
        active_ms=0,
        is_closing=False,
        recent=RecentCalls(),
        sighted=(),
        rung=0,
        calm=0,
        forced=None,
        recoveries=Recoveries(),
        pending_trace=(),
        approved_tools=(),
        accepted={},
        ignored=LatestNotices(),
        inherited=(*origin.inherited, _inheritance_of(origin, origin.step)),
        work=work_of(origin),  # its starter is another person, perhaps
        doubtful=tuple(call.tool_use_id for call in _open_effects(origin)),
        interrupted=bool(origin.definition),
        is_turn=False,
    )


class StepNotFoundError(ValueError):
    """The conversation does not contain the step. The message lists the valid ones."""


def cut_after_step(origin: RunState, parts: Sequence[Part], step: int, say: str | None) -> tuple[Part, ...]:
    """Return the conversation up to `step` (0: before the first turn), the journal of then, and a note about the fork.

    Later calls of the same turn are answered as not made, so that each tool use has its result. Steps are those of the
    origin: a turn of a conversation keeps everything before it. Raises StepNotFoundError.
    """
    own = latest_goal(parts)
    prefix = [*parts[:own], *_parts_through(parts[own:], step)]
    journal = rebuild_journal(prefix, origin.goal)
    shown_journal = [journal_of(journal, origin.goal, "")] if is_written(journal) else []
    return (*prefix, *shown_journal, note_part(_format_fork_note(origin, parts[own:], step, say)))


def continue_parts(origin: RunState, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the conversation that a resumed run continues with. If calls are open, their results come next.

    A conversation that ends with a reply could not be sent.
    """
    if origin.calls:
        return tuple(parts)
    journal = [journal_of(origin.journal, origin.goal, origin.last_finding)] if is_written(origin.journal) else []
    if not journal and parts[-1].kind is not PartKind.reply:
        return tuple(parts)
    return (*parts, *journal, note_part("The run was interrupted here. Go on."))


def journal_of(journal: Journal, goal: str, finding: str) -> Part:
    """Return the journal's part, as the agent sees it when the run continues."""
    whole = fill_journal(journal, goal, finding)
    return journal_part(render_journal(whole), digest_journal(whole))


def fork_state(  # noqa: PLR0913 - facts
    origin: RunState, prefix: Sequence[Part], step: int, run_id: str, execution: str, now: datetime
) -> RunState:
    """Return the state that belongs to the conversation up to `step`. The origin's costs are not counted again."""
    own = prefix[latest_goal(prefix) :]
    reframes = sum(p.about.get("tool") == REFRAME and not p.content[0].get("is_error") for p in own)
    return resume_state(origin, run_id, execution, now).evolve(
        step=step,
        turns=sum(p.kind is PartKind.reply for p in own),
        reframes=reframes,
        questions=0,
        calls=(),
        usage=Usage(),
        cost_usd=0.0,
        known_usd=0.0,
        unpriced={},
        delegated=Spent(),
        artifacts=(),
        journal=rebuild_journal(prefix, origin.goal),
        last_finding="",
        results=OutsideResults(),
        sent=None,
        # Only for the lineage: later steps are this run's own, whatever their numbers in the origin.
        inherited=(_inheritance_of(origin, step),),
        # Another person may have made the fork, so the plan approves nothing in it, and each change asks.
        planned=origin.planned and origin.planned.evolve(calls=()),
        unplanned=(),
        doubtful=(),
    )


def _inheritance_of(origin: RunState, through: int) -> Inheritance:
    return Inheritance(run_id=origin.run_id, through=through, execution=origin.execution, key_id=origin.key_id)


def _parts_through(parts: Sequence[Part], step: int) -> list[Part]:
    if step == 0:
        first = next((i for i, part in enumerate(parts) if part.kind is PartKind.reply), len(parts))
        return list(parts[:first])
    at = next((i for i, part in enumerate(parts) if part.about.get("step") == step), None)
    if at is None:
        last = max((part.about.get("step") or 0 for part in parts), default=0)
        raise StepNotFoundError(f"there is no finished step {step} to fork after; the steps are 0 to {last}")
    result = list(parts[: at + 1])
    for part in parts[at + 1 :]:
        if part.kind is not PartKind.result:
            break
        result.append(_unmade_result(part) if (part.about.get("step") or 0) > step else part)
    return result


def _unmade_result(part: Part) -> Part:
    outcome = error_outcome(
        ToolFault.interrupted, "not made in this run, which was forked from another before this call"
    )
    return result_part(part.content[0]["tool_use_id"], part.about["tool"], None, outcome)


def _format_fork_note(origin: RunState, parts: Sequence[Part], step: int, say: str | None) -> str:
    """Format the note about the fork. It states that the origin's later effects are not undone."""
    effects = later_effects(origin, parts, step)
    done = f" It went on and made: {', '.join(effects)}. That has happened, and is not undone." if effects else ""
    flight = [f"{c.tool} (step {c.step})" for c in _open_effects(origin) if (c.step or 0) > step]
    doubt = f" In flight when the fork was made: {', '.join(flight)}; it may have happened." if flight else ""
    instruction = f"\n\n{say}" if say else " Go on from here."
    return f"This is a fork of run {origin.run_id}, after step {step}.{done}{doubt}{instruction}"


def later_effects(origin: RunState, parts: Sequence[Part], step: int) -> tuple[str, ...]:
    """Return the effects that the origin made after `step`, as "charge (step 5)"."""
    effects = {DELEGATE, *(route.name for route in origin.tools if route.effect is not Effect.read)}
    settled = [call_part(call) for call in origin.calls if call.outcome is not None]
    later = [p for p in (*parts, *settled) if (p.about.get("step") or 0) > step and p.about.get("tool") in effects]
    return tuple(f"{p.about['tool']} (step {p.about['step']})" for p in later if not _was_refused(p))


def _was_refused(part: Part) -> bool:
    """Return whether the result is an error that says the call was not made."""
    block = part.content[0]
    return bool(block.get("is_error")) and str(block["content"]).partition(":")[0] in _NOT_MADE


def _open_effects(origin: RunState) -> list[Call]:
    """Return in-flight calls that change something, of this origin or an earlier one, not those awaiting approval."""
    in_flight = {pending.step for pending in origin.pending}
    unsettled = [c for c in origin.calls if c.outcome is None and c.effect is not Effect.read]
    dispatched = [c.tool_use_id for c in unsettled if c.step in in_flight and not needs_approval(origin, c)]
    return [c for c in unsettled if c.tool_use_id in dispatched or c.tool_use_id in origin.doubtful]
