"""Run events as lines for a person. Pure: `run_view` prints them.

On a screen of `width` columns, a turn and a call can have a block below their line. If `width` is None, as for a log,
their line is complete.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from perdure.activities.run.outcome import RunEnd
from perdure.client import run_events
from perdure.client.run_events import RunEvent
from perdure.contracts.media import PDF, Attachment, StoredMedia
from perdure.contracts.models import NO_RESULT
from perdure.contracts.people import SentBy
from perdure.contracts.policy import Verdict
from perdure.contracts.run.loop_detection import Rung
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.contracts.run.turn import Acceptance, ModelTurn, PolicyReview, Summary
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.people.terms import format_sent_by
from perdure.decisions.run.transcript import cited_urls, join_text_blocks, join_thinking, server_calls
from perdure.decisions.text.formatting import call_line, format_change, truncate
from perdure.decisions.text.visible_text import render_visible
from perdure.terminal.console import fit_line
from perdure.terminal.progress import format_cost, format_count, format_seconds, format_tokens, join_facts
from perdure.terminal.report import format_plan, status_colour

RUNG_TEXTS = {
    Rung.nudge: "the model is asked to try something else",
    Rung.directive: "the model must do something else, with a forced tool",
    Rung.ask: "a person is asked",
}
REVIEW_SIGNS: dict[Verdict | None, str] = {Verdict.allow: "[green]✓[/]", Verdict.deny: "[red]✗[/]"}
RETRIED_NAMES = {"plan": "the model", "reflect": "the model", "summarize": "the summary", "call_tool": "the call"}
PLAIN_PREVIEW_LENGTH = 200  # characters of a preview
MAX_CITED = 300  # characters of the addresses that a reply cites


EventLines = Iterator[RenderableType]
_Delay = (
    run_events.ActivityFailed
    | run_events.ActivityRetrying
    | run_events.WaitStarted
    | run_events.BatchWait
    | run_events.RateLimitWait
    | run_events.RunHeld
)


def format_line(markup: str, text: str = "", style: str = "") -> Text:
    """Return a line: `markup`, then `text`, which is foreign and shown literally."""
    return Text.from_markup(markup, emoji=False).append(render_visible(text), style)


def _format_block(text: str, width: int | None, indent: int = 2, style: str = "") -> RenderableType:
    """Return a text that may have many lines."""
    body = Text(render_visible(text), style=style, overflow="fold")
    return body if width is None else Padding(body, (0, 0, 0, indent), expand=False)


def format_event(event: RunEvent, width: int | None) -> EventLines:
    if isinstance(event, _Delay):  # first, since some are partial texts, too
        yield from _format_delay(event)
        return
    match event:
        case run_events.RunStarted() if event.goal:
            yield from _format_start(event)
        case run_events.ModelReplied():
            yield from _format_reply(event, width)
        case run_events.AnswerReceived() | run_events.AnswerRejected():
            yield from _format_arrival(event)
        case run_events.CallsReviewed(reviews):
            yield from map(_format_review, reviews)
        case run_events.ContextFilled(full):
            yield format_line(f"  [yellow]![/] the context is full: about {full.tokens:,} of {full.window:,} tokens")
        case run_events.ContextCompacted(summary):
            yield format_line(f"  [yellow]![/] {_format_compaction(summary)}")
        case run_events.OutcomeChecked(acceptance):
            yield _format_acceptance(acceptance)
        case run_events.NoticeAdded(notice):
            if line := _format_notice(notice):
                yield format_line(f"  {line}")
        case run_events.SignalReceived(signal):
            yield format_line(f"  [dim]signal {escape(truncate(signal, 100))}[/]")
        case run_events.ContinuedAsNew():
            yield format_line("  [dim]the history was long: continued as new[/]")
        case run_events.UnreadableEvent(kind, number):
            yield format_line(f"  [yellow]![/] event {number} ({escape(kind)}) cannot be read by this version")
        case run_events.ToolCallFinished():
            yield from _format_call(event, width)
        case run_events.ToolCallWaiting(text, step, tool):
            yield format_line(f"  [yellow]…[/] {escape(tool)} · step {step}: " if tool else "  [yellow]…[/] ", text)
        case run_events.ToolCallRefused():
            yield _format_refusal(event)
        case run_events.ToolResultReceived():
            yield _format_arrived_result(event, width)
        case run_events.QuestionClosed(question, end) if end != "answered":
            yield _format_closed(question, end)
        case run_events.FeatureEvent():
            yield from event.lines(width)
        case (
            run_events.RunStarted()
            | run_events.ModelCallStarted()
            | run_events.ToolCallStarted()
            | run_events.PartialText()
            | run_events.WaitEnded()
            | run_events.QuestionClosed()
            | run_events.RunEnded()
        ):
            return  # the live area shows it


def _format_acceptance(acceptance: Acceptance) -> Text:
    verdict = f"the outcome was not accepted: {acceptance.rejection}" if acceptance.rejection else "accepted"
    return format_line(f"  [{'yellow]!' if acceptance.rejection else 'green]✓'}[/] ", truncate(verdict, 300))


def _format_closed(question: QuestionView, end: str) -> Text:
    about = f" about {question.tool}" if question.tool else ""
    return format_line(f"  [yellow]…[/] question {question.id} ", f"{about} has {end}".strip())


def _format_arrived_result(event: run_events.ToolResultReceived, width: int | None) -> Text:
    room = PLAIN_PREVIEW_LENGTH if width is None else max(width - len(event.tool) - 24, 20)
    line = f"  [yellow]←[/] result of {escape(event.tool)}  [dim]step {event.step}[/]  "
    return format_line(line, _format_outcome(event.outcome, room))


def _format_arrival(event: run_events.AnswerReceived | run_events.AnswerRejected) -> EventLines:
    match event:
        case run_events.AnswerReceived(answer, before):
            yield format_line(f"  [yellow]←[/] {_format_sender(answer)}  ", _format_answer(answer, before))
            yield from _format_files(answer.attachments)
        case run_events.AnswerRejected(answer, reason):
            said = f"{_format_answer(answer, None)}: {truncate(reason)}"
            yield format_line(f"  [red]✗[/] not taken from {_format_sender(answer)}  ", said)


def _format_start(start: run_events.RunStarted) -> EventLines:
    if start.dry_run:
        yield format_line("[bold yellow]dry run[/]  calls that change something are not made")
    yield format_line("[bold]goal[/]  ", truncate(start.goal, 1000))
    yield from _format_files(start.attachments)


def _format_sender(answer: HumanInput) -> str:
    return escape(truncate(format_sent_by(SentBy(sender=answer.sender, by=answer.by)), 60))


def _format_answer(answer: HumanInput, before: Mapping[str, Any] | None) -> str:
    """Format as "approve, cents: 100 → 900: as agreed"."""
    change = "" if answer.arguments is None else format_change(before or {}, answer.arguments)
    said = ", ".join(filter(None, (answer.decision, change)))
    return ": ".join(filter(None, (said, truncate(answer.text or "", 300))))


def _format_delay(event: _Delay) -> EventLines:
    match event:
        case run_events.ActivityFailed(activity, reason):
            yield format_line(f"  [red]✗[/] {escape(truncate(activity, 100))}  ", truncate(reason))
        case run_events.ActivityRetrying(activity, attempt, reason):
            yield format_line(
                f"  [yellow]↻[/] {escape(RETRIED_NAMES.get(activity, activity))}, attempt {attempt}: ",
                truncate(reason),
            )
        case run_events.WaitStarted(waiting_for=about):
            yield format_line("  [yellow]…[/] waiting for ", truncate(about, 300))
        case run_events.BatchWait(text):
            yield format_line("  [yellow]‖[/] ", text)
        case run_events.HoldEnded(activity, why=reason, since=since, until=until):
            name, took = escape(RETRIED_NAMES.get(activity, activity)), format_seconds((until - since).total_seconds())
            yield format_line(f"  [yellow]‖[/] was held before {name} for {took}: ", reason)
        case run_events.RunHeld(activity, why=reason):
            yield format_line(f"  [yellow]‖[/] held before {escape(RETRIED_NAMES.get(activity, activity))}: ", reason)
        case run_events.RateLimitWait(reason):
            yield format_line("  [yellow]‖[/] ", truncate(reason))


def _format_review(review: PolicyReview) -> RenderableType:
    sign = REVIEW_SIGNS.get(review.verdict, "[yellow]?[/]")
    facts = join_facts(review.model, format_tokens(review.usage), format_cost(review.cost_usd or 0.0))
    verdict = f"{review.verdict or 'no verdict'}{f': {review.reason}' if review.reason else ''}"
    return format_line(f"  {sign} review of {escape(review.tool)}  [dim]{escape(facts)}[/]  ", truncate(verdict, 300))


def format_thinking(reply: ModelTurn) -> EventLines:
    """Yield one line for the model's thinking, if its provider shows it."""
    if words := join_thinking(reply.content).split():
        facts = f"thought, {format_count(len(words), 'word')}"
        yield format_line(f"  [dim]✻ {facts}: [/]", truncate(" ".join(words), 80), "dim")


