"""Recovery of a run whose context is full, one stage of `decisions.run.recovery` at a time (B5)."""

from temporalio.exceptions import ActivityError

from activities.model.summarize import Summaries
from contracts.failures import RunFailure
from contracts.run.compaction import ContextFull, Recovery, SummaryRequest
from contracts.run.question import QuestionKind
from contracts.run.state import Forced
from decisions.builtin_tools import ASK_HUMAN
from decisions.run import loop, outcome
from decisions.run.compaction import KEPT, KEPT_DEEP, figures_of, summary_part
from decisions.run.limits import turn_limit
from decisions.run.recovery import QUESTION, next_recovery, recovered
from decisions.run.resume import journal_of
from decisions.run.transcript import note_part
from workflows.agent_run import events
from workflows.agent_run.context import LiveRun
from workflows.agent_run.turn import fail
from workflows.agent_run.waiting import ask_in_its_place
from workflows.policies import summary_policy


async def make_room(run: LiveRun, full: ContextFull) -> None:
    """Apply the next stage; the model is called again afterwards, unless the run has ended."""
    if full.was_refused:
        run.update(window=full.window)
    stage = next_recovery(run.state.recoveries, run.state.turns)
    if run.state.is_closing and stage in (None, Recovery.ask):
        run.state = outcome.out_of_time(run.state)
        return
    if stage is None:
        run.state = outcome.overflowed(run.state, full)
        return
    run.update(recoveries=recovered(run.state.recoveries, stage, run.state.turns))
    rung = run.state.recoveries.used
    events.emit(run, "agent.guardrail.escalated", ladder="recovery", rung=rung, stage=stage)
    if stage is Recovery.ask:
        await _ask(run, full)
    else:
        await _summarise(run, is_deep=stage is Recovery.prune)


async def _summarise(run: LiveRun, *, is_deep: bool) -> None:
    request = _request(run, is_deep=is_deep)
    kind = "deep prune" if is_deep else "compact"
    try:
        summary = await run.execute(
            Summaries.summarize, request, f"{kind} · turn {run.state.turns}", summary_policy(run.state.limits)
        )
    except ActivityError as error:
        fail(run, error, RunFailure.model_unavailable)
        return
    run.state = loop.summarised(run.state, summary)
    if summary.tail:
        run.transcript.append(summary_part(summary))
        run.transcript.append(journal_of(run.state.journal, run.state.goal, run.state.last_finding))
    figures = figures_of(summary)
    if is_deep:
        events.emit(run, "agent.recovery.fired", stage=Recovery.prune, **figures)
    else:
        events.emit(run, "agent.compaction.run", **figures)


def _request(run: LiveRun, *, is_deep: bool) -> SummaryRequest:
    limits = run.state.limits
    return SummaryRequest(
        length=run.transcript.length,
        head=run.transcript.head,
        definition=run.state.definition,
        keep=KEPT_DEEP if is_deep else KEPT,
        is_deep=is_deep,
        window=run.state.window,
        timeout=limits.turn_timeout,
        limit=turn_limit(limits),
        told=events.untold(run),
    )


async def _ask(run: LiveRun, full: ContextFull) -> None:
    """Let the model ask a person, as it knows its work; ask in its place if the provider takes no more requests."""
    events.emit(run, "agent.recovery.fired", stage=Recovery.ask, before_tokens=full.tokens)
    forced = Forced(tool=ASK_HUMAN, asks=QuestionKind.recovery, text=QUESTION)
    if full.was_refused:
        await ask_in_its_place(run, forced)
        return
    note = f"The context is nearly full. Call `{ASK_HUMAN}` now: say how far you are, and ask: {QUESTION}"
    run.transcript.append(note_part(note))
    run.update(forced=forced)
