"""How `list` looks: first what waits for a person and how to answer it, then the rest. No id is cut: ids are typed."""

import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from contracts.run.state import RunStatus
from perdure.client.run_list import Found
from perdure.terminal.report import COLOURS, age, on_one_line

GAP = 2
LEAST_TOLD = 12  # columns that are worth a word of what a run waits for
HEADINGS = ("run", "status", "agent", "age")
MARK = "human: "
# How `decisions.text.formatting.waiting_for` begins where a person has more to see than the question.
TO_SEE = ("approve ", "settle ", "going in circles", "losing context")


def print_list(console: Console, waiting: list[Found], others: list[Found]) -> None:
    if waiting:
        console.print("[bold]waits for a person[/]")
    for each in waiting:
        _say(console, *_asking(each, console.width))
    if waiting and others:
        console.print()
    rows = [_cells(each) for each in others]
    if not rows:
        return
    told = "waits for" if any(row[-1] for row in rows) else ""
    table = [tuple(Text(heading, style="bold") for heading in (*HEADINGS, told)), *rows]
    widths = [max(cell.cell_len for cell in cells) + GAP for cells in zip(*table, strict=True)]
    left = console.width - sum(widths[:-1])
    if console.is_terminal and left < (LEAST_TOLD if told else -GAP):
        # Too narrow: the id has a line of its own, and the rest is below. A program has one line a run all the same.
        for run, *rest in rows:
            _say(console, run, _line([Text(), *rest], [GAP, *widths[1:]], console.width))
    else:
        _say(console, *(_line(row, widths, max(console.width, sum(widths[:-1]) + LEAST_TOLD)) for row in table))


def _say(console: Console, *lines: Text) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _asking(each: Found, width: int) -> tuple[Text, Text, Text]:
    """A run that waits for a person, its question's first words, and how to answer it."""
    named = shlex.quote(on_one_line(each.run_id))
    wedged = (" (wedged)", "red") if each.is_wedged else ""
    asked = on_one_line(each.waiting_for).removeprefix(MARK)
    about = "  ".join(filter(None, (on_one_line(each.agent), age(each.execution.start_time))))
    head = Text.assemble((on_one_line(each.run_id), "bold yellow"), wedged, "  ", (about, "dim"))
    question = Text(f"  {asked}")
    question.truncate(width, overflow="ellipsis")
    # A call is approved by who has seen it, so `show` comes first there: it has the commands that decide.
    way = f"perdure show {named}" if asked.startswith(TO_SEE) else f'perdure answer {named} "…"'
    return head, question, Text(f"  {way}", style="dim")


def _cells(each: Found) -> tuple[Text, ...]:
    """Of a row: run, status, agent, age, what it waits for."""
    status = Text(each.status, style=COLOURS.get(RunStatus(each.status), "white"))
    if each.is_wedged:
        status.append(" (wedged)", style="red")
    words = (each.agent, age(each.execution.start_time), each.waiting_for)
    return Text(on_one_line(each.run_id)), status, *(Text(on_one_line(word)) for word in words)


def _line(cells: Iterable[Text], widths: list[int], width: int) -> Text:
    line = Text()
    for cell, wide in zip(cells, widths, strict=True):
        line.append_text(cell).append(" " * (wide - cell.cell_len))
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    return line
