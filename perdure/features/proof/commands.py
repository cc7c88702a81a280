"""`perdure eval`, `perdure crashtest` and `perdure replay`."""

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import yaml
from temporalio.client import Client

from perdure.client.door import check_start
from perdure.client.errors import RejectedError, RunNotFoundError, TemporalUnavailableError, UnreadableRunError
from perdure.client.run_list import RunFilter, list_past_runs
from perdure.codec import UnknownKeyError
from perdure.contracts.agent import DEFAULT_AGENT
from perdure.contracts.run.export import Export
from perdure.decisions.tools import builtin_names
from perdure.features.proof.case import (
    GoldenSet,
    case_start_event,
    check_case_tools,
    crash_case_of_run,
    read_cases,
    read_crash_case,
    write_file,
)
from perdure.features.proof.contract import Expectation, ReplayedCall, Target
from perdure.features.proof.evaluate import Evaluation
from perdure.features.proof.report import (
    comparison_to_json,
    crash_report_to_json,
    crash_report_to_junit,
    print_comparison,
    print_crash_report,
    print_golden_set,
    print_report,
    print_score,
    print_verdicts,
    report_to_json,
)
from perdure.features.proof.rules import count_unfaithful, pass_rate
from perdure.session import Needs, open_session
from perdure.settings import ProjectError, Settings, load_settings
from perdure.terminal.command import DurationType, as_json_option, async_command, console, format_examples, print_error
from perdure.terminal.completion import complete_agents
from perdure.terminal.follow import DETACHED, stop_event

if TYPE_CHECKING:
    from perdure.activities.project import Project
    from perdure.client.records.export import Exporter
    from perdure.features.proof.replay import Candidate, Comparison

R = TypeVar("R")
ReplayEach = Callable[[Callable[[Export], Awaitable[R]]], Awaitable[list[R]]]
AGENT_FILE = ".md"
UNUSABLE = (RejectedError, RunNotFoundError, UnknownKeyError, UnreadableRunError)  # reasons against one run of many
MAX_DEFAULT_JOBS = 16
JOBS_PER_CORE = 5  # a play waits for heartbeats most of the time
END_STATUSES = get_args(Expectation.model_fields["status"].annotation)
DEFAULT_REPEAT, DEFAULT_CONCURRENCY, DEFAULT_MIN_PASS = 1, 4, 1.0


