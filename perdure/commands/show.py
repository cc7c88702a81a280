"""`perdure list`, `show`, `trace` and `tools`."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from perdure.activities.project import Project
from perdure.activities.storage.workspace import folder_name
from perdure.client.details import RunRecord
from perdure.client.errors import NotSearchableError
from perdure.client.run_events import RunEnded, event_to_json
from perdure.client.run_list import ANY_RUN, RunFilter, RunInfo, find_workflow, iterate_runs
from perdure.client.runs import AddressedView
from perdure.client.watch import Watch
from perdure.commands.questions import print_dead_letters
from perdure.contracts.agent import Agent
from perdure.contracts.model_settings import ModelOptions, Pace
from perdure.contracts.run.state import RunStatus
from perdure.python_client import Perdure
from perdure.registry import Addressed, find_addressed, find_tool_source, load
from perdure.session import Needs, Session, open_session
from perdure.settings import Settings, load_settings
from perdure.terminal import report
from perdure.terminal.command import (
    STDOUT,
    DurationType,
    as_json_option,
    async_command,
    console,
    file_type,
    format_examples,
    print_error,
    require_utf8,
    run_argument,
)
from perdure.terminal.completion import complete_agents
from perdure.terminal.report import format_path
from perdure.terminal.run_view import RunScreen


@click.command("list", epilog=format_examples("list", "list --waiting", "list --status failed --since 24h"))
@click.option("--waiting", is_flag=True, help="List only, and all, runs and follow-ups that wait for a person.")
@click.option("--follow-ups", is_flag=True, help="List follow-ups instead: work that resumes after an external result.")
@click.option("--dead", is_flag=True, help="List events that began nothing and notices that failed instead.")
@click.option("--agent", callback=require_utf8, shell_complete=complete_agents, help="Only runs of this agent.")
@click.option("--status", type=click.Choice([status.value for status in RunStatus]), help="Only runs with this status.")
@click.option("--since", type=DurationType(), metavar="TIME", help="Only runs started within this time, such as 24h.")
@click.option("--conversation", metavar="ID", callback=require_utf8, help="Only runs of this conversation.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), help="Maximum number of rows; 30 by default, unlimited with --waiting."
)
@as_json_option
@async_command()
async def list_runs_command(
    *,
    waiting: bool,
    follow_ups: bool,
    dead: bool,
    agent: str | None,
    status: str | None,
    since: timedelta | None,
    conversation: str | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """List runs: those that wait for a person first, then the latest.

    Subtasks and follow-ups that wait for a person are listed too. Each is shown with its question and the command to
    answer it. With --json, the latest is first. Filters combine.
    """
    only = RunFilter(since=since, agent=agent, status=status, conversation=conversation)
    if dead:
        if only != ANY_RUN:
            raise click.UsageError("--agent, --status, --since and --conversation select runs: leave --dead out")
        return await print_dead_letters(as_json=as_json)
    if follow_ups and agent is not None:
        raise click.UsageError("a follow-up has no agent: leave --agent out")
    limit = limit if limit or waiting else 30
    is_overview = not (waiting or follow_ups or as_json)
    async with open_session(load_settings(strict=False), Needs.nothing) as session:
        listed = iterate_runs(session.client, only, waiting=waiting, follow_ups=follow_ups, limit=limit)
        runs = [run async for run in listed]
        asking, gap = await _list_waiting(session, only, limit) if is_overview else ([], "")
        is_any_open = any(run.is_open for run in (*runs, *asking))
        warning = await session.missing_worker_message() if is_any_open and not as_json else None
    if as_json:
        for run in runs:
            click.echo(json.dumps(RunRecord.of(run).model_dump(mode="json")))
    elif not runs and not asking:
        nothing = "no follow-ups yet" if follow_ups else 'no runs yet; start one: perdure run "…"'
        nothing = "no run waits for a person" if waiting else nothing
        console.print(nothing if only == ANY_RUN else "nothing that matches these options")
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


async def _list_waiting(session: Session, only: RunFilter, limit: int | None) -> tuple[list[RunInfo], str]:
    """Return the runs that wait for a person, or the reason why they cannot be listed."""
    try:
        return [run async for run in iterate_runs(session.client, only, waiting=True, limit=limit)], ""
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
    settings = load_settings(strict=False)
    if addressed := find_addressed(run_id):
        return await _show_addressed(settings, run_id, addressed, as_json=as_json)
    async with open_session(settings, Needs.answers) as session:
        details = await Perdure.over(session).get_run(run_id).details()
    if as_json:
        click.echo(json.dumps(details.to_row()))
    else:
        report.print_run(console, details, settings.workspaces / folder_name(details.known.run_id))
        if details.subtasks:
            report.print_tree(console, details.subtasks)
    return 0


async def _show_addressed(settings: Settings, workflow_id: str, addressed: Addressed, *, as_json: bool) -> int:
    async with open_session(settings, Needs.answers) as session:
        run = await find_workflow(session.client, workflow_id)
        view: AddressedView | None = await load(addressed.query)(session.client, workflow_id)
    if as_json:
        click.echo(json.dumps((view.state if view else RunRecord.of(run)).model_dump(mode="json")))
    else:
        load(addressed.show)(console, run, view.state if view else None)
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
        from perdure.commands.export import export_run

        return await export_run(run_id, target, with_subtasks=with_subtasks, key_file=key, authority=authority)
    screen = RunScreen(console)
    async with open_session(load_settings(strict=False), Needs.nothing) as session:
        async for event in Watch(session.client, run_id, follow=False).events():
            if as_json:
                click.echo(event_to_json(event))
            else:
                screen.show_event(event)
                if isinstance(event, RunEnded):
                    screen.show_end(await Perdure.over(session).get_run(run_id).end())
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
    settings, source = load_settings(strict=False), find_tool_source()
    if source is not None and (check or accept is not None):
        code: int = await load(source.print_servers)(settings, accept, as_json=as_json)
        return code

    from perdure.process.project import display_project

    async with display_project(settings) as project:
        rows = [report.tool_row(tool, list(project.agents.values())) for tool in project.tools.values()]
    if as_json:
        click.echo(json.dumps(rows))
    else:
        console.print(report.build_tool_table(rows))
        if source is not None:
            load(source.print_unseen)(settings)
    return 0


MAX_SHOWN_TOOLS = 12  # of an agent in the table


@click.command("agents", epilog=format_examples("agents"))
@as_json_option
@async_command()
async def agents_command(as_json: bool) -> int:
    """List the project's agents: models, settings, tools, limits.

    Each tool is shown with its effect. If a file in agents/ does not load, its error is printed and the exit code is 1.
    """
    from perdure.process.project import display_project

    settings = load_settings(strict=False)
    async with display_project(settings) as project:
        rows = [agent_row(agent, settings, project) for agent in project.agents.values()]
    errors = settings.roster.faults
    if as_json:
        broken = [{"file": str(path), "error": str(error)} for path, error in errors.items()]
        click.echo(json.dumps([*rows, *broken]))
    else:
        console.print(agent_table(rows))
        for error in errors.values():
            print_error(str(error))
    return 1 if errors else 0


def agent_row(agent: Agent, settings: Settings, project: Project) -> dict[str, Any]:
    """Return the JSON row of an agent. `file` is None for the built-in one, `models` is empty for an external one."""
    from perdure.activities.run.definition import estimate_tools, split_tools

    searched = () if agent.mailbox else split_tools(project, agent)[1]
    path = settings.roster.files.get(agent.name)
    return {
        "agent": agent.name,
        "description": agent.description,
        "models": [] if agent.mailbox else list(project.models_of(agent)),
        "settings": {} if agent.mailbox else dict(project.options.override(agent.options)),
        "tools": {} if agent.mailbox else {name: project.tools[name].route.effect for name in agent.tools},
        "searched": {"tools": len(searched), "tokens": estimate_tools(searched) if searched else 0},
        "pace": None if agent.mailbox else str(agent.pace or settings.file.model.pace or Pace.live),
        "peers": list(agent.peers),
        "follow_ups": None if agent.follow_ups is None else {"sessions": list(agent.follow_ups)},
        "limits": agent.limits.model_dump(mode="json", exclude_none=True),
        "mailbox": agent.mailbox,
        "file": str(path) if path else None,
    }


def agent_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("agent", no_wrap=True)
    for heading in ("model", "tools", "peers", "limits"):
        table.add_column(heading, overflow="fold")
    table.add_column("file", overflow="fold")
    for row in rows:
        tools = _format_tools(row["tools"])
        if row["searched"]["tools"]:
            tools += "; {tools} of them searched ({tokens:,} tokens)".format(**row["searched"])
        limits = ", ".join(f"{name} {_format_limit(value)}" for name, value in row["limits"].items())
        file = format_path(Path(row["file"])) if row["file"] else "built in"
        options = [f"{name} {_format_option(value)}" for name, value in _changed(row["settings"]).items()]
        options += [f"pace {row['pace']}"] if row["pace"] == Pace.batch else []
        cells = (", ".join([*row["models"], *options]), tools, ", ".join(row["peers"]), limits, file)
        if row["mailbox"]:
            cells = ("", "external: a mailbox", "", "", file)
        table.add_row(escape(row["agent"]), *map(escape, cells))
    return table


def _format_tools(tools: dict[str, str]) -> str:
    shown = [f"{name} ({effect})" for name, effect in list(tools.items())[:MAX_SHOWN_TOOLS]]
    more = len(tools) - len(shown)
    return ", ".join([*shown, f"and {more} more (perdure agents --json)"] if more else shown)


def _changed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of model calls that differ from the defaults."""
    defaults = dict(ModelOptions())
    return {name: value for name, value in options.items() if value != defaults[name]}


def _format_option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _format_limit(limit: Any) -> str:
    """Format a limit as in an agent file: "5m", "0.5"."""
    return limit.removeprefix("PT").lower() if isinstance(limit, str) and limit.startswith("PT") else f"{limit}"
