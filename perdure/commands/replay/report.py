"""The report of a replay: a table of three columns with what differs, and JSON."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decisions.text.formatting import truncate
from perdure.commands.replay.columns import Column, Comparison

MAX_OUTCOME = 200  # characters


def print_comparison(console: Console, comparison: Comparison) -> None:
    observed, _, candidate = comparison.columns
    console.print(f"[bold]{escape(observed.record.run_id)}[/]", soft_wrap=True)
    console.print(_build_table(comparison))
    for name in comparison.changed:
        console.print(f"[yellow]![/] {name} of the agent changed since the run", soft_wrap=True)
    for line in comparison.differences:
        console.print(f"[red]✗[/] not faithful: {escape(line)}", soft_wrap=True)
    for departure in candidate.left:
        place = f"step {departure.step}: " if departure.step else ""
        console.print(f"[yellow]![/] not in the record: {place}{escape(departure.call)}", soft_wrap=True)
    for line in () if candidate.has_stopped else comparison.unmade:
        console.print(f"[yellow]![/] not called any more: {escape(line)}", soft_wrap=True)
    for line in candidate.why or ():
        console.print(f"[red]✗[/] candidate: {escape(line)}", soft_wrap=True)
    for column in (observed,) if candidate.has_stopped else (observed, candidate):
        text = truncate(" ".join(column.facts.text.split()), MAX_OUTCOME)
        console.print(f"{column.name}: {escape(text)}", soft_wrap=True)


def _build_table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in comparison.columns:
        table.add_column(column.name, no_wrap=True)
    cells = [_cells_of(column) for column in comparison.columns]
    for name in cells[0]:
        table.add_row(name, *(escape(column[name]) for column in cells))
    return table


def _cells_of(column: Column) -> dict[str, str]:
    facts = column.facts
    return {
        "model": ", ".join(column.models),
        "end": "left the record" if column.has_stopped else facts.status,
        "turns": str(column.turns),
        "steps": str(facts.steps),
        "tokens": f"{facts.tokens:,}",
        "USD": "unknown" if facts.cost_usd is None else f"{facts.cost_usd:.4f}",
        **({} if column.why is None else {"checks": "not passed" if column.why else "passed"}),
    }


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "run_id": comparison.observed.record.run_id,
        "passed": comparison.has_passed,
        "differences": comparison.differences,
        "changed": comparison.changed,
        "not_called": comparison.unmade,
        "columns": [_column_to_json(column) for column in comparison.columns],
    }


def _column_to_json(column: Column) -> dict[str, Any]:
    return {
        "column": column.name,
        "models": column.models,
        **column.facts.model_dump(include={"status", "text", "result", "steps", "tokens", "cost_usd"}),
        "turns": column.turns,
        "calls": [{"step": call.step, "tool": call.tool, "call": call.digest} for call in column.record.calls],
        "not_in_record": [{"step": departure.step, "call": departure.call} for departure in column.left],
        "failed_checks": column.why,
    }
