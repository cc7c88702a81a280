"""`perdure list`, `show`, `trace` and `tools`."""

import dataclasses
import json
from pathlib import Path

import click
from rich.markup import escape

from activities.storage.workspace import folder_name
from contracts.run.state import RunStatus
from decisions import ids
from decisions.run.outcome import parse_handoff
from perdure.client.errors import NotSearchableError
from perdure.client.run_events import RunEnded, event_to_json
from perdure.client.run_list import (
    RunInfo,
    find_run,
    find_starter,
    find_workflow,
    iterate_runs,
    last_event_time,
    list_subtree,
)
from perdure.client.runs import follow_up_state, query_run_state, wait_for_run_end
from perdure.client.watch import Watch
from perdure.commands.export import STDOUT, export_run, file_type
from perdure.commands.mcp.servers import print_servers, print_unseen_servers
from perdure.commands.people.dead_letters import print_dead_letters
from perdure.session import Needs, Session, open_session
from perdure.terminal import report
from perdure.terminal.command import as_json_option, async_command, console, format_examples, run_argument
from perdure.terminal.run_view import RunScreen
from settings import Settings, load_settings


@click.command("list", epilog=format_examples("list", "list --waiting", "list --json | jq -r .run_id"))
@click.option("--waiting", is_flag=True, help="List only, and all, runs and follow-ups that wait for a person.")
@click.option("--follow-ups", is_flag=True, help="List follow-ups instead: work that resumes after an external result.")
@click.option("--dead", is_flag=True, help="List events that began nothing and notices that failed instead.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), help="Maximum number of rows; 30 by default, unlimited with --waiting."
)
@as_json_option
@async_command()
async def list_runs_command(waiting: bool, follow_ups: bool, dead: bool, limit: int | None, as_json: bool) -> int:
    """List runs: those that wait for a person first, then the latest.

    Subtasks and follow-ups that wait for a person are listed too. Each is shown with its question and the command to
    answer it. With --json, the latest is first.
    """
    if dead:
        return await print_dead_letters(as_json=as_json)
    limit = limit if limit or waiting else 30
    is_overview = not (waiting or follow_ups or as_json)
    async with open_session(load_settings(), Needs.nothing) as session:
        runs = [run async for run in iterate_runs(session.client, waiting=waiting, follow_ups=follow_ups, limit=limit)]
        asking, gap = await _list_waiting(session, limit) if is_overview else ([], "")
        is_any_open = any(run.is_open for run in (*runs, *asking))
        warning = await session.missing_worker_message() if is_any_open and not as_json else None
    if as_json:
        for run in runs:
            click.echo(json.dumps(report.run_row(run)))
    elif not runs and not asking:
        nothing = "no follow-ups yet" if follow_ups else 'no runs yet; start one: perdure run "…"'
        console.print("no run waits for a person" if waiting else nothing)
    else:
        first = {
            run.run_id: run for run in (*asking, *runs) if run.is_open and run.status == RunStatus.waiting_on_human
        }
        report.print_list(console, list(first.values()), [run for run in runs if run.run_id not in first])
        if is_overview and len(asking) == limit:
            console.print("[dim]more may wait for a person: perdure list --waiting[/]")
        for line in filter(None, (gap, warning)):
            console.print(f"[yellow]{escape(line)}[/]", soft_wrap=True)
    return 0


async def _list_waiting(session: Session, limit: int | None) -> tuple[list[RunInfo], str]:
    """Return the runs that wait for a person, or the reason why they cannot be listed."""
    try:
        return [run async for run in iterate_runs(session.client, waiting=True, limit=limit)], ""
    except NotSearchableError as error:
        return [], str(error)


