"""`perdure pause` and `unpause`: a stop for all runs, or for some."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click
from temporalio.client import Client

from perdure.client.errors import RejectedError
from perdure.decisions.text.formatting import truncate
from perdure.features.pauses import client as pauses
from perdure.features.pauses.client import InFlight
from perdure.features.pauses.contract import Pause, PauseChange
from perdure.features.pauses.rules import PREFIX, pause_name, pause_reason
from perdure.session import Needs, Session, open_session
from perdure.settings import load_settings
from perdure.terminal.command import (
    as_json_option,
    async_command,
    check_server_id,
    console,
    find_user,
    format_examples,
    print_error,
    require_utf8,
)
from perdure.terminal.completion import complete_agents
from perdure.terminal.report import format_age

SETTLE_TIME = 2.0  # seconds after which no further call begins
PROGRESS_EVERY = 1.0  # seconds
MANY = 100
MAX_SHOWN = 20  # calls in flight
MAX_WHY = 200  # characters


@dataclass(frozen=True)
class Selection:
    """The options that select runs."""

    everything: bool = False
    agent: str | None = None
    schedule: str | None = None
    query: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == Selection()

    @property
    def name(self) -> str:
        return pause_name(agent=self.agent, schedule=self.schedule, query=self.query)


def _selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select runs. The command gets a `Selection`."""

    @wraps(command)
    def run(everything: bool, agent: str | None, schedule: str | None, query: str | None, **others: Any) -> Any:
        if everything + sum(each is not None for each in (agent, schedule, query)) > 1:
            raise click.UsageError("give one of --all, --agent, --schedule and --run-query")
        return command(selection=Selection(everything, agent, schedule, query), **others)

    for option in (
        click.option("--run-query", "query", metavar="FILTER", callback=require_utf8, help="Runs of a list filter."),
        click.option("--schedule", metavar="NAME", callback=_check_name, help="Runs of a schedule, and its starts."),
        click.option("--agent", callback=require_utf8, shell_complete=complete_agents, help="Runs of an agent."),
        click.option("--all", "everything", is_flag=True, help="All runs of the project."),
    ):
        run = option(run)
    return run


def _check_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return None if value is None else check_server_id(ctx, param, value)


@click.command("pause", epilog=format_examples('pause --all --why "wrong prices"', "pause --agent clerk", "pause"))
@click.option("--why", default="", callback=require_utf8, help="The reason, which people see at each held run.")
@click.option("--by", callback=require_utf8, help="Name of the person who pauses. Default: the user.")
@as_json_option
@_selecting
@async_command()
async def pause_command(selection: Selection, why: str, by: str | None, as_json: bool) -> int:
    """Hold runs before their next call, or list pauses.

    They are held before calls of a model or a tool, on all workers, until `perdure unpause`. Within 2 seconds no
    further call begins; what has begun goes on, and is listed. Nothing is lost and nothing is spent: a held run keeps
    its place, takes answers, and can be cancelled. --schedule also pauses the schedule, so that it starts no run;
    `perdure schedule pause` does that alone. --run-query holds the runs that are open now; later ones are not held.

    Without an option, list what is paused.
    """
    if len(why) > MAX_WHY:
        raise click.BadParameter(f"at most {MAX_WHY} characters", param_hint="--why")
    settings = load_settings(strict=False)
    async with open_session(settings, Needs.nothing) as session:
        if selection.is_empty:
            return await _list_pauses(session, as_json=as_json)
        if selection.agent is not None and selection.agent not in settings.roster.agents:
            print_error(f"note: this project has no agent {selection.agent}")
        pause = await _begin_pause(session, selection, by or find_user() or "somebody", why)
        await asyncio.sleep(SETTLE_TIME)
        calls = [call async for call in pauses.find_in_flight(session.client, settings.task_queue, pause)]
        held = (await pauses.count_held(session.client, settings.task_queue))[pause.name]
        _print_pause(pause, held, calls, as_json=as_json)
    return 0


async def _begin_pause(session: Session, selection: Selection, by: str, why: str) -> Pause:
    client, queue, query = session.client, session.settings.task_queue, selection.query
    pause = Pause(
        name=selection.name,
        by=truncate(by, 100),
        at=datetime.now(UTC),
        why=why,
        agent=selection.agent,
        schedule=selection.schedule,
        query=query,
        runs=() if query is None else await pauses.find_runs(client, queue, query),
    )
    if pause.schedule is not None:
        await pauses.pause_starts(client, queue, pause.schedule)
    await pauses.change_pauses(client, queue, PauseChange(begin=(pause,)))
    return pause


