"""The report of `perdure eval`: pass rates, and the cost of the runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from contracts.run.evaluation import Case, Score
from decisions.evaluation import case_name, pass_rate


@dataclass(frozen=True)
class CaseResult:
    """The result of one run of a case; `number` is the case's, from 1."""

    number: int
    case: Case
    score: Score


def _group_by_case(results: Sequence[CaseResult]) -> list[tuple[int, Case, list[Score]]]:
    groups = [list(group) for _, group in groupby(results, key=attrgetter("number"))]
    return [(group[0].number, group[0].case, [result.score for result in group]) for group in groups]


def report_to_json(file: Path, results: Sequence[CaseResult], min_pass: float) -> dict[str, Any]:
    """Return the report as JSON. The figures of a case are means over its runs; an unknown `cost_usd` is None."""
    cases = [
        {
            "case": number,
            "name": case_name(case),
            "agent": case.agent,
            **_mean_figures(scores),
            "results": [_score_row(score) for score in scores],
        }
        for number, case, scores in _group_by_case(results)
    ]
    total = _mean_figures([result.score for result in results])
    return {"file": str(file), "min_pass": min_pass, **total, "cases": cases}


def _mean_figures(scores: Sequence[Score]) -> dict[str, Any]:
    return {
        "runs": len(scores),
        "passed": sum(score.has_passed for score in scores),
        "rate": pass_rate(scores),
        "steps": mean(score.facts.steps for score in scores),
        "tokens": mean(score.facts.tokens for score in scores),
        "cost_usd": _combine_costs(scores, mean),
        "seconds": round(mean(score.seconds for score in scores), 3),
    }


def _score_row(score: Score) -> dict[str, Any]:
    return {
        "run_id": score.run_id,
        "passed": score.has_passed,
        "why": score.why,
        **score.facts.model_dump(include={"status", "text", "asked", "steps", "tokens", "cost_usd"}),
        "calls": score.facts.made,
        "seconds": round(score.seconds, 3),
    }


def _combine_costs(scores: Sequence[Score], of: Callable[[list[float]], float]) -> float | None:
    costs = [score.facts.cost_usd for score in scores]
    known = [cost for cost in costs if cost is not None]
    return of(known) if len(known) == len(costs) else None


def print_score(console: Console, result: CaseResult) -> None:
    """Print a line for a run, and one for each reason why it failed."""
    score = result.score
    mark = "[green]✓[/]" if score.has_passed else "[red]✗[/]"
    console.print(
        f"{mark} {escape(case_name(result.case))}  [dim]{score.run_id} · {score.seconds:.1f} s[/]", soft_wrap=True
    )
    for reason in score.why:
        console.print(f"    {escape(reason)}", soft_wrap=True)


def print_report(console: Console, results: Sequence[CaseResult], min_pass: float) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("case", overflow="ellipsis", no_wrap=True)
    for heading in ("passed", "steps", "tokens", "USD", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, case, scores in _group_by_case(results):
        table.add_row(f"{number} {escape(case_name(case))}", *_format_cells(scores))
    all_scores = [result.score for result in results]
    table.add_row("[bold]all[/]", *_format_cells(all_scores))
    console.print(table)
    rate, cost = pass_rate(all_scores), _combine_costs(all_scores, sum)
    usd = "USD unknown" if cost is None else f"USD {cost:.4f}"
    facts = f"{sum(score.facts.tokens for score in all_scores):,} tokens, {usd} in all"
    colour, verdict = ("green", "passed") if rate >= min_pass else ("red", "not passed")
    console.print(
        f"[bold {colour}]{verdict}[/]: {rate:.0%} of {len(results)} runs, {min_pass:.0%} needed  [dim]{facts}[/]"
    )


def _format_cells(scores: Sequence[Score]) -> tuple[str, ...]:
    figures = _mean_figures(scores)
    cost = "" if figures["cost_usd"] is None else f"{figures['cost_usd']:.4f}"
    passed = f"{figures['passed']} of {figures['runs']}"
    return passed, f"{figures['steps']:.1f}", f"{figures['tokens']:,.0f}", cost, f"{figures['seconds']:.1f}"