@click.command("show", epilog=format_examples("show RUN", "show wf:FOLLOW-UP", "show RUN --json | jq .question"))
@run_argument
@as_json_option
@async_command()
async def show_command(run_id: str, as_json: bool) -> int:
    """Show a run: status, question, steps, cost and files.

    RUN can also be a follow-up, as wf:ID.
    """
    settings = load_settings()
    if run_id.startswith(ids.FOLLOW_UP_PREFIX):
        return await _show_follow_up(settings, run_id, as_json=as_json)
    async with open_session(settings, Needs.answers) as session:
        run = await find_run(session.client, run_id)
        view = await query_run_state(session.client, run_id)
        end = None if run.is_open else await wait_for_run_end(session.client, run_id)
        as_of = None if view else await last_event_time(session.client, run)
        tree = await list_subtree(session.client, run)
        starter = await find_starter(session.client, run)
    if as_json:
        fields = view.model_dump(mode="json") if view else report.run_row(run)
        fields |= {"as_of": as_of.isoformat()} if as_of else {}
        fields |= {
            "end": dataclasses.asdict(end) if end else None,
            "handoff": parse_handoff(end.handoff) or None if end else None,
            "subtasks": [report.subtask_row(depth, run) for depth, run in tree],
            "started_by": starter.model_dump(mode="json") if starter else None,
        }
        click.echo(json.dumps(fields))
    else:
        files = settings.workspaces / folder_name(run.run_id)
        report.print_run(console, run, view, end, files, as_of=as_of, starter=starter)
        if tree:
            report.print_tree(console, tree)
    return 0


async def _show_follow_up(settings: Settings, run_id: str, *, as_json: bool) -> int:
    async with open_session(settings, Needs.answers) as session:
        run, state = await find_workflow(session.client, run_id), await follow_up_state(session.client, run_id)
    if as_json:
        click.echo(json.dumps(state.model_dump(mode="json") if state else report.run_row(run)))
    else:
        report.print_follow_up(console, run, state)
    return 0


@click.command("trace", epilog=format_examples("trace RUN", "trace RUN --export run.json --with-subtasks"))
@run_argument
@click.option(
    "--export",
    "target",
    is_flag=False,
    flag_value=STDOUT,
    metavar="[FILE]",
    help="Write a self-contained JSON record instead, to FILE or to standard output.",
)
@click.option("--with-subtasks", is_flag=True, help="With --export: include the records of subtasks.")
@click.option(
    "--sign", "key", type=file_type, metavar="KEY", help="With --export: sign the record, with an Ed25519 key in PEM."
)
@click.option(
    "--timestamp", "authority", metavar="URL", help="With --sign: have it time-stamped by this RFC 3161 authority."
)
@as_json_option
@async_command()
async def trace_command(
    run_id: str, target: str | None, with_subtasks: bool, key: Path | None, authority: str | None, as_json: bool
) -> int:
    """Print the turns, calls and results of a run so far."""
    if target is None and (with_subtasks or key):
        raise click.UsageError(f"{'--with-subtasks' if with_subtasks else '--sign'} requires --export")
    if authority and key is None:
        raise click.UsageError("--timestamp requires --sign")
    if target is not None:
        return await export_run(run_id, target, with_subtasks=with_subtasks, key_file=key, authority=authority)
    screen = RunScreen(console)
    async with open_session(load_settings(), Needs.nothing) as session:
        async for position, event in Watch(session.client, run_id, follow=False).positioned_events():
            if as_json:
                click.echo(event_to_json(event))
            else:
                screen.show_event(event, position.time if position else None)
                if isinstance(event, RunEnded):
                    screen.show_end(await wait_for_run_end(session.client, run_id))
    return 0


@click.command("tools", epilog=format_examples("tools", "tools --check", "tools --accept"))
@click.option("--check", is_flag=True, help="Compare the MCP servers' current tools with the accepted ones.")
@click.option(
    "--accept",
    is_flag=False,
    flag_value="",
    metavar="[SERVER|SERVER__TOOL]",
    help="Accept the current tools of all MCP servers, or of the named one, in mcp.lock.json.",
)
@as_json_option
@async_command()
async def tools_command(check: bool, accept: str | None, as_json: bool) -> int:
    """List the project's tools: effects, approvals and timeouts."""
    settings = load_settings()
    if check or accept is not None:
        return await print_servers(settings, accept, as_json=as_json)

    from perdure.process.project import display_project

    async with display_project(settings) as project:
        rows = [report.tool_row(tool, list(project.agents.values())) for tool in project.tools.values()]
    if as_json:
        click.echo(json.dumps(rows))
    else:
        console.print(report.build_tool_table(rows))
        print_unseen_servers(settings)
    return 0
