"""Run events as lines for a person. Pure: `run_view` prints them.

On a screen of `width` columns, a turn and a call can have a block below their line. If `width` is None, as for a log,
their line is complete.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from activities.run.outcome import RunEnd
from contracts.delegation import DelegationRequest, DelegationState, DelegationStatus
from contracts.run.compaction import Summary
from contracts.run.loop_detection import Rung
from contracts.run.turn import ModelTurn
from contracts.sender import SentBy
from contracts.tool import ToolOutcome
from decisions.run.calls import text_of
from decisions.sender import format_sent_by
from decisions.text.formatting import call_line, cut
from perdure.client.run_events import (
    Answered,
    Called,
    Calling,
    Crowded,
    Delegated,
    Delegating,
    Failed,
    Happening,
    Held,
    Live,
    Noticed,
    Over,
    Resumed,
    Retrying,
    Rotated,
    Shortened,
    Signalled,
    Started,
    Thinking,
    Thought,
    Waiting,
)
from perdure.terminal.console import fitted
from perdure.terminal.progress import cost_told, counted, joined, seconds_told, tokens_told
from perdure.terminal.report import status_colour

RUNGS = {
    Rung.nudge: "the model is asked to try something else",
    Rung.directive: "the model must do something else, with a forced tool",
    Rung.ask: "a person is asked",
}
TRIED = {"plan": "the model", "reflect": "the model", "summarize": "the summary", "call_tool": "the call"}
WITHOUT_A_SCREEN = 200  # characters of a preview


@dataclass(frozen=True)
class Line:
    """A line: `markup`, then `text`, which is foreign and printed literally."""

    markup: str
    text: str = ""
    style: str = ""


@dataclass(frozen=True)
class Block:
    """A text that may have many lines."""

    text: str
    indent: int = 2
    style: str = ""


Told = Iterator[Line | Block]


def told(event: Happening, width: int | None) -> Told:
    match event:
        case Started(goal) if goal:
            yield Line("[bold]goal[/]  ", cut(goal, 1000))
        case Thought():
            yield from _thought(event, width)
        case Answered(answer):
            text = ": ".join(filter(None, (answer.decision, answer.text)))
            sender = format_sent_by(SentBy(sender=answer.sender, by=answer.by))
            yield Line(f"  [yellow]←[/] {escape(cut(sender, 60))}  ", cut(text, 300))
        case Crowded(full):
            yield Line(f"  [yellow]![/] the context is full: about {full.tokens:,} of {full.window:,} tokens")
        case Shortened(summary):
            yield Line(f"  [yellow]![/] {_shortened(summary)}")
        case Noticed(notice):
            if line := _noticed(notice):
                yield Line(f"  {line}")
        case Signalled(signal):
            yield Line(f"  [dim]signal {escape(cut(signal, 100))}[/]")
        case Rotated():
            yield Line("  [dim]the history was long: continued as new[/]")
        case Called():
            yield from _called(event, width)
        case Delegating(request):
            yield from _delegating(request)
        case Delegated(state):
            yield from _delegated(state, width)
        case Failed(activity, reason):
            yield Line(f"  [red]✗[/] {escape(cut(activity, 100))}  ", cut(reason, 300))
        case Retrying(activity, attempt, reason):
            yield Line(f"  [yellow]↻[/] {escape(TRIED.get(activity, activity))}, attempt {attempt}: ", cut(reason, 300))
        case Waiting(waiting_for=about):
            yield Line("  [yellow]…[/] waiting for ", cut(about, 300))
        case Held(reason):
            yield Line("  [yellow]‖[/] ", cut(reason, 300))
        case Started() | Thinking() | Calling() | Live() | Resumed() | Over():
            return  # the live area shows it


def fallbacks(reply: ModelTurn) -> Told:
    """Yield a line for each model that was skipped, with the reason."""
    for skipped in reply.passed_over:
        yield Line(f"  [yellow]↪[/] in place of {escape(cut(skipped.model, 60))}: ", cut(skipped.why, 300))


def ended(end: RunEnd, facts: str, shown: str, width: int | None) -> Told:
    """Yield how a run ended, with its figures. `shown` is the model's last text, which is on the screen already."""
    colour = status_colour(end.status)
    yield Line(f"[bold {colour}]■ {end.status}[/]  [dim]{facts}[/]")
    if end.event and end.event["type"] == "agent.completed":
        outcome = end.event["payload"]["outcome"]
        if outcome != shown or width is None:
            yield Block(outcome)
    elif end.event:
        payload = end.event["payload"]
        yield Line(f"  [yellow]{escape(payload['reason'])}[/]: ", payload["detail"])
    elif end.message:
        yield Line(f"  [red]{end.kind}[/]: ", end.message)
    if end.handoff:
        yield Block(end.handoff, style="dim")


