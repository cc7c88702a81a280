"""`perdure schedule`: runs that start at fixed times or intervals."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import click
from rich.markup import escape
from rich.table import Table
from temporalio.client import Client

from perdure.client.door import check_start
from perdure.commands.run import pace_option, start_event
from perdure.features.schedules import client as schedules
from perdure.features.schedules.client import NewSchedule, ScheduleInfo
from perdure.session import Needs, Session, open_session
from perdure.settings import load_settings
from perdure.terminal.command import (
    DurationType,
    as_json_option,
    async_command,
    check_server_id,
    console,
    format_examples,
    require_utf8,
)
from perdure.terminal.completion import complete_agents

EMBEDDED_SERVER_NOTE = (
    "Runs start only while the embedded server is up, that is, while `perdure dev` or another command runs."
)
name_argument = click.argument("name", metavar="NAME", callback=check_server_id)


@click.group(
    "schedule",
    epilog=format_examples(
        'schedule add daily --cron "0 9 * * 1-5" --goal "look for new orders"', "schedule list", "schedule pause daily"
    ),
)
def schedule_command() -> None:
    """Start runs on a schedule.

    Temporal stores the schedules and starts their runs, with ids NAME-TIME. If the previous run is still active, or
    waits for a person, the new one is skipped by default (--overlap). A start missed while the server was down is made
    up for within 10 minutes, and skipped after that.
    """


@schedule_command.command(
    "add",
    epilog=format_examples(
        'schedule add daily --cron "0 9 * * 1-5" --time-zone Europe/Berlin --goal "look for new orders"',
        'schedule add often --every 30m --goal "look for new orders"',
    ),
)
@name_argument
@click.option("--cron", callback=require_utf8, help='Minute, hour, day, month and weekday, as in "0 9 * * 1-5".')
@click.option("--every", type=DurationType(), metavar="DURATION", help="An interval, such as 30m, 1h or 7d.")
@click.option("--goal", required=True, help="The task of each run, in words.")
@click.option("--agent", shell_complete=complete_agents, help="The agent to run, from agents/*.md.")
@pace_option
@click.option(
    "--overlap",
    type=click.Choice(list(schedules.OVERLAPS)),
    default="skip",
    show_default=True,
    help="Action if the previous run is still active: skip this one, queue one, queue all, or run both.",
)
@click.option(
    "--time-zone", callback=require_utf8, help="Time zone of the cron line, such as Europe/Berlin; UTC by default."
)
@click.option("--jitter", type=DurationType(), metavar="DURATION", help="Maximum random delay of each start.")
@click.option("--paused", is_flag=True, help="Create it paused; `perdure schedule unpause` starts it.")
@as_json_option
@async_command()
async def add_schedule_command(
    name: str,
    cron: str | None,
    every: timedelta | None,
    goal: str,
    agent: str | None,
    pace: str | None,
    overlap: str,
    time_zone: str | None,
    jitter: timedelta | None,
    paused: bool,
    as_json: bool,
) -> int:
    """Create a schedule from a cron line or an interval."""
    if (cron is None) == (every is None):
        raise click.UsageError("give either --cron or --every")
    if cron is not None and not cron.strip():
        raise click.UsageError('--cron is empty; it takes five fields, like "0 9 * * 1-5"')
    if time_zone is not None and cron is None:
        raise click.UsageError("--time-zone is for --cron")
    event = start_event(goal, agent, pace=pace)
    spec = NewSchedule(name, event, cron, every, time_zone, jitter, overlap, paused)
    settings = load_settings(strict=False)
    await check_start(event.payload, settings)
    async with open_session(settings, Needs.nothing) as session:
        created = await schedules.add_schedule(session.client, settings.task_queue, spec, settings)
    if as_json:
        click.echo(created.model_dump_json())
        return 0
    state = (
        "paused; to start it: perdure schedule unpause " + name
        if paused
        else f"next: {_format_starts(created, *created.upcoming)}"
    )
    line = f"[bold]{escape(name)}[/]  {escape(created.when)}, {escape(state)}, overlap {created.overlap}"
    console.print(line, soft_wrap=True)
    _print_embedded_note(session)
    return 0


@schedule_command.command("list", epilog=format_examples("schedule list"))
@as_json_option
@async_command()
async def list_schedules_command(as_json: bool) -> int:
    """List the project's schedules, with next start and latest run."""
    settings = load_settings(strict=False)
    async with open_session(settings, Needs.nothing) as session:
        rows = [row async for row in schedules.list_schedules(session.client, settings.task_queue)]
    rows.sort(key=lambda row: row.name)
    if as_json:
        for row in rows:
            click.echo(row.model_dump_json())
    elif not rows:
        console.print('no schedules yet; create one: perdure schedule add NAME --every 1h --goal "…"')
    else:
        console.print(_build_table(rows))
        _print_embedded_note(session)
    return 0