def format_whole_thinking(reply: ModelTurn, width: int | None) -> EventLines:
    """Yield the model's thinking, if its provider shows it."""
    if text := join_thinking(reply.content):
        yield _format_block(text, width, indent=4, style="dim")


def format_fallbacks(reply: ModelTurn) -> EventLines:
    """Yield a line for each model that was skipped, with the reason."""
    for skipped in reply.passed_over:
        yield format_line(
            f"  [yellow]↪[/] in place of {escape(truncate(skipped.model, 60))}: ", truncate(skipped.why, 300)
        )


def format_end(end: RunEnd, facts: str, shown: str, width: int | None) -> EventLines:
    """Yield how a run ended, with its figures. `shown` is the model's last text, which is on the screen already."""
    colour, dry = status_colour(end.status), "dry run, " if end.is_dry_run else ""
    yield format_line(f"[bold {colour}]■ {dry}{end.status}[/]  [dim]{escape(facts)}[/]")
    if end.event and end.event["type"] == "agent.completed":
        outcome = end.event["payload"]["outcome"]
        if outcome != shown or width is None:
            yield _format_block(outcome, width)
        if end.result is not NO_RESULT:
            yield _format_block(json.dumps(end.result, ensure_ascii=False, indent=2), width)
    elif end.event:
        payload = end.event["payload"]
        yield format_line(f"  [yellow]{escape(payload['reason'])}[/]: ", payload["detail"])
    elif end.message:
        yield format_line(f"  [red]{end.kind}[/]: ", end.message)
    if end.handoff:
        yield _format_block(end.handoff, width, style="dim")
    yield from map(Text, map(render_visible, format_plan(end)))


