"""Recovery of a run whose context is full, one stage of `perdure.decisions.run.recovery` at a time (B5)."""

from temporalio.exceptions import ActivityError

from perdure.contracts.failures import RunFailure
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import ForcedTool
from perdure.contracts.run.turn import ContextFull, Recovery, SummaryRequest
from perdure.decisions.run import outcome
from perdure.decisions.run.compaction import KEPT, KEPT_DEEP, summary_figures, summary_part
from perdure.decisions.run.limits import longest_turn
from perdure.decisions.run.recovery import QUESTION, next_recovery
from perdure.decisions.run.resume import journal_of
from perdure.decisions.run.state import add_reply_cost, force_tool, learn_window, use_recovery
from perdure.decisions.run.transcript import note_part
from perdure.decisions.tools import ASK_HUMAN
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run import events
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.agent_run.turn import fail_run
from perdure.workflows.agent_run.waiting import ask_instead_of_model
from perdure.workflows.execution import summary_policy


async def free_context(run: RunContext, full: ContextFull) -> None:
    """Apply the next stage; the model is called again afterwards, unless the run has ended."""
    if full.was_refused:
        run.state = learn_window(run.state, full.window)
    stage = next_recovery(run.state.recoveries, run.state.turns)
    if run.state.is_closing and stage in (None, Recovery.ask):
        run.state = outcome.complete_out_of_time(run.state)
        return
    if stage is None:
        run.state = outcome.escalate_overflow(run.state, full)
        return
    run.state = use_recovery(run.state, stage)
    rung = run.state.recoveries.used
    events.emit_event(run, "agent.guardrail.escalated", ladder="recovery", rung=rung, stage=stage)
    if stage is Recovery.ask:
        await _force_question(run, full)
    else:
        await _summarize_transcript(run, is_deep=stage is Recovery.prune)


async def _summarize_transcript(run: RunContext, *, is_deep: bool) -> None:
    request = _summary_request(run, is_deep=is_deep)
    kind = "deep prune" if is_deep else "compact"
    try:
        summary = await run.execute(
            Activities.summarize, request, f"{kind} · turn {run.state.turns}", summary_policy(run.state.limits)
        )
    except ActivityError as error:
        fail_run(run, error, RunFailure.model_unavailable)
        return
    run.state = add_reply_cost(run.state, summary)
    if summary.tail:
        run.transcript.append(summary_part(summary))
        run.transcript.append(journal_of(run.state.journal, run.state.goal, run.state.last_finding))
    figures = summary_figures(summary)
    if is_deep:
        events.emit_event(run, "agent.recovery.fired", stage=Recovery.prune, **figures)
    else:
        events.emit_event(run, "agent.compaction.run", **figures)


def _summary_request(run: RunContext, *, is_deep: bool) -> SummaryRequest:
    limits = run.state.limits
    return SummaryRequest(
        length=run.transcript.length,
        head=run.transcript.head,
        definition=run.state.definition,
        keep=KEPT_DEEP if is_deep else KEPT,
        is_deep=is_deep,
        window=run.state.window,
        timeout=limits.turn_timeout,
        limit=longest_turn(limits),
        trace=events.take_trace_lines(run),
    )


async def _force_question(run: RunContext, full: ContextFull) -> None:
    """Let the model ask a person, as it knows its work; ask in its place if the provider takes no more requests."""
    events.emit_event(run, "agent.recovery.fired", stage=Recovery.ask, before_tokens=full.tokens)
    forced = ForcedTool(tool=ASK_HUMAN, asks=QuestionKind.recovery, text=QUESTION)
    if full.was_refused:
        await ask_instead_of_model(run, forced)
        return
    note = f"The context is nearly full. Call `{ASK_HUMAN}` now: say how far you are, and ask: {QUESTION}"
    run.transcript.append(note_part(note))
    run.state = force_tool(run.state, forced)
