"""`perdure`: start agent runs, watch them, answer their questions, and run their workers.

Every command prints for a person, or JSON where a program reads (`--json`). An error is one line on standard error.
"""

import dataclasses
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
from pydantic import ValidationError
from rich.markup import escape

from activities.workspace import Workspace, folder_name
from chat import chat
from command import as_json_option, complain, console, go, run_argument
from contracts.events import StartEvent
from decisions import ids
from decisions.endings import handoff_sections
from event import event_
from follow import DETACHED, follow, follow_json, happening_json, stopping
from mail import mail
from people import answer_, approve, cancel_, deny
from report import (
    print_follow_up,
    print_run,
    print_tree,
    run_row,
    run_table,
    subtask_row,
    tool_row,
    tool_table,
)
from runs import Refused, below, ended, find, find_follow_up, follow_up_state, leave, listing, run_id_of, start, state
from runs import fork as fork_run
from runs import resume as resume_run
from session import Needs, Session, session
from settings import load
from terminal import Screen
from watch import Watch

MOST_GOAL = 100_000  # characters in the conversation; more goes into a file
GOAL_SHOWN = 2000
GOAL_FILE = "artifacts/goal.md"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 escalated to a person, 4 cancelled, 130 left.",
)
@click.version_option(package_name="perdure", message="perdure %(version)s")
def app() -> None:
    """LLM agents that outlast their processes, on Temporal.

    With no Temporal configured (TEMPORAL_ADDRESS or a profile), a command brings an embedded server; its state lies
    in .perdure, beside perdure.toml.
    """


for each in (chat, answer_, approve, deny, cancel_, event_, mail):
    app.add_command(each)