def _format_reply(thought: run_events.ModelReplied, width: int | None) -> EventLines:
    reply, text = thought.reply, join_text_blocks(thought.reply.content)
    facts = join_facts(
        f"turn {thought.turn}",
        format_tokens(reply.usage),
        format_cost(reply.cost_usd or 0.0),
        format_seconds(reply.duration_ms / 1000),
        truncate(reply.model, 60),
        f"{reply.pieces} pieces" if reply.pieces > 1 else "",
    )
    in_line = f": {' '.join(text.split())}" if width is None and text else ""
    yield format_line(f"[bold cyan]◆ {thought.phase}[/]  [dim]{escape(facts)}[/]", in_line)
    yield from format_thinking(reply)
    yield from format_fallbacks(reply)
    for use in server_calls(reply.content):
        yield format_line("  [cyan]⌕[/] ", call_line(use["name"], use["input"]))
    for call in thought.calls:
        yield format_line("  [cyan]→[/] ", call)
    if text and width is not None:
        yield _format_block(text, width)
    if urls := cited_urls(reply.content):
        yield format_line("  [dim]cites[/] ", truncate(", ".join(urls), MAX_CITED), "dim")


def _format_call(called: run_events.ToolCallFinished, width: int | None) -> EventLines:
    call, outcome = called.call, called.outcome
    again = f" · attempt {call.attempt}" if call.attempt > 1 else ""
    lost = " · after its worker was lost" if outcome.interrupted else ""
    facts = f"step {call.step} · {format_seconds(outcome.duration_ms / 1000)}{again}{lost}"
    mark, line = result_mark(is_good=outcome.status == "ok"), call_line(call.tool, call.arguments or {})
    if width is None:
        yield format_line(f"  {mark} {escape(line)}  {facts}: ", _format_outcome(outcome, PLAIN_PREVIEW_LENGTH))
        yield from _format_files(outcome.media)
        return
    yield format_line(f"  {mark} {escape(fit_line(line, max(width - len(facts) - 7, 20)))}  [dim]{facts}[/]")
    if preview := _format_outcome(outcome, width - 5):
        yield _format_block(preview, width, 4, "dim")
    yield from _format_files(outcome.media)


