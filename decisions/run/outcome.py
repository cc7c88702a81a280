"""The end of a run: exactly one event, and the hand-off for a person who takes over."""

from collections.abc import Mapping
from typing import Any

from contracts.failures import Escalation
from contracts.run.compaction import ContextFull
from contracts.run.events import CompletedEvent, CompletedPayload, EscalatedEvent, EscalatedPayload
from contracts.run.state import Call, Ending, RunState, RunStatus
from decisions.run.limits import escalation_ending


def ending_event(state: RunState) -> CompletedEvent | EscalatedEvent:
    """Return the event of a run that completed or escalated."""
    if state.ending is None:
        raise AssertionError("the run has not ended")
    if state.ending.status is RunStatus.completed:
        return CompletedEvent(
            payload=CompletedPayload(
                run_id=state.run_id,
                goal=state.goal,
                outcome=state.ending.text,
                steps_taken=state.step,
                artifacts=state.artifacts,
                partial=state.ending.is_partial,
                result=state.ending.result,
            )
        )
    return EscalatedEvent(
        payload=EscalatedPayload(
            run_id=state.run_id,
            goal=state.goal,
            reason=state.ending.reason,
            detail=state.ending.text,
            steps_taken=state.step,
            artifacts=state.artifacts,
            handoff=format_handoff(state),
        )
    )


def event_text(event: Mapping[str, Any]) -> str:
    """Return the event's text: the outcome, or the reason for its absence."""
    payload = event["payload"]
    text = payload["outcome"] if event["type"] == "agent.completed" else f"{payload['reason']}: {payload['detail']}"
    return str(text)


def end_event_name(ending: Ending | None) -> str:
    """Return the structured event of a run's end (B12). As in Temporal, a run out of time has failed."""
    if ending is None:
        return f"agent_run.{RunStatus.cancelled}"
    return f"agent_run.{RunStatus.failed if ending.status is RunStatus.timed_out else ending.status}"


def format_handoff(state: RunState) -> str:
    """Format objective, state, blocker and next action for the person who takes over."""
    journal = state.journal
    blocker = state.ending.text if state.ending else ""
    lines = (
        ("Objective", journal.objective or state.goal),
        ("State", journal.current_state or state.last_finding or f"{state.step} steps taken"),
        ("Blocker", journal.blockers[0] if journal.blockers else blocker),
        ("Next", journal.handoff_next_action or "a person decides how to go on"),
    )
    return "\n".join(f"{name}: {' '.join(text.split())[:600]}" for name, text in lines)


def parse_handoff(text: str) -> dict[str, str]:
    """Split a hand-off into "objective", "state", "blocker" and "next". An empty text has no sections."""
    lines = (line.partition(": ") for line in text.splitlines())
    return {name.lower(): value for name, _, value in lines}


def complete_run(
    state: RunState, outcome: str, artifacts: tuple[str, ...], *, is_partial: bool = False, result: Any = None
) -> RunState:
    """Complete the run. `artifacts` are those that the agent names, in addition to those that its calls wrote."""
    all_artifacts = state.artifacts + tuple(a for a in artifacts if a not in state.artifacts)
    ending = Ending(status=RunStatus.completed, text=outcome, is_partial=is_partial, result=result)
    return state.model_copy(update={"ending": ending, "artifacts": all_artifacts})


def escalate_run(state: RunState, reason: Escalation, detail: str) -> RunState:
    """Escalate the run, unless it has an ending already."""
    if state.ending is not None:
        return state
    return state.model_copy(update={"ending": escalation_ending(reason, detail)})


def escalate_overflow(state: RunState, full: ContextFull) -> RunState:
    """Escalate: the provider rejects the conversation as too long, and no recovery is left."""
    detail = f"about {full.tokens:,} tokens do not fit the window of {full.window:,}, and all recoveries are used up"
    return escalate_run(state, Escalation.context, detail)


MAX_INVALID_RESULTS = 3  # of a typed run, before it escalates


def count_invalid_result(state: RunState, errors: str) -> RunState:
    """Count a reply that would end a typed run without a valid result. Too many escalate the run."""
    state = state.model_copy(update={"invalid_results": state.invalid_results + 1})
    if state.invalid_results < MAX_INVALID_RESULTS:
        return state
    detail = f"{state.invalid_results} results did not match the output schema; the errors of the last one: {errors}"
    return escalate_run(state, Escalation.result_invalid, detail)


def complete_out_of_time(
    state: RunState, outcome: str = "", artifacts: tuple[str, ...] = (), finish: Call | None = None
) -> RunState:
    """Complete with a partial outcome: the agent's text, or else what is known of its work.

    A typed run needs the result of `finish`; without it, the run escalates.
    """
    if state.is_typed and finish is None:
        return escalate_run(state, Escalation.result_invalid, "the time was used up before there was a valid result")
    result = finish.arguments.get("result") if state.is_typed and finish else None
    reached = state.journal.current_state or state.last_finding or f"{state.step} steps taken, and nothing summed up"
    return complete_run(state, outcome or reached, artifacts, is_partial=True, result=result)


def end_run(state: RunState, ending: Ending) -> RunState:
    return state.model_copy(update={"ending": ending, "status": ending.status})