@app.command()
@click.argument("goal")
@click.option("--agent", help="The agent of agents/*.md that does it.")
@click.option("--context", "-c", multiple=True, metavar="KEY=VALUE", help="Told to the agent; may be repeated.")
@click.option("--max-steps", type=click.IntRange(min=1), help="Tool steps this run may take.")
@click.option("--dedupe-key", help="Starting again with the same key finds the same run.")
@click.option("--id", "run_id", help="The run's id; a new one where it is left out.")
@click.option("--detach", "-d", is_flag=True, help="Print the id and leave; a worker does the run.")
@as_json_option
def run(
    goal: str,
    agent: str | None,
    context: tuple[str, ...],
    max_steps: int | None,
    dedupe_key: str | None,
    run_id: str | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Start an agent run and follow it to its end.

    GOAL says what to do, in words; "-" reads it from standard input.
    """
    if goal == "-" and sys.stdin is None:
        raise click.UsageError("standard input is closed")
    whole = sys.stdin.read() if goal == "-" else goal
    event = _start_event(whole[:MOST_GOAL], agent, context, max_steps, dedupe_key)

    async def main() -> int:
        settings = load()
        settings.check_agent(event.payload.agent)
        if settings.rehearses and not as_json and not detach:
            said = "No model is configured, so the rehearsal model answers, by rule. For a real one set"
            console.print(f"[yellow]{said} ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL.[/]", soft_wrap=True)
        async with session(settings, Needs.nothing if detach else Needs.work) as here:
            begun, named = event, run_id
            if len(whole) > MOST_GOAL:
                named = run_id or run_id_of(event)
                begun = _with_file(event, whole, Workspace(settings.workspaces / folder_name(named)), here)
            handle = await start(here.client, settings.task_queue, begun, named)
            started = handle.id.removeprefix("run:")
            if detach:
                click.echo(json.dumps({"run_id": started}) if as_json else started)
                return 0
            if as_json:
                return await follow_json(here, started, every=False)
            others = [each.run_id async for each in listing(here.client) if each.is_open and each.run_id != started]
            if others:
                console.print(f"[dim]other open runs go on too: {escape(', '.join(others[:5]))} (perdure list)[/]")
            return await follow(here, started, console)

    go(main)


@app.command()
@run_argument
@as_json_option
def watch(run_id: str, as_json: bool) -> None:
    """Follow a run: what has happened, and what happens.

    The run's questions are asked here. Ctrl-C leaves the run; it goes on wherever a worker is.
    """

    async def main() -> int:
        async with session(load(), Needs.work) as here:
            await find(here.client, run_id)
            return await (follow_json(here, run_id, every=True) if as_json else follow(here, run_id, console))

    go(main)


@app.command("list")
@click.option("--waiting", is_flag=True, help="Only runs that wait for a person; all of them.")
@click.option("--follow-ups", is_flag=True, help="Follow-ups instead: what resolves later, and then resumes work.")
@click.option("--limit", type=click.IntRange(1, 10_000), help="How many at most; 30, where not all are asked for.")
@as_json_option
def list_(waiting: bool, follow_ups: bool, limit: int | None, as_json: bool) -> None:
    """List runs, the latest first. What waits for a person (--waiting) are runs and follow-ups."""
    most = limit if limit or waiting else 30

    async def main() -> int:
        async with session(load(), Needs.nothing) as here:
            found = [each async for each in listing(here.client, waiting=waiting, follow_ups=follow_ups, limit=most)]
        if as_json:
            for each in found:
                click.echo(json.dumps(run_row(each)))
        elif not found:
            nothing = "no follow-ups yet" if follow_ups else 'no runs yet; start one: perdure run "…"'
            console.print("no run waits for a person" if waiting else nothing)
        else:
            console.print(run_table(found))
        return 0

    go(main)


@app.command()
@run_argument
@as_json_option
def show(run_id: str, as_json: bool) -> None:
    """Show one run: status, steps, question, cost, and where its files lie. Or a follow-up, as wf:ID."""
    if run_id.startswith(ids.FOLLOW_UP):
        go(lambda: _show_follow_up(run_id, as_json=as_json))

    async def main() -> int:
        settings = load()
        async with session(settings, Needs.answers) as here:
            found = await find(here.client, run_id)
            view = await state(here.client, run_id)
            end = None if found.is_open else await ended(here.client, run_id)
            tree = await below(here.client, found)
        if as_json:
            said = view.model_dump(mode="json") if view else run_row(found)
            told = {"end": dataclasses.asdict(end), "handoff": handoff_sections(end.handoff) or None} if end else {}
            rows = [subtask_row(depth, each) for depth, each in tree]
            click.echo(json.dumps({**said, "end": None, "handoff": None, **told, "subtasks": rows}))
        else:
            print_run(console, found, view, end, settings.workspaces / folder_name(found.run_id))
            if tree:
                print_tree(console, tree)
        return 0

    go(main)


async def _show_follow_up(named: str, *, as_json: bool) -> int:
    async with session(load(), Needs.answers) as here:
        found, state = await find_follow_up(here.client, named), await follow_up_state(here.client, named)
    if as_json:
        click.echo(json.dumps(state.model_dump(mode="json") if state else run_row(found)))
    else:
        print_follow_up(console, found, state)
    return 0


@app.command()
@run_argument
@as_json_option
def trace(run_id: str, as_json: bool) -> None:
    """Print what a run did so far: each turn, each call, each result."""

    async def main() -> int:
        screen = Screen(console)
        async with session(load(), Needs.nothing) as here:
            async for happening in Watch(here.client, run_id, follow=False).happenings():
                if as_json:
                    click.echo(happening_json(happening))
                else:
                    screen.show(happening)
        return 0

    go(main)


@app.command()
@run_argument
@click.option("--detach", "-d", is_flag=True, help="Print the new run's id and leave; a worker does it.")
@as_json_option
def resume(run_id: str, detach: bool, as_json: bool) -> None:
    """Go on with a failed or timed-out run, from its last safe point.

    The new run has its conversation, journal and files. No effect is repeated: what has a result keeps it, and a call
    that was in flight is looked up in the ledger, or asked about.
    """
    go(lambda: _going_on(run_id, None, None, detach=detach, as_json=as_json))


@app.command()
@run_argument
@click.option("--step", type=click.IntRange(min=0), required=True, help="The last step that the new run has; 0: none.")
@click.option("--say", help="Told to the agent where the new run begins.")
@click.option("--detach", "-d", is_flag=True, help="Print the new run's id and leave; a worker does it.")
@as_json_option
def fork(run_id: str, step: int, say: str | None, detach: bool, as_json: bool) -> None:
    """Start a new run from what any run was after one of its steps, finished runs too.

    What the first run did afterwards is not undone; the agent is told of it.
    """
    go(lambda: _going_on(run_id, step, say, detach=detach, as_json=as_json))


async def _going_on(run_id: str, step: int | None, say: str | None, *, detach: bool, as_json: bool) -> int:
    settings = load()
    async with session(settings, Needs.nothing if detach else Needs.work) as here:
        if step is None:
            handle = await resume_run(here.client, settings.task_queue, run_id)
        else:
            handle = await fork_run(here.client, settings.task_queue, run_id, step, say)
        started = handle.id.removeprefix("run:")
        if detach:
            click.echo(json.dumps({"run_id": started}) if as_json else started)
            return 0
        return await (follow_json(here, started, every=False) if as_json else follow(here, started, console))


@app.command()
def worker() -> None:
    """Run a worker against the configured Temporal. The same as `python worker.py`."""
    from worker import main

    main()


@app.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Of the Temporal server; 7233 or a free one.")
@click.option("--ui-port", type=click.IntRange(1, 65535), help="Of the Web UI; 8233 or a free one.")
def dev(port: int | None, ui_port: int | None) -> None:
    """Run the embedded Temporal server, its Web UI and a worker, until Ctrl-C."""

    async def main() -> int:
        settings = load()
        stop = stopping()  # a signal while it is still starting counts too
        async with session(settings, Needs.work, port=port, ui_port=ui_port) as here:
            console.print(f"Temporal   {here.client.service_client.config.target_host}")
            if here.ui:
                console.print(f"Web UI     {here.ui}")
            console.print(f"worker     task queue {settings.task_queue}, model {settings.model}")
            console.print(f"state      {settings.home}", soft_wrap=True)
            console.print("Ctrl-C stops all of it; runs go on at the next start.")
            await stop.wait()
            console.print("stopping …")
        return 0

    go(main, stays=True)


@app.command()
@as_json_option
def tools(as_json: bool) -> None:
    """Show the tool table: what each tool is, what it does to the world, whether it asks."""
    import httpx

    from worker import project_of

    async def main() -> int:
        settings = load()
        async with httpx.AsyncClient() as http:
            offered = project_of(settings, http).tools
        rows = [tool_row(tool, list(settings.agents.values())) for tool in offered.values()]
        if as_json:
            click.echo(json.dumps(rows))
        else:
            console.print(tool_table(rows))
        return 0

    go(main)


@app.command()
@as_json_option
def doctor(as_json: bool) -> None:
    """Check that everything a run needs is there, and say what to do where it is not."""
    from doctor import examine

    async def main() -> int:
        well = True
        async for check in examine():
            well = well and check.ok
            if as_json:
                click.echo(json.dumps(dataclasses.asdict(check)))
            else:
                mark = "[green]✓[/]" if check.ok else "[red]✗[/]"
                console.print(f"{mark} {check.name:<18} {escape(check.found)}", soft_wrap=True)
        return 0 if well else 1

    go(main)


def _start_event(
    goal: str, agent: str | None, context: tuple[str, ...], max_steps: int | None, dedupe_key: str | None
) -> StartEvent:
    told: dict[str, Any] = {}
    for pair in context:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--context takes KEY=VALUE, not {pair!r}")
        told[key] = value
    if max_steps is not None:
        told["max_steps"] = max_steps
    start_key = ids.start_key(dedupe_key) if dedupe_key else None
    payload = {"goal": goal, "context": told, "agent": agent}
    try:
        return StartEvent.model_validate({"type": "agentic.start", "payload": payload, "dedupe_key": start_key})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"] if part != "payload")
        raise click.UsageError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def _with_file(event: StartEvent, goal: str, workspace: Workspace, here: Session) -> StartEvent:
    """A goal that no conversation could hold goes into a file of the run; its beginning says where it goes on."""
    if here.ui is None:
        raise Refused(
            f"the goal has {len(goal):,} characters, and {MOST_GOAL:,} is the most: put the rest where a tool of the "
            "agent can read it"
        )
    workspace.create()
    workspace.write(GOAL_FILE, goal.encode(errors="replace"))
    told = f"{goal[:GOAL_SHOWN]}\n\n… The whole goal, {len(goal):,} characters, is in {GOAL_FILE}: read it."
    return event.model_copy(update={"payload": event.payload.model_copy(update={"goal": told})})


def main() -> NoReturn:
    if sys.stdout is None:  # started with its standard output closed
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open to the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # who reads a pipe sees each line as it comes
    if not console.is_terminal:
        console.width = 120  # a pipe has no width; lines there should not break at 80
    try:
        app(prog_name="perdure", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "perdure"
        complain(f"{error.format_message()} (see {command} --help)")
        leave(2)
    except (click.Abort, KeyboardInterrupt):
        leave(DETACHED)
    leave(0)


if __name__ == "__main__":
    main()
