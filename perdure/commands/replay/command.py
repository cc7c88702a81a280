"""`perdure replay`: past runs tried with another policy, model or agent. No tool is called, and no person is asked."""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from temporalio.client import Client

from activities.model.transcript_cache import TranscriptCache
from activities.policy import PolicyChecks
from activities.project import Project
from activities.storage.store import LocalStores
from contracts.agent import DEFAULT_AGENT
from contracts.run.export import Export
from perdure.client.errors import RejectedError
from perdure.client.records.export import Exporter
from perdure.client.run_list import RunFilter, list_past_runs
from perdure.commands.policy.replay import ReplayedCall, count_unfaithful, print_rows, replay_policy
from perdure.session import Needs, open_session
from perdure.terminal.command import DurationType, as_json_option, async_command, console, format_examples, print_error
from settings import Settings, load_settings

if TYPE_CHECKING:
    from perdure.commands.replay.candidate import Candidate
    from perdure.commands.replay.columns import Comparison

R = TypeVar("R")
ReplayEach = Callable[[Callable[[Export], Awaitable[R]]], Awaitable[list[R]]]
AGENT_FILE = ".md"


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
    from perdure.process.project import display_project

    async with open_session(settings, Needs.nothing) as session, display_project(settings) as project:
        exporter = Exporter(session.client, project.stores, LocalStores(settings.workspaces), asks=False)
        listed = list_past_runs(session.client, RunFilter(since=since, agent=next(iter(names), None), limit=limit))
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
    from perdure.commands.evaluate.cases import read_cases
    from perdure.commands.evaluate.evaluate import check_case_tools
    from perdure.commands.replay.candidate import Candidate
    from perdure.commands.replay.play import Beyond

    file, cases = next(iter(files), None), read_cases(path) if path else []
    settings.with_candidate(DEFAULT_AGENT, file, model).check_models()  # before a server starts
    await check_case_tools(cases, settings)
    return Candidate(settings, file, model, Beyond(beyond), cases)


async def _replay_each(
    exporter: Exporter, names: Sequence[str], replay: Callable[[Export], Awaitable[R]], *, is_one: bool
) -> list[R]:
    """Return the results of the runs. Of several runs, one that cannot be replayed is reported and left out."""
    results = list[R]()
    for name in names:
        try:
            results.append(await replay(await exporter.export(name)))
        except RejectedError as error:
            if is_one:
                raise
            print_error(str(error))
    return results


async def _try_policy(
    file: Path, client: Client, project: Project, replay_each: ReplayEach[list[ReplayedCall]], *, as_json: bool
) -> int:
    from settings.policy import read_policy

    policy, checks = read_policy(file), PolicyChecks(TranscriptCache(client, project.stores), project)
    runs = await replay_each(lambda record: replay_policy(record, policy, checks, project))
    rows = [row for run in runs for row in run]
    print_rows(rows, len(runs), as_json=as_json)
    return 1 if count_unfaithful(rows) else 0


async def _try_candidate(
    candidate: "Candidate", project: Project, replay_each: ReplayEach["Comparison"], *, as_json: bool
) -> int:
    from perdure.commands.replay.candidate import open_stage, replay_run
    from perdure.commands.replay.recording import must_be_replayable
    from perdure.commands.replay.report import comparison_to_json, print_comparison

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
