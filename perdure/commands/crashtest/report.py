"""The report of a crash test: the table of kills, JSON, and JUnit XML."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decisions.evaluation import case_name
from perdure.commands.crashtest.crash import CrashReport
from perdure.commands.crashtest.kills import EventRow, KillPoint

_COLOURS = {"same": "green", "asked": "yellow", "DIFFERS": "bold red"}
NOT_PLAYED = "-"


def print_crash_report(console: Console, report: CrashReport) -> None:
    for reason in report.failed:
        console.print(f"[red]✗[/] the play without a kill: {escape(reason)}", soft_wrap=True)
    if report.rows and not report.failed:
        console.print(_build_table(report))
    findings = Counter(finding for verdict in report.verdicts.values() for finding in verdict.findings)
    for finding, count in findings.most_common():
        console.print(f"[red]✗[/] {escape(finding)}  [dim]({count} of {len(report.points)} kills)[/]", soft_wrap=True)
    asked = {line for verdict in report.verdicts.values() for line in verdict.asked}
    for line in sorted(asked):
        console.print(f"[yellow]?[/] a person was asked: {escape(line)}", soft_wrap=True)
    colour, word = ("green", "passed") if report.has_passed else ("red", "not passed")
    of = f" of {report.planned}, seed {report.seed}" if len(report.points) < report.planned else ""
    played = f"{len(report.points)} kills{of}, {len(report.rows)} events, {report.seconds:.0f} s"
    console.print(f"[bold {colour}]{word}[/]: {escape(case_name(report.case))}  [dim]{played}[/]", soft_wrap=True)
    if not report.has_passed:
        console.print(f"[dim]the plays and their logs: {report.folder}[/]", soft_wrap=True)


def _build_table(report: CrashReport) -> Table:
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


def _format_word(report: CrashReport, point: KillPoint | None) -> str:
    word = _word_of(report, point)
    return f"[{_COLOURS[word]}]{word}[/]" if word in _COLOURS else word


def _word_of(report: CrashReport, point: KillPoint | None) -> str:
    return report.verdicts[point].word if point in report.verdicts else NOT_PLAYED


def _camel(kind: str) -> str:
    return "".join(map(str.capitalize, kind.split("_")))


def crash_report_to_json(report: CrashReport) -> dict[str, Any]:
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


def crash_report_to_junit(report: CrashReport) -> str:
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


def _junit_cases(report: CrashReport) -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "without a kill", report.failed, 0.0
    for point, verdict in report.verdicts.items():
        of = f" of {point.moment.subtask}" if point.moment.subtask else ""
        name = f"{point.target} killed, {point.moment.kind} {point.moment.at}{of}"
        yield name, verdict.findings, verdict.seconds
