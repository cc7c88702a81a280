"""The structured events of a run (B12): a log line with figures, a count and a trace line, not repeated by a replay."""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow

from perdure.activities.telemetry.metrics import add_counts
from perdure.contracts.run.signals import ANSWER_REPORT, QUESTION_CLOSED, HumanInput
from perdure.contracts.run.state import Call, RunState
from perdure.contracts.tool import ToolOutcome
from perdure.decisions import telemetry
from perdure.decisions.people.terms import name_of
from perdure.decisions.run.question import answer_digest
from perdure.decisions.run.state import add_event, add_trace_lines, clear_trace_lines
from perdure.decisions.text import formatting
from perdure.decisions.text.visible_text import cut_text
from perdure.workflows.agent_run.context import RunContext

MAX_TRACED_REFUSALS = 20  # calls of a turn
TRACED_TEXT = 8000  # characters of a question's text


def emit_event(run: RunContext, name: str, *, is_traced: bool = True, **figures: Any) -> None:
    """Log and count the event `name` of the requirements: `agent.tool.retry`, `agent_run.resume_unsafe`, ...

    Trace lines are part of an activity's input, and so of history: trace a lasting condition when it begins.
    """
    event = {"event": name, "run_id": run.state.run_id, **figures}
    workflow.logger.info(name, extra={"event": event})
    add_counts(workflow.metric_meter(), telemetry.count_event(name, figures))
    if not is_traced:
        return
    run.state = add_event(run.state, {"at": workflow.now().isoformat(timespec="milliseconds"), **event})


def trace_refused_calls(run: RunContext, calls: Sequence[Call]) -> None:
    """Trace the calls of a turn that were refused; calls that were made are traced by their activities.

    The lines enter history, so only the first ones are traced.
    """
    at = workflow.now().isoformat(timespec="milliseconds")
    lines = [{"at": at, **formatting.refusal_trace(call)} for call in calls[:MAX_TRACED_REFUSALS]]
    if len(calls) > MAX_TRACED_REFUSALS:
        lines[-1]["error"] += f" (and {len(calls) - MAX_TRACED_REFUSALS:,} more calls of this turn)"
    run.state = add_trace_lines(run.state, lines)


def report_answer(run: RunContext, answer: HumanInput, **outcome: Any) -> None:
    """Report whether an answer by signal was taken, in a trace line: `reason` if not, `before` if it changed a call."""
    at = workflow.now().isoformat(timespec="milliseconds")
    line = {"at": at, "event": ANSWER_REPORT, "answer": answer_digest(answer), **outcome}
    run.state = add_event(run.state, line)


def report_closed(run: RunContext, before: RunState) -> None:
    """Report the questions that have closed since the state `before`: history has no event of a question."""
    answers = {question.id: question.answer for question in run.state.asked}
    still_open = {question.id for question in run.state.open_questions}
    for question in before.open_questions:
        if question.id in still_open:
            continue
        answer = answers.get(question.id)
        end = "withdrawn" if answer is None else "expired" if answer == HumanInput() else "answered"
        view = formatting.question_view(before, question)
        shown = view.evolve(text=cut_text(view.text, TRACED_TEXT), arguments=None)
        line = {"question": shown.model_dump(mode="json", exclude_defaults=True), "end": end}
        at = workflow.now().isoformat(timespec="milliseconds")
        run.state = add_event(run.state, {"at": at, "event": QUESTION_CLOSED, **line})


def take_trace_lines(run: RunContext) -> tuple[dict[str, Any], ...]:
    """Return the trace lines that are not written yet, and forget them: the caller hands them to an activity."""
    lines = run.state.pending_trace
    run.state = clear_trace_lines(run.state)
    return lines


def count_call(call: Call, outcome: ToolOutcome) -> None:
    add_counts(workflow.metric_meter(), telemetry.count_tool_call(call.tool, outcome))


def report_planned(run: RunContext, before: RunState) -> None:
    """Report the calls that the plan's starter has approved by it since the state `before`."""
    known = {call.tool_use_id for call in before.calls if call.plan}
    for call in run.state.calls:
        if call.plan and call.tool_use_id not in known:
            by = name_of(run.state.planned.by) if run.state.planned else ""
            shown = formatting.call_line(call.tool, call.arguments)
            emit_event(run, "agent.call.planned", **call_figures(call), call=shown, plan=call.plan, by=by)


def call_figures(call: Call) -> dict[str, Any]:
    return {"step": call.step, "tool": call.tool, "tool_use_id": call.tool_use_id}