def _thought(thought: Thought, width: int | None) -> Told:
    reply, text = thought.reply, text_of(thought.reply.content)
    facts = joined(
        f"turn {thought.turn}",
        tokens_told(reply.usage),
        cost_told(reply.cost_usd or 0.0),
        seconds_told(reply.duration_ms / 1000),
        cut(reply.model, 60),
    )
    in_line = f": {' '.join(text.split())}" if width is None and text else ""
    yield Line(f"[bold cyan]◆ {thought.phase}[/]  [dim]{escape(facts)}[/]", in_line)
    yield from fallbacks(reply)
    if text and width is not None:
        yield Block(text)


def _called(called: Called, width: int | None) -> Told:
    call, outcome = called.call, called.outcome
    again = f" · attempt {call.attempt}" if call.attempt > 1 else ""
    lost = " · after its worker was lost" if outcome.interrupted else ""
    facts = f"step {call.step} · {seconds_told(outcome.duration_ms / 1000)}{again}{lost}"
    mark, line = _mark(is_good=outcome.status == "ok"), call_line(call.tool, call.arguments or {})
    if width is None:
        yield Line(f"  {mark} {escape(line)}  {facts}: ", _brought(outcome, WITHOUT_A_SCREEN))
        return
    yield Line(f"  {mark} {escape(fitted(line, max(width - len(facts) - 7, 20)))}  [dim]{facts}[/]")
    if preview := _brought(outcome, width - 5):
        yield Block(preview, 4, "dim")


def _delegating(request: DelegationRequest) -> Told:
    yield Line(f"  [cyan]⇉[/] delegates {counted(len(request.subtasks), 'subtask')}  [dim]step {request.step}[/]")
    for subtask in request.subtasks:
        after = f", after {', '.join(subtask.depends_on)}" if subtask.depends_on else ""
        yield Line("    ", f"{subtask.id} · {subtask.agent}{after}", "dim")


def _delegated(state: DelegationState, width: int | None) -> Told:
    yield Line(f"  {_mark(is_good=state.status is DelegationStatus.done)} delegation {state.status}")
    room = WITHOUT_A_SCREEN if width is None else width - 5
    for subtask in state.subtasks:
        yield Line("    ", fitted(f"{subtask.id} {subtask.status}: {subtask.outcome}", room), "dim")


def _mark(*, is_good: bool) -> str:
    return "[green]✓[/]" if is_good else "[red]✗[/]"


def _noticed(notice: dict[str, Any]) -> str:
    """Format a notice. A full context has none: the compaction has its own line."""
    if notice["event"] == "refused":
        step = f"  [dim]step {notice['step']}[/]" if notice["step"] else ""
        return (
            f"[red]✗[/] {escape(cut(notice['call'], 100))}{step}  {notice['kind']}: {escape(cut(notice['error'], 300))}"
        )
    if notice.get("ladder") == "thrash":
        return f"[yellow]![/] loop detected: {RUNGS[notice['stage']]}"
    return "" if "ladder" in notice else "[yellow]![/] the time limit is reached: one last turn"


def _shortened(summary: Summary) -> str:
    if not summary.tail:
        return "there was nothing to summarise"
    messages = f"{summary.before_messages} → {summary.after_messages} messages"
    tokens = f"about {summary.before_tokens:,} → {summary.after_tokens:,} tokens"
    method = f"summarised by {summary.model}" if summary.model else "truncated without a summary"
    return escape(f"{messages}, {tokens}: {method}")


def _brought(outcome: ToolOutcome, width: int) -> str:
    """Format a call's result as a line of `width` columns; an error may be longer."""
    if outcome.error:
        return f"{outcome.error.kind}: {cut(outcome.error.message, 300)}"
    if isinstance(outcome.result, dict) and "artifact_path" in outcome.result:
        return fitted(f"{outcome.result.get('bytes', 0):,} bytes in {outcome.result['artifact_path']}", width)
    text = outcome.result if isinstance(outcome.result, str) else json.dumps(outcome.result, ensure_ascii=False)
    line = fitted(text, width)
    if not line.endswith("…"):
        return line
    size = f"  ({len(text):,} characters)"
    return fitted(text, max(width - len(size), 10)) + size
