"""The output of `perdure list`: runs that wait for a person, then the others. Ids are never truncated."""

import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from perdure.client.run_list import RunInfo
from perdure.terminal.report import format_age, status_colour, to_one_line

COLUMN_GAP = 2
MIN_LAST_COLUMN = 12  # minimum width of the last column
LIST_HEADINGS = ("run", "status", "agent", "age")
HUMAN_PREFIX = "human: "
# Texts of `waiting_for_person` for questions that need more context than their first line.
CONTEXT_PREFIXES = ("approve ", "settle ", "going in circles", "losing context")


def print_list(console: Console, waiting: list[RunInfo], others: list[RunInfo]) -> None:
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
    wedged = (" (wedged)", "red") if run.is_wedged else ""
    about = "  ".join(filter(None, (to_one_line(run.agent), format_age(run.execution.start_time))))
    head = Text.assemble((run_id, "bold yellow"), wedged, "  ", (about, "dim"))
    question = Text(f"  {asked}")
    question.truncate(width, overflow="ellipsis")
    # A person must see a call before they approve it: `show` prints the call, and the commands to decide.
    command = "perdure show {}" if asked.startswith(CONTEXT_PREFIXES) else 'perdure answer {} "…"'
    return head, question, Text(f"  {command.format(shlex.quote(run_id))}", style="dim")


def _format_cells(run: RunInfo) -> tuple[Text, ...]:
    status = Text(run.status, style=status_colour(run.status))
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
