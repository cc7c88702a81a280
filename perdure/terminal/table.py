"""The output of `perdure list`: runs that wait for a person, then the others. Ids are never truncated."""

import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from perdure.client.run_list import Found
from perdure.terminal.report import age, on_one_line, status_colour

GAP = 2
LEAST_TOLD = 12  # minimum width of the last column
HEADINGS = ("run", "status", "agent", "age")
MARK = "human: "
# Texts of `decisions.text.formatting.waiting_for` for questions that need more context than their first line.
TO_SEE = ("approve ", "settle ", "going in circles", "losing context")


def print_list(console: Console, waiting: list[Found], others: list[Found]) -> None:
    if waiting:
        console.print("[bold]waits for a person[/]")
    for run in waiting:
        _say(console, *_asking(run, console.width))
    if waiting and others:
        console.print()
    rows = [_cells(run) for run in others]
    if not rows:
        return
    last = "waits for" if any(row[-1] for row in rows) else ""
    table = [tuple(Text(heading, style="bold") for heading in (*HEADINGS, last)), *rows]
    widths = [max(cell.cell_len for cell in cells) + GAP for cells in zip(*table, strict=True)]
    remaining = console.width - sum(widths[:-1])
    if console.is_terminal and remaining < (LEAST_TOLD if last else -GAP):
        # Too narrow: the id has its own line, above the rest. A pipe still gets one line per run.
        for run_id, *rest in rows:
            _say(console, run_id, _line([Text(), *rest], [GAP, *widths[1:]], console.width))
    else:
        _say(console, *(_line(row, widths, max(console.width, sum(widths[:-1]) + LEAST_TOLD)) for row in table))


def _say(console: Console, *lines: Text) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _asking(run: Found, width: int) -> tuple[Text, Text, Text]:
    """Return the lines of a run that waits for a person: the run, its question, and the command to answer it."""
    run_id, asked = on_one_line(run.run_id), on_one_line(run.waiting_for).removeprefix(MARK)
    wedged = (" (wedged)", "red") if run.is_wedged else ""
    about = "  ".join(filter(None, (on_one_line(run.agent), age(run.execution.start_time))))
    head = Text.assemble((run_id, "bold yellow"), wedged, "  ", (about, "dim"))
    question = Text(f"  {asked}")
    question.truncate(width, overflow="ellipsis")
    # A person must see a call before they approve it: `show` prints the call, and the commands to decide.
    command = "perdure show {}" if asked.startswith(TO_SEE) else 'perdure answer {} "…"'
    return head, question, Text(f"  {command.format(shlex.quote(run_id))}", style="dim")


def _cells(run: Found) -> tuple[Text, ...]:
    status = Text(run.status, style=status_colour(run.status))
    if run.is_wedged:
        status.append(" (wedged)", style="red")
    words = (run.agent, age(run.execution.start_time), run.waiting_for)
    return Text(on_one_line(run.run_id)), status, *(Text(on_one_line(word)) for word in words)


def _line(cells: Iterable[Text], widths: list[int], width: int) -> Text:
    line = Text()
    for cell, cell_width in zip(cells, widths, strict=True):
        line.append_text(cell).append(" " * (cell_width - cell.cell_len))
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    return line
