"""`schedule`: runs that begin by the clock."""

import dataclasses
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.markup import escape
from rich.table import Table
from temporalio.client import Client

from perdure.client import schedules
from perdure.client.schedules import Scheduled, Wanted
from perdure.commands.run import start_event
from perdure.session import Needs, Session, session
from perdure.terminal.command import DurationType, as_json_option, console, examples, go, name_on_server, utf8
from perdure.terminal.completion import agent_names
from settings import load

ONLY_WHILE = "It begins runs only while the embedded server is up: as long as `perdure dev` or another command runs."
name_argument = click.argument("name", metavar="NAME", callback=name_on_server)


@click.group(
    "schedule",
    epilog=examples(
        'schedule add daily --cron "0 9 * * 1-5" --goal "look for new orders"', "schedule list", "schedule pause daily"
    ),
)
def schedule() -> None:
    """Start runs by the clock.

    Temporal keeps the schedules and starts their runs, as NAME-TIME. Where the run before is still at work, waiting
    for a person too, the default is to skip (--overlap). A start that was missed because the server was down is made
    up for within 10 minutes, and not later.
    """


@schedule.command(
    "add",
    epilog=examples(
        'schedule add daily --cron "0 9 * * 1-5" --time-zone Europe/Berlin --goal "look for new orders"',
        'schedule add often --every 30m --goal "look for new orders"',
    ),
)
@name_argument
@click.option("--cron", callback=utf8, help='Five fields: minute, hour, day, month, weekday, like "0 9 * * 1-5".')
@click.option("--every", type=DurationType(), metavar="DURATION", help="Like 30m, 1h or 7d.")
@click.option("--goal", required=True, help="What its runs have to do, in words.")
@click.option("--agent", shell_complete=agent_names, help="The agent of agents/*.md that does it.")
@click.option(
    "--overlap",
    type=click.Choice(list(schedules.OVERLAPS)),
    default="skip",
    show_default=True,
    help="Where the run before is still at work: leave this one out, let one or all wait, or start it all the same.",
)
@click.option(
    "--time-zone", callback=utf8, help="That a cron line is read in, like Europe/Berlin; UTC where it is left out."
)
@click.option("--jitter", type=DurationType(), metavar="DURATION", help="Start up to so much later, at random.")
@click.option("--paused", is_flag=True, help="Make it, and start nothing before `perdure schedule resume`.")
@as_json_option
def add(
    name: str,
    cron: str | None,
    every: timedelta | None,
    goal: str,
    agent: str | None,
    overlap: str,
    time_zone: str | None,
    jitter: timedelta | None,
    paused: bool,
    as_json: bool,
) -> None:
    """Start a run by a cron line, or every so often."""
    if (cron is None) == (every is None):
        raise click.UsageError("give either --cron or --every")
    if cron is not None and not cron.strip():
        raise click.UsageError('--cron is empty; it takes five fields, like "0 9 * * 1-5"')
    if time_zone is not None and cron is None:
        raise click.UsageError("--time-zone is for --cron")
    wanted = Wanted(name, start_event(goal, agent), cron, every, time_zone, jitter, overlap, paused)

    async def main() -> int:
        settings = load()
        settings.check_agent(agent)
        async with session(settings, Needs.nothing) as here:
            made = await schedules.add(here.client, settings.task_queue, wanted)
        if as_json:
            click.echo(_json(made))
            return 0
        state = "paused; to start it: perdure schedule resume " + name if paused else f"next: {_moment(made)}"
        console.print(f"[bold]{escape(name)}[/]  {escape(made.words)}, {escape(state)}, overlap {made.overlap}")
        _say_when_it_works(here)
        return 0

    go(main)


@schedule.command("list", epilog=examples("schedule list"))
@as_json_option
def list_(as_json: bool) -> None:
    """List the schedules of this project: when they start what.

    It says what happens where the run before is at work, too.
    """

    async def main() -> int:
        settings = load()
        async with session(settings, Needs.nothing) as here:
            found = [each async for each in schedules.every(here.client, settings.task_queue)]
        found.sort(key=lambda each: each.name)
        if as_json:
            for each in found:
                click.echo(_json(each))
        elif not found:
            console.print('no schedules yet; make one: perdure schedule add NAME --every 1h --goal "…"')
        else:
            console.print(_table(found))
            _say_when_it_works(here)
        return 0

    go(main)


def _command(
    name: str, told: str, does: str, act: Callable[[Client, str, str], Awaitable[object]]
) -> Callable[[str], None]:
    """A command that does one thing with one schedule, and says in a word that it is done."""

    @schedule.command(name, help=does, epilog=examples(f"schedule {name} daily"))
    @name_argument
    def command(name: str) -> None:
        async def main() -> int:
            settings = load()
            async with session(settings, Needs.nothing) as here:
                await act(here.client, settings.task_queue, name)
            console.print(told)
            return 0

        go(main)

    return command


_command("remove", "removed", "Remove a schedule.\n\nThe runs that it has begun go on.", schedules.remove)
_command("pause", "paused", "Begin no more runs until `perdure schedule resume`.", schedules.pause)
_command("resume", "resumed", "Begin runs again by a schedule that was paused.", schedules.resume)


@schedule.command(epilog=examples("schedule trigger daily"))
@name_argument
@as_json_option
def trigger(name: str, as_json: bool) -> None:
    """Start a run of a schedule now, as its overlap policy has it.

    One that is paused takes it too.
    """

    async def main() -> int:
        settings = load()
        async with session(settings, Needs.nothing) as here:
            run_id = await schedules.trigger(here.client, settings.task_queue, name)
        if as_json:
            click.echo(json.dumps({"run_id": run_id}))
        elif run_id is None:
            console.print("it begins when the run before it has ended")
        else:
            console.print(f"{escape(run_id)}  follow it: perdure watch {escape(run_id)}", soft_wrap=True)
        return 0

    go(main)


def _say_when_it_works(here: Session) -> None:
    if here.ui is not None:
        console.print(f"[yellow]{ONLY_WHILE}[/]", soft_wrap=True)


def _json(each: Scheduled) -> str:
    told: dict[str, Any] = dataclasses.asdict(each)
    return json.dumps({**told, "next": each.next.isoformat() if each.next else None})


def _table(found: list[Scheduled]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("schedule", no_wrap=True)
    for heading in ("when", "next", "overlap"):
        table.add_column(heading, overflow="fold")
    table.add_column("latest run", no_wrap=True)
    table.add_column("goal", overflow="ellipsis", no_wrap=True)
    for each in found:
        moment = "[yellow]paused[/]" if each.is_paused else _moment(each)
        overlap = f"{each.overlap}{f', {each.skipped} skipped' if each.skipped else ''}"
        latest = f"{each.latest or ''}{' …' if each.latest in each.at_work else ''}"
        table.add_row(escape(each.name), escape(each.words), moment, overlap, escape(latest), escape(each.goal[:200]))
    return table


def _moment(schedule: Scheduled) -> str:
    """The next start in the schedule's own time zone."""
    if schedule.next is None:
        return "never"
    try:
        zone: tzinfo = ZoneInfo(schedule.time_zone)
    except (OSError, ValueError):  # this machine does not know it
        zone = UTC
    return f"{schedule.next.astimezone(zone):%a %Y-%m-%d %H:%M:%S} {schedule.time_zone if zone is not UTC else 'UTC'}"
