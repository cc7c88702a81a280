"""`list`, `show`, `trace`, `tools`: what there is, and what it did."""

import dataclasses
import json

import click

from activities.storage.workspace import folder_name
from contracts.run.state import RunStatus
from decisions import ids
from decisions.run.outcome import handoff_sections
from perdure.client.run_events import Over, happening_json
from perdure.client.run_list import Found, below, find, find_any, grown_at, listing
from perdure.client.runs import ended, follow_up_state, state
from perdure.client.starter import starter_of
from perdure.client.watch import Watch
from perdure.commands.export import STDOUT, export_run
from perdure.commands.mcp.servers import tell_servers, tell_unseen
from perdure.session import Needs, session
from perdure.terminal.command import as_json_option, console, examples, go, run_argument
from perdure.terminal.report import print_follow_up, print_run, print_tree, run_row, subtask_row, tool_row, tool_table
from perdure.terminal.run_view import Screen
from perdure.terminal.table import print_list
from settings import load


@click.command("list", epilog=examples("list", "list --waiting", "list --json | jq -r .run_id"))
@click.option("--waiting", is_flag=True, help="Only what waits for a person; all of it.")
@click.option("--follow-ups", is_flag=True, help="Follow-ups instead: what resolves later, and then resumes work.")
@click.option("--limit", type=click.IntRange(1, 10_000), help="How many at most; 30, where not all are asked for.")
@as_json_option
def list_(waiting: bool, follow_ups: bool, limit: int | None, as_json: bool) -> None:
    """List runs: what waits for a person first, then the latest.

    What waits are runs, also those that were delegated, and follow-ups; each with its question and how to answer it.
    With --json the rows are the latest first.
    """
    most = limit if limit or waiting else 30
    is_overview = not (waiting or follow_ups or as_json)

    async def main() -> int:
        async with session(load(), Needs.nothing) as here:
            found = [each async for each in listing(here.client, waiting=waiting, follow_ups=follow_ups, limit=most)]
            asks = [each async for each in listing(here.client, waiting=True, limit=most)] if is_overview else []
            is_any_open = any(each.is_open for each in (*found, *asks))
            lack = await here.no_worker() if is_any_open and not as_json else None
        if as_json:
            for each in found:
                click.echo(json.dumps(run_row(each)))
        elif not found and not asks:
            nothing = "no follow-ups yet" if follow_ups else 'no runs yet; start one: perdure run "…"'
            console.print("no run waits for a person" if waiting else nothing)
        else:
            asking = {each.run_id: each for each in (*asks, *filter(is_asking, found))}
            print_list(console, list(asking.values()), [each for each in found if each.run_id not in asking])
            if is_overview and len(asks) == most:
                console.print("[dim]perhaps more wait for a person: perdure list --waiting[/]")
            if lack:
                console.print(f"[yellow]{lack}[/]")
        return 0

    go(main)


def is_asking(found: Found) -> bool:
    """Whether it waits for a person."""
    return found.is_open and found.status == RunStatus.waiting_on_human


@click.command(epilog=examples("show RUN", "show wf:FOLLOW-UP", "show RUN --json | jq .question"))
@run_argument
@as_json_option
def show(run_id: str, as_json: bool) -> None:
    """Show one run: status, question, steps, cost, and its files.

    Or a follow-up, as wf:ID.
    """
    if run_id.startswith(ids.FOLLOW_UP):
        go(lambda: _show_follow_up(run_id, as_json=as_json))

    async def main() -> int:
        settings = load()
        async with session(settings, Needs.answers) as here:
            found = await find(here.client, run_id)
            view = await state(here.client, run_id)
            end = None if found.is_open else await ended(here.client, run_id)
            as_of = None if view else await grown_at(here.client, found)
            tree = await below(here.client, found)
            starter = await starter_of(here.client, found)
        if as_json:
            said = view.model_dump(mode="json") if view else run_row(found)
            said |= {"as_of": as_of.isoformat()} if as_of else {}
            told = {"end": dataclasses.asdict(end), "handoff": handoff_sections(end.handoff) or None} if end else {}
            started = starter.model_dump(mode="json") if starter else None
            rows = [subtask_row(depth, each) for depth, each in tree]
            click.echo(
                json.dumps({**said, "end": None, "handoff": None, **told, "subtasks": rows, "started_by": started})
            )
        else:
            files = settings.workspaces / folder_name(found.run_id)
            print_run(console, found, view, end, files, as_of=as_of, starter=starter)
            if tree:
                print_tree(console, tree)
        return 0

    go(main)


async def _show_follow_up(named: str, *, as_json: bool) -> int:
    async with session(load(), Needs.answers) as here:
        found, state = await find_any(here.client, named), await follow_up_state(here.client, named)
    if as_json:
        click.echo(json.dumps(state.model_dump(mode="json") if state else run_row(found)))
    else:
        print_follow_up(console, found, state)
    return 0


@click.command(epilog=examples("trace RUN", "trace RUN --export run.json --with-subtasks"))
@run_argument
@click.option(
    "--export",
    "target",
    is_flag=False,
    flag_value=STDOUT,
    metavar="[FILE]",
    help="Write one self-contained record instead, as JSON: to FILE, or to standard output.",
)
@click.option("--with-subtasks", is_flag=True, help="With --export: the records of the runs it delegated, too.")
@as_json_option
def trace(run_id: str, target: str | None, with_subtasks: bool, as_json: bool) -> None:
    """Print what a run did so far: each turn, each call, each result."""
    if with_subtasks and target is None:
        raise click.UsageError("--with-subtasks is for --export")
    if target is not None:
        go(lambda: export_run(run_id, target, with_subtasks=with_subtasks))

    async def main() -> int:
        screen = Screen(console)
        async with session(load(), Needs.nothing) as here:
            async for at, happening in Watch(here.client, run_id, follow=False).positioned():
                if as_json:
                    click.echo(happening_json(happening))
                else:
                    screen.show(happening, at.time if at else None)
                    if isinstance(happening, Over):
                        screen.end(await ended(here.client, run_id))
        return 0

    go(main)


@click.command(epilog=examples("tools", "tools --check", "tools --accept"))
@click.option("--check", is_flag=True, help="Ask the MCP servers whether their tools are what was accepted.")
@click.option(
    "--accept",
    is_flag=False,
    flag_value="",
    metavar="[SERVER|SERVER__TOOL]",
    help="Take what MCP servers say now, of all or of the named one, into mcp.lock.json.",
)
@as_json_option
def tools(check: bool, accept: str | None, as_json: bool) -> None:
    """Show the tools: what each does to the world, whether it asks."""
    if check or accept is not None:
        go(lambda: tell_servers(load(), accept, as_json=as_json))

    from perdure.process.project import looked_at

    async def main() -> int:
        settings = load()
        async with looked_at(settings) as project:
            rows = [tool_row(tool, list(project.agents.values())) for tool in project.tools.values()]
        if as_json:
            click.echo(json.dumps(rows))
        else:
            console.print(tool_table(rows))
            tell_unseen(settings)
        return 0

    go(main)
