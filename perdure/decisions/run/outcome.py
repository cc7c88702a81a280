"""The end of a run: exactly one event, and the hand-off for a person who takes over."""

from collections.abc import Mapping
from typing import Any

from perdure.contracts.failures import Escalation
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.events import CompletedEvent, CompletedPayload, EscalatedEvent, EscalatedPayload, PlanReport
from perdure.contracts.run.state import Call, Ending, RunState, RunStatus
from perdure.contracts.run.turn import ContextFull
from perdure.decisions.people.terms import name_of
from perdure.decisions.run.limits import escalation_ending


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
                accepted_by=state.ending.accepted_by,
                dry_run=state.dry_run,
                dry_calls=state.dry_calls,
                plan=_report_plan(state),
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
            dry_run=state.dry_run,
            dry_calls=state.dry_calls,
            plan=_report_plan(state),
        )
    )


def _report_plan(state: RunState) -> PlanReport | None:
    if state.planned is None:
        return None
    plan = state.planned
    return PlanReport(run_id=plan.run_id, by=name_of(plan.by), missing=plan.calls, unplanned=state.unplanned)


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
    state: RunState, outcome: str, artifacts: tuple[str, ...], *, is_partial: bool = False, result: Any = NO_RESULT
) -> RunState:
    """Complete the run. `artifacts` are those that the agent names, in addition to those that its calls wrote."""
    all_artifacts = state.artifacts + tuple(a for a in artifacts if a not in state.artifacts)
    ending = Ending(status=RunStatus.completed, text=outcome, is_partial=is_partial, result=result)
    return state.evolve(ending=ending, artifacts=all_artifacts)


def typed_result(state: RunState, finish: Call) -> Any:
    """Return the result that a `finish` gives, `NO_RESULT` if the run has no output schema."""
    return finish.arguments.get("result", NO_RESULT) if state.is_typed else NO_RESULT


def escalate_run(state: RunState, reason: Escalation, detail: str) -> RunState:
    """Escalate the run, unless it has an ending already."""
    if state.ending is not None:
        return state
    return state.evolve(ending=escalation_ending(reason, detail))


def escalate_overflow(state: RunState, full: ContextFull) -> RunState:
    """Escalate: the provider rejects the conversation as too long, and no recovery is left."""
    detail = f"about {full.tokens:,} tokens do not fit the window of {full.window:,}, and all recoveries are used up"
    return escalate_run(state, Escalation.context, detail)


MAX_INVALID_RESULTS = 3  # of a typed run, before it escalates


def count_invalid_result(state: RunState, errors: str) -> RunState:
    """Count a reply that would end a typed run without a valid result. Too many escalate the run."""
    state = state.evolve(invalid_results=state.invalid_results + 1)
    if state.invalid_results < MAX_INVALID_RESULTS:
        return state
    detail = f"{state.invalid_results} results did not match the output schema; the errors of the last one: {errors}"
    return escalate_run(state, Escalation.result_invalid, detail)


RUBRIC = "rubric"  # the name of a check by a model begins so
MAX_REJECTIONS = 3  # outcomes that go back to the model with the reason, before the run escalates


def check_of(state: RunState) -> str:
    """Return the name of the check that the run's outcome must pass. A dry run calls no function: it may act."""
    return "" if state.dry_run and not state.accept.startswith(RUBRIC) else state.accept


def needs_acceptance(state: RunState) -> bool:
    """Return whether the run has an outcome that its agent's check has not accepted yet."""
    ending = state.ending
    return bool(check_of(state) and ending and ending.status is RunStatus.completed and not ending.accepted_by)


def drop_unaccepted(state: RunState) -> RunState:
    """Remove an outcome that was still to be checked when the run was cancelled."""
    return state.evolve(ending=None) if needs_acceptance(state) else state


def settle_acceptance(state: RunState, rejection: str | None) -> RunState:
    """Accept the run's outcome, or remove it. Too many rejections, or one at the end of the time, escalate the run."""
    if state.ending is None:
        raise AssertionError("there is no outcome to accept")
    if rejection is None:
        return state.evolve(ending=state.ending.evolve(accepted_by=state.accept))
    count = state.rejections + 1
    state = state.evolve(ending=None, rejections=count)
    if count <= MAX_REJECTIONS and not state.is_closing:
        return state
    return escalate_run(state, Escalation.not_accepted, f"{state.accept} rejected the outcome: {rejection}")


def escalate_unchecked(state: RunState, reason: str) -> RunState:
    """Escalate: the outcome could not be checked."""
    return escalate_run(
        drop_unaccepted(state), Escalation.not_accepted, f"{state.accept} could not check the outcome: {reason}"
    )


def rejection_note(rejection: str) -> str:
    """Return the note to the model on a rejected outcome."""
    return f"Your outcome was checked and not accepted: {rejection}\nCorrect the work, then finish again."


def complete_out_of_time(
    state: RunState, outcome: str = "", artifacts: tuple[str, ...] = (), finish: Call | None = None
) -> RunState:
    """Complete with a partial outcome: the agent's text, or else what is known of its work.

    A typed run needs the result of `finish`; without it, the run escalates.
    """
    if state.is_typed and finish is None:
        return escalate_run(state, Escalation.result_invalid, "the time was used up before there was a valid result")
    result = typed_result(state, finish) if finish else NO_RESULT
    reached = state.journal.current_state or state.last_finding or f"{state.step} steps taken, and nothing summed up"
    return complete_run(state, outcome or reached, artifacts, is_partial=True, result=result)


def end_run(state: RunState, ending: Ending) -> RunState:
    return state.evolve(ending=ending, status=ending.status)