def _add_command(
    name: str, summary: str, done: str, act: Callable[[Client, str, str], Awaitable[object]], *, hidden: bool = False
) -> None:
    """Add a command that calls `act` on one schedule."""

    @schedule_command.command(name, help=summary, epilog=format_examples(f"schedule {name} daily"), hidden=hidden)
    @name_argument
    @async_command()
    async def command(name: str) -> int:
        settings = load_settings(strict=False)
        async with open_session(settings, Needs.nothing) as session:
            await act(session.client, settings.task_queue, name)
        console.print(done)
        return 0


_add_command("remove", "Remove a schedule.\n\nActive runs continue.", "removed", schedules.remove_schedule)
_add_command(
    "pause",
    "Start no more runs until `perdure schedule unpause`.\n\nActive runs continue; `pause --schedule` holds them, too.",
    "paused",
    schedules.pause_schedule,
)
_add_command("unpause", "Let a paused schedule start runs again.", "unpaused", schedules.unpause_schedule)
_add_command("resume", "The same as `unpause`.", "unpaused", schedules.unpause_schedule, hidden=True)


@schedule_command.command("trigger", epilog=format_examples("schedule trigger daily"))
@name_argument
@as_json_option
@async_command()
async def trigger_schedule_command(name: str, as_json: bool) -> int:
    """Start a run of a schedule now, subject to its overlap policy.

    This also works while the schedule is paused.
    """
    settings = load_settings(strict=False)
    async with open_session(settings, Needs.nothing) as session:
        run_id = await schedules.trigger_schedule(session.client, settings.task_queue, name)
    if as_json:
        click.echo(json.dumps({"run_id": run_id}))
    elif run_id is None:
        console.print("it starts when the previous run has ended")
    else:
        console.print(f"{escape(run_id)}  follow it: perdure watch {escape(run_id)}", soft_wrap=True)
    return 0


def _print_embedded_note(session: Session) -> None:
    if session.ui is not None:
        console.print(f"[yellow]{EMBEDDED_SERVER_NOTE}[/]", soft_wrap=True)


def _build_table(rows: list[ScheduleInfo]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("schedule", no_wrap=True)
    for heading in ("when", "next", "overlap"):
        table.add_column(heading, overflow="fold")
    table.add_column("latest run", no_wrap=True)
    table.add_column("goal", overflow="ellipsis", no_wrap=True)
    for row in rows:
        moment = "[yellow]paused[/]" if row.is_paused else _format_starts(row, *row.upcoming[:1])
        overlap = f"{row.overlap}{f', {row.skipped} skipped' if row.skipped else ''}"
        latest = f"{row.latest or ''}{' …' if row.latest in row.at_work else ''}"
        table.add_row(escape(row.name), escape(row.when), moment, overlap, escape(latest), escape(row.goal[:200]))
    return table


def _format_starts(schedule: ScheduleInfo, *starts: datetime) -> str:
    """Format starts in the schedule's time zone."""
    if not starts:
        return "never"
    try:
        zone: tzinfo = ZoneInfo(schedule.time_zone)
    except (OSError, ValueError):  # unknown on this machine
        zone = UTC
    times = ", ".join(f"{start.astimezone(zone):%a %Y-%m-%d %H:%M:%S}" for start in starts)
    return f"{times} {schedule.time_zone if zone is not UTC else 'UTC'}"
