"""The reports: tables, JSON, and JUnit XML."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perdure.decisions.text.formatting import truncate
from perdure.features.proof.contract import Case, CaseResult, EventRow, KillPoint, ReplayedCall, Score
from perdure.features.proof.rules import case_name, count_unfaithful, pass_rate
from perdure.terminal.command import print_error
from perdure.terminal.progress import format_count

if TYPE_CHECKING:
    from perdure.features.proof.case import GoldenSet
    from perdure.features.proof.crashtest import CrashReport
    from perdure.features.proof.replay import Column, Comparison


MAX_NAMED = 3  # runs that a line about several names
MAX_OUTCOME = 200  # characters of an outcome
NOT_PLAYED = "-"
_WORDS = {"same": "green", "asked": "yellow", "DIFFERS": "bold red"}
_MARKS = {"✓": "green", "✗": "red", "!": "yellow", "?": "yellow"}


def _print_line(console: Console, mark: str, text: str, detail: str = "") -> None:
    dimmed = f"  [dim]{escape(detail)}[/]" if detail else ""
    console.print(f"[{_MARKS[mark]}]{mark}[/] {escape(text)}{dimmed}", soft_wrap=True)


def _print_verdict(console: Console, text: str, detail: str, *, has_passed: bool) -> None:
    colour, verdict = ("green", "passed") if has_passed else ("red", "not passed")
    console.print(f"[bold {colour}]{verdict}[/]: {escape(text)}  [dim]{escape(detail)}[/]", soft_wrap=True)


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
    detail = f"{score.run_id} · {score.seconds:.1f} s"
    _print_line(console, "✓" if score.has_passed else "✗", case_name(result.case), detail)
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
    rate, usd = pass_rate(all_scores), _format_total(all_scores)
    spent = f"{sum(score.facts.tokens for score in all_scores):,} tokens, {usd} in all"
    passed = f"{rate:.0%} of {len(results)} runs, {min_pass:.0%} needed"
    _print_verdict(console, passed, spent, has_passed=rate >= min_pass)


def _format_total(scores: Sequence[Score]) -> str:
    known = [score.facts.cost_usd for score in scores if score.facts.cost_usd is not None]
    if not known:
        return "USD unknown (a model has no price in [prices])"
    unknown = len(scores) - len(known)
    rest = f" and {format_count(unknown, 'run')} with a model without a price in [prices]" if unknown else ""
    return f"USD {sum(known):.4f}{rest}"


def _format_cells(scores: Sequence[Score]) -> tuple[str, ...]:
    figures = _mean_figures(scores)
    cost = "" if figures["cost_usd"] is None else f"{figures['cost_usd']:.4f}"
    passed = f"{figures['passed']} of {figures['runs']}"
    return passed, f"{figures['steps']:.1f}", f"{figures['tokens']:,.0f}", cost, f"{figures['seconds']:.1f}"


def print_golden_set(console: Console, golden: "GoldenSet") -> None:
    if count := len(golden.written):
        console.print(
            f"written: {count} case{'' if count == 1 else 's'} in {golden.folder}", soft_wrap=True, markup=False
        )
    for case in golden.written:
        if case.redacted:
            console.print(f"redacted in {case.file}: {', '.join(case.redacted)}", soft_wrap=True, markup=False)
        if case.gone:
            console.print(
                f"not expected in {case.file}, as the project has no such tool: {', '.join(case.gone)}",
                soft_wrap=True,
                markup=False,
            )
    by_reason: dict[str, list[str]] = {}
    for run_id, reason in golden.left_out.items():
        by_reason.setdefault(reason, []).append(run_id)
    for reason, runs in by_reason.items():
        more = f" and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
        print_error(f"left out {', '.join(runs[:MAX_NAMED])}{more}: {reason}")
    if not golden.written and not golden.left_out:
        print_error("no run matches")


def print_crash_report(console: Console, report: "CrashReport") -> None:
    for reason in report.failed:
        _print_line(console, "✗", f"the play without a kill: {reason}")
    if report.rows and not report.failed:
        console.print(_build_kill_table(report))
    findings = Counter(finding for verdict in report.verdicts.values() for finding in verdict.findings)
    for finding, count in findings.most_common():
        _print_line(console, "✗", finding, f"({count} of {len(report.points)} kills)")
    asked = {line for verdict in report.verdicts.values() for line in verdict.asked}
    for line in sorted(asked):
        _print_line(console, "?", f"a person was asked: {line}")
    of = f" of {report.planned}, seed {report.seed}" if len(report.points) < report.planned else ""
    played = f"{len(report.points)} kills{of}, {len(report.rows)} events, {report.seconds:.0f} s"
    _print_verdict(console, case_name(report.case), played, has_passed=report.has_passed)
    if not report.has_passed:
        console.print(f"[dim]the plays and their logs: {report.folder}[/]", soft_wrap=True)


def _build_kill_table(report: "CrashReport") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("event", justify="right")
    table.add_column("", overflow="ellipsis", no_wrap=True)
    for heading in ("before", "after", "server"):
        table.add_column(heading, no_wrap=True)
    for row in report.rows:
        label = f"{_camel(row.type)} [dim]{escape(row.label)}[/]"
        table.add_row(
            f"{escape(row.subtask)} {row.event}".strip(),
            label,
            *(_format_word(report, point) for point in _points_of(row)),
        )
    return table


def _points_of(row: EventRow) -> tuple[KillPoint | None, ...]:
    return row.before, row.after, row.server


def _format_word(report: "CrashReport", point: KillPoint | None) -> str:
    word = _word_of(report, point)
    return f"[{_WORDS[word]}]{word}[/]" if word in _WORDS else word


def _word_of(report: "CrashReport", point: KillPoint | None) -> str:
    return report.verdicts[point].word if point in report.verdicts else NOT_PLAYED


def _camel(kind: str) -> str:
    return "".join(map(str.capitalize, kind.split("_")))


def crash_report_to_json(report: "CrashReport") -> dict[str, Any]:
    """Return the report as JSON. Events that the server writes together share a kill."""
    return {
        "case": case_name(report.case),
        "passed": report.has_passed,
        "failed": report.failed,
        "seed": report.seed,
        "kills": len(report.points),
        "possible_kills": report.planned,
        "seconds": round(report.seconds, 1),
        "whole": report.whole.model_dump(mode="json", exclude={"tools", "was_killed", "doubts", "error"}),
        "folder": None if report.has_passed else str(report.folder),
        "events": [
            {
                "subtask": row.subtask or None,
                "event": row.event,
                "type": _camel(row.type),
                "label": row.label,
                **dict(zip(("before", "after", "server"), (_word_of(report, p) for p in _points_of(row)), strict=True)),
            }
            for row in report.rows
        ],
        "verdicts": [
            {"kill": point.name, "verdict": verdict.word, **verdict.model_dump(include={"findings", "asked"})}
            for point, verdict in report.verdicts.items()
        ],
    }


def crash_report_to_junit(report: "CrashReport") -> str:
    """Return JUnit XML with a test case for each kill, and one for the play without a kill."""
    cases = list(_junit_cases(report))
    failures = sum(bool(reasons) for _, reasons, _ in cases)
    suite = ET.Element(
        "testsuite",
        {
            "name": f"crashtest {case_name(report.case)}",
            "tests": str(len(cases)),
            "failures": str(failures),
            "time": f"{report.seconds:.1f}",
        },
    )
    for name, reasons, seconds in cases:
        case = ET.SubElement(
            suite, "testcase", {"classname": case_name(report.case), "name": name, "time": f"{seconds:.1f}"}
        )
        if reasons:
            ET.SubElement(case, "failure", {"message": reasons[0]}).text = "\n".join(reasons)
    ET.indent(suite)
    return ET.tostring(suite, "unicode", xml_declaration=True)


def _junit_cases(report: "CrashReport") -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "without a kill", report.failed, 0.0
    for point, verdict in report.verdicts.items():
        of = f" of {point.moment.subtask}" if point.moment.subtask else ""
        name = f"{point.target} killed, {point.moment.kind} {point.moment.at}{of}"
        yield name, verdict.findings, verdict.seconds


def print_comparison(console: Console, comparison: "Comparison") -> None:
    observed, _, candidate = comparison.columns
    console.print(f"[bold]{escape(observed.record.run_id)}[/]", soft_wrap=True)
    console.print(_build_column_table(comparison))
    for name in comparison.changed:
        _print_line(console, "!", f"{name} of the agent changed since the run")
    for line in comparison.differences:
        _print_line(console, "✗", f"not faithful: {line}")
    for departure in candidate.left:
        place = f"step {departure.step}: " if departure.step else ""
        _print_line(console, "!", f"not in the record: {place}{departure.call}")
    for line in () if candidate.has_stopped else comparison.unmade:
        _print_line(console, "!", f"not called any more: {line}")
    for line in candidate.why or ():
        _print_line(console, "✗", f"candidate: {line}")
    for column in (observed,) if candidate.has_stopped else (observed, candidate):
        text = truncate(" ".join(column.facts.text.split()), MAX_OUTCOME)
        console.print(f"{column.name}: {escape(text)}", soft_wrap=True)


def _build_column_table(comparison: "Comparison") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in comparison.columns:
        table.add_column(column.name, no_wrap=True)
    cells = [_cells_of(column) for column in comparison.columns]
    for name in cells[0]:
        table.add_row(name, *(escape(column[name]) for column in cells))
    return table


def _cells_of(column: "Column") -> dict[str, str]:
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


def comparison_to_json(comparison: "Comparison") -> dict[str, Any]:
    return {
        "run_id": comparison.observed.record.run_id,
        "passed": comparison.has_passed,
        "differences": comparison.differences,
        "changed": comparison.changed,
        "not_called": comparison.unmade,
        "columns": [_column_to_json(column) for column in comparison.columns],
    }


def _column_to_json(column: "Column") -> dict[str, Any]:
    return {
        "column": column.name,
        "models": column.models,
        **column.facts.model_dump(include={"status", "text", "result", "steps", "tokens", "cost_usd"}),
        "turns": column.turns,
        "calls": [{"step": call.step, "tool": call.tool, "call": call.digest} for call in column.record.calls],
        "not_in_record": [{"step": departure.step, "call": departure.call} for departure in column.left],
        "failed_checks": column.why,
    }


def print_verdicts(console: Console, rows: Sequence[ReplayedCall], runs: int) -> None:
    if rows:
        click.echo(f"{'call':<8} {'observed':<9} {'then':<6} {'again':<6} {'now':<6} rule")
    for row in rows:
        place = f"{row.run_id} step {row.step}" if runs > 1 else f"step {row.step}"
        verdicts = f"{row.observed:<9} {row.verdict:<6} {row.as_it_was:<6} {row.candidate:<6}"
        console.print(
            f"{place}  {verdicts}  {row.rule or ''}  {row.call}", soft_wrap=True, markup=False, highlight=False
        )
    counts = Counter(row.candidate for row in rows)
    asked, allowed, denied, reviewed = (counts[verdict] for verdict in ("ask", "allow", "deny", "review"))
    reviews = f", {reviewed} for a reviewer" if reviewed else ""
    counted = f"{runs} run{'' if runs == 1 else 's'}, {len(rows)} call{'' if len(rows) == 1 else 's'}"
    console.print(f"{counted}: {asked} asked, {allowed} allowed, {denied} denied{reviews}")
    if differing := count_unfaithful(rows):
        console.print(f"[yellow]{differing} verdicts differ from their record: the replay is not faithful there[/]")
