"""The structured events of a run (B12): one log line each, with its figures, and a count; a replay tells none twice."""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow

from activities.telemetry.metrics import count
from contracts.run.state import Call
from contracts.tool import ToolOutcome
from decisions.telemetry import metrics
from decisions.text import formatting
from workflows.agent_run.context import LiveRun

MOST_REFUSED = 20  # calls of a turn


def emit(run: LiveRun, name: str, *, is_traced: bool = True, **figures: Any) -> None:
    """`name` is one of the requirement's: `agent.tool.retry`, `agent_run.resume_unsafe`, ...

    What the trace is told goes through history, as an activity's input: a thing that goes on is told when it begins.
    """
    event = {"event": name, "run_id": run.state.run_id, **figures}
    workflow.logger.info(name, extra={"event": event})
    count(workflow.metric_meter(), metrics.of_event(name, figures))
    if not is_traced:
        return
    number = run.state.events + 1
    told = {"key": f"event:{number}", "at": workflow.now().isoformat(timespec="milliseconds"), **event}
    run.update(events=number, untold=(*run.state.untold, told))


def refused(run: LiveRun, calls: Sequence[Call]) -> None:
    """Calls of a turn that were not made are told to the trace alone: of those that were, their activities tell it.

    Through history, as all that the trace is told: so of a flood, only its beginning.
    """
    at = workflow.now().isoformat(timespec="milliseconds")
    lines = [{"at": at, **formatting.refusal(call)} for call in calls[:MOST_REFUSED]]
    if len(calls) > MOST_REFUSED:
        lines[-1]["error"] += f" (and {len(calls) - MOST_REFUSED:,} more calls of this turn)"
    run.update(untold=(*run.state.untold, *lines))


def untold(run: LiveRun) -> tuple[dict[str, Any], ...]:
    """What the trace has not been told yet; whoever asks is to write it there."""
    events = run.state.untold
    if events:
        run.update(untold=())
    return events


def count_call(call: Call, outcome: ToolOutcome) -> None:
    count(workflow.metric_meter(), metrics.of_call(call.tool, outcome))
