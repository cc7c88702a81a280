"""`perdure crashtest`: kill an agent's worker and server at each event of its history, and compare the ends."""

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from perdure.commands.crashtest.kills import Target
from perdure.session import Needs, open_session
from perdure.terminal.command import as_json_option, async_command, console, format_examples
from perdure.terminal.follow import DETACHED, stop_event
from settings import ProjectError, load_settings

if TYPE_CHECKING:
    from perdure.commands.crashtest.crash import CrashReport

MAX_DEFAULT_JOBS = 16
JOBS_PER_CORE = 5  # a play waits for heartbeats most of the time


@click.command("crashtest", epilog=format_examples("crashtest tests/refund.yaml", "crashtest refund.yaml --sample 20"))
@click.argument("file", metavar="CASE", type=click.Path(path_type=Path))
@click.option("--sample", type=click.IntRange(1), help="Play this many of the kills, at random; by default all.")
@click.option("--seed", type=int, help="The seed of the sample; by default a random one, which is printed.")
@click.option("--jobs", type=click.IntRange(1, 64), help="Plays at a time; by default 5 for each core, at most 16.")
@click.option(
    "--kill",
    type=click.Choice([*Target, "all"]),
    default="all",
    show_default=True,
    help="The process to kill.",
)
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="A file to write JUnit XML to.")
@click.option("--from-run", metavar="RUN", help="Write CASE from this recorded run, and play nothing.")
@as_json_option
@async_command()
async def crashtest_command(
    file: Path,
    sample: int | None,
    seed: int | None,
    jobs: int | None,
    kill: str,
    junit: Path | None,
    from_run: str | None,
    as_json: bool,
) -> int:
    """Play a case whole, and once for each kill of its worker or server.

    CASE is a YAML or TOML file (docs/crashtest.md): a goal, the replies of the model, the answers of a person, and a
    command that counts what happened outside. The tools are real. Each play has its own copy of the project. The exit
    code is 1 if a play ends otherwise than the whole one.
    """
    if from_run is not None:
        return await _write_case(file, from_run)
    from perdure.commands.crashtest.case import read_crash_case
    from perdure.commands.crashtest.crash import CrashOptions, CrashReport, CrashTest
    from perdure.commands.crashtest.worker import remove_forks

    settings, case = load_settings(), read_crash_case(file)
    settings.check_agent(case.agent)
    targets = tuple(Target) if kill == "all" else (Target(kill),)
    jobs = jobs or min(MAX_DEFAULT_JOBS, JOBS_PER_CORE * (os.cpu_count() or 1))
    options = CrashOptions(targets, sample, secrets.randbelow(10**6) if seed is None else seed, jobs)
    stop = stop_event()
    with console.status("the play without a kill …") as status:

        def show(report: CrashReport) -> None:
            if report.points:
                status.update(f"{len(report.verdicts)} of {len(report.points)} kills …")

        playing = asyncio.create_task(CrashTest(case, settings, options, show).run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({playing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        is_complete = playing.done()
        for task in (playing, stopped):
            task.cancel()
        await asyncio.wait({playing, stopped})
        remove_forks()
        if not is_complete:
            return DETACHED
        report = playing.result()
    return _print_report(report, junit, as_json=as_json)


def _print_report(report: "CrashReport", junit: Path | None, *, as_json: bool) -> int:
    """Print the report, and write it to the file. Return the exit code."""
    from perdure.commands.crashtest.report import crash_report_to_json, crash_report_to_junit, print_crash_report

    if junit:
        _write_file(junit, crash_report_to_junit(report), "w")
    if as_json:
        click.echo(json.dumps(crash_report_to_json(report)))
    else:
        print_crash_report(console, report)
    return 0 if report.has_passed else 1


async def _write_case(file: Path, run_id: str) -> int:
    """Write the case of a recorded run; its secrets are redacted. Raises ProjectError."""
    from activities.storage.store import LocalStores
    from perdure.client.records.export import Exporter
    from perdure.commands.crashtest.case import case_from_run
    from perdure.process.project import display_project

    settings = load_settings()
    async with open_session(settings, Needs.answers) as session, display_project(settings) as project:
        asks = session.ui is not None or await session.has_worker()
        exporter = Exporter(session.client, project.stores, LocalStores(settings.workspaces), asks)
        record = await exporter.export(run_id)
    if not record.transcript.complete:
        raise ProjectError(f"the conversation of {run_id} is not complete: {'; '.join(record.missing)}")
    case = settings.secrets.redact_value(case_from_run(record))
    _write_file(file, yaml.safe_dump(case, sort_keys=False, allow_unicode=True), "x")
    console.print(f"written: {file}", soft_wrap=True, markup=False)
    return 0


def _write_file(path: Path, text: str, mode: str) -> None:
    """Write a file. Raises ProjectError."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from None