def _print_pause(pause: Pause, held: int, calls: list[InFlight], *, as_json: bool) -> None:
    if as_json:
        shown = {**pause.model_dump(mode="json", exclude_defaults=True), "held": held}
        shown["in_flight"] = [_call_row(call) for call in calls]
        click.echo(json.dumps(shown, ensure_ascii=False))
        return
    console.print(f"{pause_reason(pause)}", markup=False, soft_wrap=True)
    console.print(f"{held} held so far; the others stop before their next call", markup=False)
    for call in calls[:MAX_SHOWN]:
        whose = f", ordered before, on queue {call.queue}, whose workers follow no pause" if call.queue else ""
        line = f"in flight: {call.run_id} {call.activity}, for {format_age(call.since)}{whose}"
        console.print(line, markup=False, soft_wrap=True)
    if len(calls) > MAX_SHOWN:
        console.print(f"… and {len(calls) - MAX_SHOWN} more in flight (--json lists all)")
    console.print(f"to let them go on: perdure unpause {_options_of(pause)}", markup=False, soft_wrap=True)


def _call_row(call: InFlight) -> dict[str, Any]:
    row = {"run_id": call.run_id, "activity": call.activity, "since": call.since.isoformat()}
    return row if call.queue is None else {**row, "queue": call.queue}


def _options_of(pause: Pause) -> str:
    for option, value in (("agent", pause.agent), ("schedule", pause.schedule), ("run-query", pause.query)):
        if value is not None:
            return f"--{option} {json.dumps(value, ensure_ascii=False) if ' ' in value else value}"
    return "--all"


async def _list_pauses(session: Session, *, as_json: bool) -> int:
    client, queue = session.client, session.settings.task_queue
    known, held = await pauses.read_pauses(client, queue), await pauses.count_held(client, queue)
    if as_json:
        for pause in known:
            click.echo(json.dumps({**pause.model_dump(mode="json", exclude_defaults=True), "held": held[pause.name]}))
        return 0
    for pause in known:
        console.print(f"{pause_reason(pause)} · {held[pause.name]} held", markup=False, soft_wrap=True)
    if not known:
        console.print("nothing is paused; to pause everything: perdure pause --all", markup=False)
    return 0


@click.command("unpause", epilog=format_examples("unpause --all", "unpause --agent clerk"))
@as_json_option
@_selecting
@async_command()
async def unpause_command(selection: Selection, as_json: bool) -> int:
    """End a pause, so that its runs go on.

    --all ends every pause. A worker lets the runs go on, also if this command is stopped. `perdure resume` is something
    else: it continues a run that has failed.
    """
    if selection.is_empty:
        raise click.UsageError("what to unpause? --all, or as it was paused; `perdure pause` lists what is paused")
    settings = load_settings(strict=False)
    async with open_session(settings, Needs.work) as session:
        client, queue = session.client, settings.task_queue
        known, held = await pauses.read_pauses(client, queue), await pauses.count_held(client, queue)
        names = {pause.name for pause in known} | {name for name in held if name.startswith(PREFIX)}
        ended = names if selection.everything else names & {selection.name}
        if not ended:
            raise RejectedError("this is not paused; `perdure pause` lists what is")
        await pauses.change_pauses(client, queue, PauseChange(end=tuple(sorted(ended))))
        for pause in known:
            if pause.name in ended and pause.schedule is not None:
                await pauses.unpause_starts(client, queue, pause.schedule)
        await _follow_release(client, queue, ended, as_json=as_json)
    return 0


async def _follow_release(client: Client, queue: str, ended: set[str], *, as_json: bool) -> None:
    """Wait until nothing is held any more, and print the progress."""
    first = None
    while True:
        counts = await pauses.count_held(client, queue)
        left = sum(counts[name] for name in ended)
        first = left if first is None else max(first, left)
        if not left:
            break
        if not as_json:
            console.print(f"{left} still to go on")
        await asyncio.sleep(PROGRESS_EVERY if left < MANY else 5 * PROGRESS_EVERY)  # each look reads each held run
    if as_json:
        click.echo(json.dumps({"ended": sorted(ended), "released": first}))
        return
    console.print(f"unpaused: {', '.join(sorted(name.removeprefix(PREFIX) for name in ended))}; {first} went on")
