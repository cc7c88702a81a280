"""Runs and tools as text for the terminal and as rows for JSON."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perdure.activities.run.outcome import RunEnd
from perdure.client.details import ListedSubtask, RunDetails, RunRecord
from perdure.client.run_list import RunInfo
from perdure.contracts.agent import Agent
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus, RunView
from perdure.decisions.ids import QUESTION_PREFIX
from perdure.decisions.people.terms import format_sent_by
from perdure.decisions.run.outcome import event_text, parse_handoff
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import MEND_ADVICE, format_duration, format_unknown_cost, split_waits, truncate
from perdure.decisions.text.visible_text import render_visible
from perdure.terminal.progress import format_cost, format_count, format_searches

if TYPE_CHECKING:
    from perdure.activities.tools.interface import Tool

COLUMN_GAP = 2
MIN_LAST_COLUMN = 12  # minimum width of the last column
LIST_HEADINGS = ("run", "status", "agent", "age")
HUMAN_PREFIX = "human: "
# Texts of `waiting_for_person` for questions that need more context than their first line.
CONTEXT_PREFIXES = ("approve ", "settle ", "going in circles", "losing context")
COLOURS = {
    RunStatus.completed: "green",
    RunStatus.escalated: "yellow",
    RunStatus.waiting_on_human: "yellow",
    RunStatus.waiting_on_tool: "cyan",
    RunStatus.running: "cyan",
    RunStatus.failed: "red",
    RunStatus.timed_out: "red",
    RunStatus.cancelled: "magenta",
}


def status_colour(status: str) -> str:
    return COLOURS.get(RunStatus(status), "white")


def print_list(console: Console, waiting: list[RunInfo], others: list[RunInfo]) -> None:
    """Print runs that wait for a person, then the others. Ids are never truncated."""
    if waiting:
        console.print("[bold]waits for a person[/]")
    for run in waiting:
        _print_texts(console, *_format_waiting_run(run, console.width))
    if waiting and others:
        console.print()
    rows = [_format_cells(run) for run in others]
    if not rows:
        return
    last = "waits for" if any(row[-1] for row in rows) else ""
    table = [tuple(Text(heading, style="bold") for heading in (*LIST_HEADINGS, last)), *rows]
    widths = [max(cell.cell_len for cell in cells) + COLUMN_GAP for cells in zip(*table, strict=True)]
    remaining = console.width - sum(widths[:-1])
    if console.is_terminal and remaining < (MIN_LAST_COLUMN if last else -COLUMN_GAP):
        # Too narrow: the id has its own line, above the rest. A pipe still gets one line per run.
        for run_id, *rest in rows:
            _print_texts(console, run_id, _join_cells([Text(), *rest], [COLUMN_GAP, *widths[1:]], console.width))
    else:
        _print_texts(
            console,
            *(_join_cells(row, widths, max(console.width, sum(widths[:-1]) + MIN_LAST_COLUMN)) for row in table),
        )


def _print_texts(console: Console, *lines: Text) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _format_waiting_run(run: RunInfo, width: int) -> tuple[Text, Text, Text]:
    """Return the lines of a run that waits for a person: the run, its question, and the command to answer it."""
    run_id, asked = to_one_line(run.run_id), to_one_line(run.waiting_for).removeprefix(HUMAN_PREFIX)
    wedged = (" (wedged)", "red") if run.is_wedged else (", held", "yellow") if run.is_held else ""
    about = "  ".join(filter(None, (to_one_line(run.agent), format_age(run.execution.start_time))))
    dry = ("  dry run", "yellow") if run.is_dry_run else ""
    head = Text.assemble((run_id, "bold yellow"), dry, wedged, "  ", (about, "dim"))
    question = Text(f"  {asked}")
    question.truncate(width, overflow="ellipsis")
    # A person must see a call before they approve it: `show` prints the call, and the commands to decide.
    is_shown = asked.startswith(CONTEXT_PREFIXES) or run.run_id.startswith(QUESTION_PREFIX)
    needs_context = is_shown or len(split_waits(run.waiting_for)) > 1
    command = "perdure show {}" if needs_context else 'perdure answer {} "…"'
    return head, question, Text(f"  {command.format(shlex.quote(run_id))}", style="dim")


def _format_cells(run: RunInfo) -> tuple[Text, ...]:
    status = Text(RunRecord.of(run).shown_status, style=status_colour(run.status))
    if run.is_wedged:
        status.append(" (wedged)", style="red")
    words = (run.agent, format_age(run.execution.start_time), run.waiting_for)
    return Text(to_one_line(run.run_id)), status, *(Text(to_one_line(word)) for word in words)


def _join_cells(cells: Iterable[Text], widths: list[int], width: int) -> Text:
    line = Text()
    for cell, cell_width in zip(cells, widths, strict=True):
        line.append_text(cell).append(" " * (cell_width - cell.cell_len))
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    return line


def print_tree(console: Console, subtasks: Iterable[ListedSubtask]) -> None:
    """Print the subtasks of a run, with their status, steps and cost."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(5):
        table.add_column(no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for run in subtasks:
        name = "  " * (run.depth - 1) + escape(run.run_id)
        table.add_row(
            name,
            f"[{status_colour(run.status)}]{run.status}[/]",
            escape(run.agent),
            format_count(run.steps, "step"),
            format_cost(run.cost_usd or 0.0),
            escape(run.waiting_for),
        )
    console.print("  delegated")
    console.print(Padding(table, (0, 0, 0, 4), expand=False))


def print_run(console: Console, details: RunDetails, files: Path) -> None:
    run, view, end = details.known, details.state, details.end
    colour, started = status_colour(run.status), format_age(run.started_at)
    console.print(f"[bold]{escape(run.run_id)}[/]  [{colour}]{run.shown_status}[/]  started {started} ago")
    if details.started_by is not None:
        sender = truncate(format_sent_by(details.started_by), 200)
        console.print(f"  by       {escape(sender)}", soft_wrap=True)
    if view is None and run.is_open:
        silent = "a wedged run does not answer" if run.wedged else "no worker answers now"
        old = f", {format_age(details.as_of)} old" if details.as_of else ""
        console.print(f"  [yellow]{silent}; this is what the server knows{old}[/]")
        console.print(f"  agent    {escape(run.agent)}")
        if run.waiting_for:
            console.print(f"  waits    {escape(run.waiting_for)}")
    if details.held_by is not None:
        held = details.held_by
        line = f"  [yellow]held[/]     {escape(held.why)}; before {held.activity}, for {format_age(held.since)}"
        console.print(line, soft_wrap=True)
    if run.wedged:
        console.print(f"  [red]wedged[/]   {escape(run.wedged_by)}: {MEND_ADVICE}", soft_wrap=True)
    if view is not None:
        _print_view(console, view, details.tasks)
    if end is not None:
        _print_end(console, end, files)
    elif view is not None and view.dry_run:
        calls = [call.model_dump(mode="json") for call in view.dry_calls]
        _print_lines(console, format_dry_calls(run.run_id, calls))
    if files.is_dir():
        console.print(f"  files    {format_path(files)}", soft_wrap=True)


def _print_view(console: Console, view: RunView, tasks: tuple[str, ...]) -> None:
    usage = view.usage
    unknown = view.cost_usd is None
    amount = format_unknown_cost(view.known_usd, view.unpriced) if unknown else format_cost(view.cost_usd or 0.0)
    cost = f", {escape(amount)}" if amount else ""
    reframes = f"{view.reframes} of {view.max_reframes} reframes"
    console.print(f"  goal     {escape(truncate(view.goal, 500))}")
    if view.parent:
        console.print(f"  for      {escape(view.parent)}")
    if view.origin:
        console.print(f"  from     {escape(view.origin)}")
    model = f", model {escape(view.model)}" if view.model else ""  # a run that has not begun has none
    console.print(f"  agent    {escape(view.agent)}{model}")
    console.print(f"  steps    {view.step} of {view.max_steps}, {format_count(view.turns, 'turn')}, {reframes}")
    estimated = " (estimated: the provider reports none)" if usage.is_estimated else ""
    console.print(
        f"  tokens   {usage.input + usage.cache_read + usage.cache_write:,} → {usage.output:,}{estimated}"
        f"{format_searches(usage)}{cost}"
    )
    if view.delegated:
        below = view.delegated.usd
        spent = f", {'USD unknown' if below is None else format_cost(below)}" if below != 0 else ""
        console.print(f"  subtasks {view.delegated.steps} steps, {view.delegated.tokens:,} tokens{spent}")
    if view.answer_keys:
        console.print(f"  answers  must be signed with key {escape(' or '.join(view.answer_keys))}")
    _print_pending(console, view, tasks)
    for question in view.questions:
        _print_question(console, view.run_id, question)
    if sum(question.kind == QuestionKind.approval for question in view.questions) > 1:
        console.print(f"           perdure approve {escape(view.run_id)} --all", soft_wrap=True)
    for notice in view.ignored[-3:]:
        console.print(f"  ignored  {escape(notice)}")


def _print_pending(console: Console, view: RunView, tasks: tuple[str, ...]) -> None:
    for pending in view.pending:
        console.print(f"  pending  step {pending.step} {escape(pending.tool)}, since {format_age(pending.since)}")
        if pending.task and not tasks:
            console.print(f"           {escape(pending.task)}", soft_wrap=True)
    for task in tasks:
        console.print(f"           {escape(truncate(task, 500))}", soft_wrap=True)


def _print_question(console: Console, run_id: str, question: QuestionView) -> None:
    text = indent(render_visible(question.text), " " * 11).strip()
    console.print(f"  [yellow]asks[/]     [bold]{QUESTIONS[question.kind].title}:[/] {escape(text)}")
    if question.call:
        until = f", until {question.expires_at:%Y-%m-%d %H:%M:%S} UTC" if question.expires_at else ""
        console.print(f"           {question.id}, call {question.call}{until}")
    for terms in question.terms:
        others = f" but {' and '.join(terms.not_by)}" if terms.not_by else ""
        who = f"for {' or '.join(terms.approvers) or 'everyone'}{others}"
        approved_by = ", ".join(name or "one without a name" for name in terms.approved_by) or "none yet"
        console.print(f"           {escape(who)}, {terms.quorum} must approve; approved by: {escape(approved_by)}")
    if QUESTIONS[question.kind].is_textual and question.options:
        label = "suggestions" if QUESTIONS[question.kind].takes_own_words else "one of"
        console.print(f"           {label}: {escape(', '.join(map(to_one_line, question.options)))}", soft_wrap=True)
    for line in answer_commands(run_id, question):
        console.print(f"           {escape(line)}", soft_wrap=True)


def answer_commands(run_id: str, question: QuestionView) -> tuple[str, ...]:
    """Return the commands that answer a question."""
    if QUESTIONS[question.kind].is_textual:
        return (f'perdure answer {run_id} --question {question.id} "…"',)
    if question.kind == QuestionKind.approval:
        options = f"--question {question.id} --call {question.call}"
        return (f"perdure approve {run_id} {options}", f'perdure deny {run_id} {options} --reason "…"')
    command = f"perdure answer {run_id} --question {question.id}"
    decide = f"{command} --decision {'|'.join(question.options)}"
    return (decide, f'{command} "…"') if QUESTIONS[question.kind].takes_own_words else (decide,)


def _print_end(console: Console, end: RunEnd, files: Path) -> None:
    payload = end.event["payload"] if end.event else {}
    if end.event:
        console.print(f"  ended    {escape(event_text(end.event))}")
        if end.result is not NO_RESULT:
            console.print(
                f"  result   {escape(render_visible(json.dumps(end.result, ensure_ascii=False)))}", soft_wrap=True
            )
    elif end.message:
        console.print(f"  [red]{end.kind}[/]  {escape(end.message)}")
    if end.handoff:
        rows = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name, text in parse_handoff(end.handoff).items():
            rows.add_row(f"[dim]{escape(name)}[/]", Text(render_visible(text)))
        console.print("  handoff")
        console.print(Padding(rows, (0, 0, 0, 4), expand=False))
    for path in payload.get("artifacts", ()):
        console.print(f"  file     {format_path(files / path)}", soft_wrap=True)
    _print_lines(console, format_plan(end))


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(f"  {escape(render_visible(line))}", soft_wrap=True)


def format_plan(end: RunEnd) -> Iterator[str]:
    """Yield the calls that a dry run did not make, or how a run deviated from its plan."""
    payload = end.event["payload"] if end.event else {}
    if end.is_dry_run:
        yield from format_dry_calls(payload["run_id"], payload.get("dry_calls", ()))
    plan = payload.get("plan") or {}
    for name, title in (("missing", "planned and not made"), ("unplanned", "not planned")):
        if calls := plan.get(name):
            yield f"{title}:"
            yield from (f"  {call['step']}  {call['shown']}" for call in calls)


def format_dry_calls(run_id: str, calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the calls that a dry run did not make, with the command that makes them."""
    if not calls:
        yield "this dry run would have made no other call"
        return
    yield "this dry run would have made:"
    for call in calls:
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        yield f"  {call['step']}  {call['tool']}  {call['effect']}  {arguments}"
    yield f"to approve and make these calls: perdure run --plan {run_id}"


def tool_row(tool: "Tool", agents: list[Agent]) -> dict[str, Any]:
    """Return a row of the static tool table (A7)."""
    route = tool.route
    return {
        "tool": route.name,
        "kind": route.kind,
        "effect": route.effect,
        "approval": route.approval,
        "approval_timeout_seconds": route.approval_timeout.total_seconds() if route.approval_timeout else None,
        "timeout_seconds": route.timeout.total_seconds(),
        "agents": [agent.name for agent in agents if route.name in agent.tools],
        "description": tool.schema.description,
    }


def build_tool_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("tool", "kind", "effect", "approval", "timeout", "agents"):
        table.add_column(heading)
    for row in rows:
        timeout = row["approval_timeout_seconds"]
        approval = f"{row['approval']}, in {timeout:g} s" if timeout else row["approval"]
        plain = (row["tool"], row["kind"], row["effect"], approval, f"{row['timeout_seconds']:g} s")
        table.add_row(*plain, ", ".join(row["agents"]))
    return table


def format_age(since: datetime) -> str:
    """Format the time since `since`: "12 s", "3 min", "5 h", "2 d"."""
    return format_duration((datetime.now(UTC) - since).total_seconds())


def format_path(path: Path) -> str:
    """Format a path; below the current folder, relative to it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def to_one_line(text: str) -> str:
    """Return foreign text on one line, with hidden characters written out."""
    return " ".join(render_visible(text).split())