@click.command(
    "eval",
    epilog=format_examples(
        "eval cases.yaml",
        "eval cases.yaml --repeat 5 --min-pass 0.9",
        "eval --from-runs --since 30d --agent clerk --output golden",
    ),
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--agent",
    shell_complete=complete_agents,
    help="The agent for cases that name no agent; with --from-runs: only its runs.",
)
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=DEFAULT_REPEAT, show_default=True, help="Runs per case."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100),
    default=DEFAULT_CONCURRENCY,
    show_default=True,
    help="Concurrent runs.",
)
@click.option(
    "--min-pass",
    type=click.FloatRange(0, 1),
    default=DEFAULT_MIN_PASS,
    show_default=True,
    help="Minimum share of runs that pass.",
)
@click.option(
    "--from-runs",
    "query",
    is_flag=False,
    flag_value="",
    metavar="[QUERY]",
    help="Make cases from past runs instead; QUERY is a list filter of Temporal.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="With --from-runs: a new folder.")
@click.option(
    "--since", type=DurationType(), metavar="TIME", help="With --from-runs: runs started within this time, such as 30d."
)
@click.option("--status", type=click.Choice(END_STATUSES), help="With --from-runs: only runs that ended so.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="With --from-runs: maximum number of runs.",
)
@as_json_option
@async_command()
async def eval_command(
    file: Path | None,
    agent: str | None,
    repeat: int,
    concurrency: int,
    min_pass: float,
    query: str | None,
    output: Path | None,
    since: timedelta | None,
    status: str | None,
    limit: int,
    as_json: bool,
) -> int:
    """Run a table of test goals and report the pass rate.

    FILE is YAML or JSON Lines (docs/evaluating.md): cases with a goal and the expected result; or a folder of such
    files. The runs are real, with real tools, and their cost is reported. An unexpected question fails the case, and
    its run is cancelled. The exit code is 1 if the pass rate is below --min-pass. Ctrl-C cancels all active runs.

    With --from-runs nothing is run: each past run becomes a case, and its secrets are redacted.
    """
    if query is not None and file is None:
        if output is None:
            raise click.UsageError("--from-runs requires --output")
        if (repeat, concurrency, min_pass) != (DEFAULT_REPEAT, DEFAULT_CONCURRENCY, DEFAULT_MIN_PASS):
            raise click.UsageError("--repeat, --concurrency and --min-pass are for running cases, not for --from-runs")
        return await _write_golden_set(RunFilter(query, since, agent, status), limit, output, as_json=as_json)
    if file is None or query is not None:
        raise click.UsageError("give either FILE or --from-runs")
    if output or since or status:
        raise click.UsageError("--output, --since and --status require --from-runs")
    return await _evaluate(file, agent, repeat, concurrency, min_pass, as_json=as_json)


async def _write_golden_set(only: RunFilter, limit: int, folder: Path, *, as_json: bool) -> int:
    """Make cases from past runs, report, and return the exit code."""
    golden = GoldenSet(load_settings(), folder)
    golden.make_folder()
    tools = await _tool_names(golden.settings)
    async with open_session(golden.settings, Needs.nothing) as session:
        with console.status("reading the runs …") as status:
            async for run in list_past_runs(session.client, only, limit):
                await golden.add(session.client, run.run_id, tools)
                status.update(f"{len(golden.written)} cases, {len(golden.left_out)} runs left out …")
    if as_json:
        click.echo(json.dumps({"written": list(map(asdict, golden.written)), "left_out": golden.left_out}))
    else:
        print_golden_set(console, golden)
    return 0 if golden.written else 1


async def _run_until(stop: asyncio.Event, work: Coroutine[Any, Any, R]) -> R | None:
    """Return the result of the work, or None if `stop` was set, which cancels it."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)


async def _tool_names(settings: Settings) -> set[str]:
    """Return the names of the project's tools, and of the built-in ones. Raises ProjectError."""
    from perdure.process.project import display_project

    async with display_project(settings) as project:
        return {*project.tools, *builtin_names()}


async def _evaluate(
    file: Path, agent: str | None, repeat: int, concurrency: int, min_pass: float, *, as_json: bool
) -> int:
    """Run the cases of the file, report, and return the exit code."""
    settings = load_settings()
    cases = read_cases(file)
    for case in cases:
        await check_start(case_start_event(case, agent, quiet=True).payload, settings)
    check_case_tools(cases, await _tool_names(settings))
    stop = stop_event()
    async with open_session(settings, Needs.work) as session:
        if warning := await session.missing_worker_message():
            raise TemporalUnavailableError(warning)
        if session.rehearsal_message:
            print_error(session.rehearsal_message)  # scores of the rehearsal model say nothing about an agent
        show = None if as_json else lambda result: print_score(console, result)
        evaluation = Evaluation(session, agent, asyncio.Semaphore(concurrency), show)
        results = await _run_until(stop, evaluation.run_cases(cases, repeat))
    if results is None:
        return DETACHED
    if as_json:
        click.echo(json.dumps(report_to_json(file, results, min_pass)))
    else:
        print_report(console, results, min_pass)
    return 0 if pass_rate([result.score for result in results]) >= min_pass else 1


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
        return await _write_case_of_run(file, from_run)
    from perdure.features.proof.crashtest import CrashOptions, CrashReport, CrashTest
    from perdure.features.proof.worker import remove_forks

    settings, case = load_settings(), read_crash_case(file)
    await check_start(case_start_event(case, None).payload, settings)
    targets = tuple(Target) if kill == "all" else (Target(kill),)
    jobs = jobs or min(MAX_DEFAULT_JOBS, JOBS_PER_CORE * (os.cpu_count() or 1))
    options = CrashOptions(targets, sample, secrets.randbelow(10**6) if seed is None else seed, jobs)
    stop = stop_event()
    with console.status("the play without a kill …") as status:

        def show(report: CrashReport) -> None:
            if report.points:
                status.update(f"{len(report.verdicts)} of {len(report.points)} kills …")

        try:
            report = await _run_until(stop, CrashTest(case, settings, options, show).run())
        finally:
            remove_forks()
    if report is None:
        return DETACHED
    if junit:
        write_file(junit, crash_report_to_junit(report), "w")
    if as_json:
        click.echo(json.dumps(crash_report_to_json(report)))
    else:
        print_crash_report(console, report)
    return 0 if report.has_passed else 1


async def _write_case_of_run(file: Path, run_id: str) -> int:
    """Write the case of a recorded run; its secrets are redacted. Raises ProjectError."""
    from perdure.activities.storage.store import LocalStores
    from perdure.client.records.export import Exporter

    settings = load_settings()
    async with open_session(settings, Needs.answers) as session:
        asks = session.ui is not None or await session.has_worker()
        exporter = Exporter(session.client, settings.stores, LocalStores(settings.workspaces), asks)
        record = await exporter.export(run_id)
    if not record.transcript.complete:
        raise ProjectError(f"the conversation of {run_id} is not complete: {'; '.join(record.missing)}")
    case = settings.secrets.redact_value(crash_case_of_run(record))
    write_file(file, yaml.safe_dump(case, sort_keys=False, allow_unicode=True), "x")
    console.print(f"written: {file}", soft_wrap=True, markup=False)
    return 0


@click.command(
    "replay",
    epilog=format_examples(
        "replay RUN --model claude-haiku-4-5",
        "replay RUN --agent drafts/clerk.md --case cases.yaml --beyond dry",
        "replay RUN --policy new.toml",
        "replay --policy new.toml --since 30d --agent clerk",
    ),
)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE", help="Try this policy. No model is asked.")
@click.option("--model", help="Try this model. It is called.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="FILE.md|NAME",
    help="Try the agent of this file; its model is called. A name, with --since: only runs of this agent.",
)
@click.option(
    "--case",
    "cases",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check each column by the cases of `perdure eval`: by the one with the run's goal, or the only one.",
)
@click.option(
    "--beyond",
    type=click.Choice(["stop", "dry"]),
    default="stop",
    show_default=True,
    help="At a call that the run did not make: stop, or go on with a stand-in for its result.",
)
@click.option(
    "--since",
    type=DurationType(),
    metavar="TIME",
    help="Instead of RUN: the runs started within this time, such as 30d.",
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Maximum number of runs."
)
@as_json_option
@async_command()
async def replay_command(
    run_id: str | None,
    policy: Path | None,
    model: str | None,
    agents: Sequence[str],
    cases: Path | None,
    beyond: str,
    since: timedelta | None,
    limit: int,
    as_json: bool,
) -> int:
    """Try a policy, a model or an agent on past runs.

    No tool is called and no person is asked: the record of the run answers. With --policy, each call has the verdict of
    its run, the same verdict evaluated again, and that of the policy. With --model or --agent FILE.md, the run is
    played as it was, then with the candidate, up to the first call that the run did not make. The exit code is 1 if a
    replay is not faithful, or if a candidate leaves the record and stops, fails, or does not pass its case.
    """
    files = [Path(agent) for agent in agents if agent.endswith(AGENT_FILE)]
    names = [agent for agent in agents if not agent.endswith(AGENT_FILE)]
    _must_fit(run_id, since, policy, model, files, names)
    settings = load_settings()
    candidate = None if policy else await _read_candidate(settings, files, model, beyond, cases)
    from perdure.activities.storage.store import LocalStores
    from perdure.client.records.export import Exporter
    from perdure.process.project import display_project

    async with display_project(settings) as project, open_session(settings, Needs.nothing) as session:
        exporter = Exporter(session.client, project.stores, LocalStores(settings.workspaces), asks=False)
        listed = list_past_runs(session.client, RunFilter(since=since, agent=next(iter(names), None)), limit)
        runs = [run_id] if run_id else [run.run_id async for run in listed]
        each = partial(_replay_each, exporter, runs, is_one=run_id is not None)
        if candidate is not None:
            return await _try_candidate(candidate, project, each, as_json=as_json)
        if policy is None:
            raise AssertionError("there is a policy or a candidate, see _must_fit")
        return await _try_policy(policy, session.client, project, each, as_json=as_json)


def _must_fit(
    run_id: str | None,
    since: timedelta | None,
    policy: Path | None,
    model: str | None,
    files: Sequence[Path],
    names: Sequence[str],
) -> None:
    """Raise UsageError if the options do not fit each other."""
    if (run_id is None) == (since is None):
        raise click.UsageError("give either RUN or --since")
    if bool(policy) == bool(model or files):
        raise click.UsageError("give what to try: either --policy, or --model or --agent FILE.md, or both of these")
    if len(files) > 1 or len(names) > 1:
        raise click.UsageError("give one --agent FILE.md, and one name of an agent")
    if names and since is None:
        raise click.UsageError(f"--agent {names[0]} selects runs, with --since; a file to try ends with {AGENT_FILE}")


async def _read_candidate(
    settings: Settings, files: Sequence[Path], model: str | None, beyond: str, path: Path | None
) -> "Candidate":
    from perdure.features.proof.replay import Beyond, Candidate

    file, cases = next(iter(files), None), read_cases(path) if path else []
    settings.with_candidate(DEFAULT_AGENT, file, model).check_models()  # before a server starts
    check_case_tools(cases, await _tool_names(settings))
    return Candidate(settings, file, model, Beyond(beyond), cases)


async def _replay_each(
    exporter: "Exporter", names: Sequence[str], replay: Callable[[Export], Awaitable[R]], *, is_one: bool
) -> list[R]:
    """Return the results of the runs. Of several runs, one that cannot be replayed is reported and left out."""
    results = list[R]()
    for name in names:
        try:
            results.append(await replay(await exporter.export(name)))
        except UNUSABLE as error:
            if is_one:
                raise
            print_error(str(error) if name in str(error) else f"run {name}: {error}")
    return results


async def _try_policy(
    file: Path, client: Client, project: "Project", replay_each: ReplayEach[list[ReplayedCall]], *, as_json: bool
) -> int:
    from perdure.activities.model.transcript_cache import TranscriptCache
    from perdure.activities.policy import PolicyChecks
    from perdure.features.proof.policy import replay_policy
    from perdure.settings.policy import read_policy

    policy, checks = read_policy(file), PolicyChecks(TranscriptCache(client, project.stores), project)
    runs = await replay_each(lambda record: replay_policy(record, policy, checks, project))
    rows = [row for run in runs for row in run]
    if as_json:
        for row in rows:
            click.echo(json.dumps(asdict(row)))
    else:
        print_verdicts(console, rows, len(runs))
    return 1 if count_unfaithful(rows) else 0


async def _try_candidate(
    candidate: "Candidate", project: "Project", replay_each: ReplayEach["Comparison"], *, as_json: bool
) -> int:
    from perdure.features.proof.replay import must_be_replayable, open_stage, replay_run

    async with AsyncExitStack() as closing:
        stages: list[tuple[Client, Path]] = []  # one, for the first run that can be replayed

        async def replay(record: Export) -> "Comparison":
            must_be_replayable(record, project)
            if not stages:
                stages.append(await closing.enter_async_context(open_stage()))
            comparison = await replay_run(record, project, candidate, *stages[0])
            if as_json:
                click.echo(json.dumps(comparison_to_json(comparison)))
            else:
                print_comparison(console, comparison)
            return comparison

        comparisons = await replay_each(replay)
    return 0 if all(comparison.has_passed for comparison in comparisons) else 1
