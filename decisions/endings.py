"""How a run's end is told: exactly one event, and what a person needs to take over."""

from collections.abc import Mapping
from typing import Any

from contracts.events import CompletedEvent, CompletedPayload, EscalatedEvent, EscalatedPayload
from contracts.run import Ending, RunState, RunStatus


def ending_event(state: RunState) -> CompletedEvent | EscalatedEvent:
    """The event of a run that completed or escalated."""
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
            handoff=handoff(state),
        )
    )


def said_in(event: Mapping[str, Any]) -> str:
    """What the event says: the outcome, or why there is none."""
    payload = event["payload"]
    said = payload["outcome"] if event["type"] == "agent.completed" else f"{payload['reason']}: {payload['detail']}"
    return str(said)


def ended_event(ending: Ending | None) -> str:
    """The structured event of a run's end (B12). To Temporal, and so here, a run out of time has failed."""
    if ending is None:
        return f"agent_run.{RunStatus.cancelled}"
    return f"agent_run.{RunStatus.failed if ending.status is RunStatus.timed_out else ending.status}"


def handoff(state: RunState) -> str:
    """Objective, state reached, what stands in the way, next action: for the person who takes over."""
    journal = state.journal
    blocker = state.ending.text if state.ending else ""
    lines = (
        ("Objective", journal.objective or state.goal),
        ("State", journal.current_state or state.last_finding or f"{state.step} steps taken"),
        ("Blocker", journal.blockers[0] if journal.blockers else blocker),
        ("Next", journal.handoff_next_action or "a person decides how to go on"),
    )
    return "\n".join(f"{name}: {' '.join(text.split())[:600]}" for name, text in lines)


def handoff_sections(text: str) -> dict[str, str]:
    """What `handoff` tells, as "objective", "state", "blocker" and "next"; empty where there is none."""
    lines = (line.partition(": ") for line in text.splitlines())
    return {name.lower(): said for name, _, said in lines}