def _format_refusal(refused: run_events.ToolCallRefused) -> RenderableType:
    step = f"  [dim]step {refused.step}[/]" if refused.step else ""
    line = f"  [red]✗[/] {escape(truncate(refused.call, 100))}{step}  {escape(refused.error.kind)}: "
    return format_line(line, truncate(refused.error.message, 300))


def _format_files(files: Iterable[Attachment | StoredMedia]) -> EventLines:
    """Yield a line for each image or PDF of a message or a result, without the path to it."""
    for file in files:
        kind = "PDF" if file.media_type == PDF else "image" if file.media_type else "file"
        size = f"  {format_bytes(file.bytes)}" if isinstance(file, StoredMedia) else ""
        name = (file.name or file.path or "").rpartition("/")[2]
        yield format_line(f"    [cyan]▣[/] {kind} ", f"{truncate(name, 100)}{size}")


def format_bytes(size: int) -> str:
    """Format a size: "1.2 MB", "310 kB", "80 bytes"."""
    for unit, name in ((10**6, "MB"), (1000, "kB")):
        if size >= unit:
            return f"{size / unit:.{0 if size >= 10 * unit else 1}f} {name}"
    return f"{size} bytes"


def result_mark(*, is_good: bool) -> str:
    """Return the markup of a tick or a cross."""
    return "[green]✓[/]" if is_good else "[red]✗[/]"


def format_planned(notice: dict[str, Any]) -> str:
    """Format who has approved a planned call: "ann, by the plan of dry-1"."""
    return f"{notice['by'] or 'who started the run'}, by the plan of {notice['plan']}"


def _format_notice(notice: dict[str, Any]) -> str:
    """Format a notice. A full context has none: the compaction has its own line."""
    if notice["event"] == run_events.PLANNED:
        call, plan = truncate(notice["call"], 100), truncate(format_planned(notice), 300)
        return f"[cyan]✓[/] {escape(call)}  [dim]step {notice['step']}[/]  approved by {escape(plan)}"
    if notice.get("ladder") == "thrash":
        return f"[yellow]![/] loop detected: {RUNG_TEXTS[notice['stage']]}"
    return "" if "ladder" in notice else "[yellow]![/] the time limit is reached: one last turn"


def _format_compaction(summary: Summary) -> str:
    if not summary.tail:
        return "there was nothing to summarise"
    messages = f"{summary.before_messages} → {summary.after_messages} messages"
    tokens = f"about {summary.before_tokens:,} → {summary.after_tokens:,} tokens"
    method = f"summarised by {summary.model}" if summary.model else "truncated without a summary"
    return escape(f"{messages}, {tokens}: {method}")


def _format_outcome(outcome: ToolOutcome, width: int) -> str:
    """Format a call's result as a line of `width` columns; an error may be longer."""
    if outcome.error:
        return f"{outcome.error.kind}: {truncate(outcome.error.message)}"
    if isinstance(outcome.result, dict) and "artifact_path" in outcome.result:
        return fit_line(f"{outcome.result.get('bytes', 0):,} bytes in {outcome.result['artifact_path']}", width)
    text = outcome.result if isinstance(outcome.result, str) else json.dumps(outcome.result, ensure_ascii=False)
    line = fit_line(text, width)
    if not line.endswith("…"):
        return line
    size = f"  ({len(text):,} characters)"
    return fit_line(text, max(width - len(size), 10)) + size
