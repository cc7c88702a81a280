"""The structured events of a run (B12): one log line each, with its figures, and a count; a replay tells none twice."""

from typing import Any

from temporalio import workflow

from activities.observation import count
from contracts.run import Call
from contracts.tool import ToolOutcome
from decisions import metrics
from workflows.live_run import LiveRun


def emit(run: LiveRun, name: str, **figures: Any) -> None:
    """`name` is one of the requirement's: `agent.tool.retry`, `agent_run.resume_unsafe`, ..."""
    event = {"event": name, "run_id": run.state.run_id, **figures}
    run.told += 1
    # The same where a workflow task is done again; a run's trace has a line of each key once.
    key = f"event:{workflow.info().run_id}:{run.told}"
    workflow.logger.info(name, extra={"event": event, "key": key})
    count(workflow.metric_meter(), metrics.of_event(name, figures))


def count_call(call: Call, outcome: ToolOutcome) -> None:
    count(workflow.metric_meter(), metrics.of_call(call.tool, outcome))
