"""What a run does when its context is full: the rungs of `decisions.run.recovery`, one at a time (B5)."""

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.model.summarize import Summaries
from contracts.failures import RunFailure
from contracts.run.compaction import ContextFull, Recovery, Summary, SummaryRequest
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
from workflows.agent_run.turn import ask_in_its_place, fail
from workflows.policies import FILES, SUMMARY_MARGIN, WAIT_FOR_END


async def make_room(run: LiveRun, full: ContextFull) -> None:
    """Climbs one rung; the model is asked again afterwards, unless the run has ended."""
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
    try:
        summary = await run.halt.stoppable(_summary(run, is_deep=is_deep))
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


async def _summary(run: LiveRun, *, is_deep: bool) -> Summary:
    limits = run.state.limits
    request = SummaryRequest(
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
    kind = "deep prune" if is_deep else "compact"
    return await workflow.execute_activity_method(
        Summaries.summarize,
        request,
        cancellation_type=WAIT_FOR_END,
        summary=f"{kind} · turn {run.state.turns}",
        **FILES | {"start_to_close_timeout": turn_limit(limits) + SUMMARY_MARGIN},
    )


async def _ask(run: LiveRun, full: ContextFull) -> None:
    """The model asks, since it knows what it is at; where the provider takes nothing any more, the runtime does."""
    events.emit(run, "agent.recovery.fired", stage=Recovery.ask, before_tokens=full.tokens)
    forced = Forced(tool=ASK_HUMAN, asks=QuestionKind.recovery, text=QUESTION)
    if full.was_refused:
        await ask_in_its_place(run, forced)
        return
    note = f"The context is nearly full. Call `{ASK_HUMAN}` now: say how far you are, and ask: {QUESTION}"
    run.transcript.append(note_part(note))
    run.update(forced=forced)
