"""`run`, `watch`, `resume`, `fork`: start a run, or go on with one, and follow it to its end."""

import json
import sys
from typing import Any

import click
from pydantic import ValidationError
from rich.markup import escape
from temporalio.client import WorkflowHandle

from activities.storage.workspace import Workspace, folder_name
from contracts.run.events import ResumePayload, StartEvent
from decisions import ids
from perdure.client.errors import Refused
from perdure.client.run_list import find, listing
from perdure.client.runs import fork as fork_run
from perdure.client.runs import resume as resume_run
from perdure.client.runs import run_id_of, start
from perdure.session import Needs, Session, session
from perdure.terminal.command import as_json_option, complain, console, examples, go, run_argument, utf8, wrong_usage
from perdure.terminal.completion import agent_names
from perdure.terminal.follow import follow, follow_json
from perdure.terminal.free_text import FreeText
from perdure.terminal.goal_input import start_with_file
from settings import load

MOST_GOAL = 100_000  # characters in the conversation; more goes into a file


@click.command(
    cls=FreeText,
    epilog=examples(
        'run "fetch https://example.com and say in two lines what it is"',
        'run --agent clerk -c order=A-1001 "where is it?"',
        "run --detach - < goal.md",
    ),
)
@click.argument("goal")
@click.option("--agent", shell_complete=agent_names, help="The agent of agents/*.md that does it.")
@click.option(
    "--context",
    "-c",
    multiple=True,
    metavar="KEY=VALUE",
    callback=utf8,
    help="Told to the agent; may be repeated.",
)
@click.option("--max-steps", type=click.IntRange(min=1), help="Tool steps this run may take.")
@click.option("--dedupe-key", help="Starting again with the same key finds the same run.")
@click.option("--id", "run_id", help="The run's id, which no run has had yet; made up where it is left out.")
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

    GOAL says what to do, in words; "-" reads it from standard input. A word that begins with "-" comes after "--".
    """
    whole = _given() if goal == "-" else goal
    event = start_event(whole[:MOST_GOAL], agent, context, max_steps, dedupe_key)

    async def main() -> int:
        settings = load()
        settings.check_agent(event.payload.agent)
        async with session(settings, Needs.nothing if detach else Needs.work) as here:
            if len(whole) > MOST_GOAL:
                handle = await _start_with_file(here, event, whole, run_id or run_id_of(event))
            else:
                handle = await start(here.client, settings.task_queue, event, run_id)
            if run_id is not None and dedupe_key is None and handle.first_execution_run_id is None:
                raise Refused(f"there is a run {run_id} already, and it is not started again: perdure watch {run_id}")
            started = handle.id.removeprefix("run:")
            if detach:
                return await _detached(here, started, as_json=as_json)
            if as_json:
                return await follow_json(here, started, every=False)
            if here.rehearsal:
                console.print(f"[yellow]{escape(here.rehearsal)}[/]", soft_wrap=True)
            others = [each.run_id async for each in listing(here.client) if each.is_open and each.run_id != started]
            if others:
                console.print(f"[dim]other open runs go on too: {escape(', '.join(others[:5]))} (perdure list)[/]")
            return await follow(here, started, console)

    go(main)


@click.command(epilog=examples("watch RUN", "watch RUN --json | jq .type"))
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


@click.command(epilog=examples("resume RUN"))
@run_argument
@click.option("--detach", "-d", is_flag=True, help="Print the new run's id and leave; a worker does it.")
@as_json_option
def resume(run_id: str, detach: bool, as_json: bool) -> None:
    """Go on with a failed or timed-out run, from its last safe point.

    The new run has its conversation, journal and files. No effect is repeated: what has a result keeps it, and a call
    that was in flight is looked up in the ledger, or asked about.
    """
    go(lambda: _going_on(run_id, None, None, detach=detach, as_json=as_json))


@click.command(epilog=examples('fork RUN --step 3 --say "use the other supplier"'))
@run_argument
@click.option("--step", type=click.IntRange(min=0), required=True, help="The last step that the new run has; 0: none.")
@click.option("--say", help="Told to the agent where the new run begins.")
@click.option("--detach", "-d", is_flag=True, help="Print the new run's id and leave; a worker does it.")
@as_json_option
def fork(run_id: str, step: int, say: str | None, detach: bool, as_json: bool) -> None:
    """Start a new run from what a run was after one of its steps.

    The run may be finished, too. What the first run did afterwards is not undone; the agent is told of it.
    """
    try:
        ResumePayload(run_id=run_id, step=step, say=say)
    except ValidationError as error:
        raise wrong_usage(error) from None
    go(lambda: _going_on(run_id, step, say, detach=detach, as_json=as_json))


def _given() -> str:
    """All of standard input."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed")
    try:
        return sys.stdin.buffer.read().decode(sys.stdin.encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"standard input is not {sys.stdin.encoding.upper()}, from byte {error.start:,}"
        ) from None


async def _going_on(run_id: str, step: int | None, say: str | None, *, detach: bool, as_json: bool) -> int:
    settings = load()
    async with session(settings, Needs.nothing if detach else Needs.work) as here:
        if step is None:
            handle = await resume_run(here.client, settings.task_queue, run_id)
        else:
            handle = await fork_run(here.client, settings.task_queue, run_id, step, say)
        started = handle.id.removeprefix("run:")
        if detach:
            return await _detached(here, started, as_json=as_json)
        return await (follow_json(here, started, every=False) if as_json else follow(here, started, console))


async def _start_with_file(here: Session, event: StartEvent, goal: str, run_id: str) -> WorkflowHandle[Any, Any]:
    if here.ui is None:
        raise Refused(
            f"the goal has {len(goal):,} characters, and {MOST_GOAL:,} is the most: put the rest where a tool of the "
            "agent can read it"
        )
    workspace = Workspace(here.settings.workspaces / folder_name(run_id))
    return await start_with_file(here.client, here.settings.task_queue, workspace, event, goal, run_id)


async def _detached(here: Session, run_id: str, *, as_json: bool) -> int:
    """The id, for whoever reads it; beside it, for a person, who answers and what is missing."""
    click.echo(json.dumps({"run_id": run_id}) if as_json else run_id)
    if not as_json:
        for line in filter(None, (here.rehearsal, await here.no_worker(run_id))):
            complain(line)
    return 0


def start_event(
    goal: str,
    agent: str | None,
    context: tuple[str, ...] = (),
    max_steps: int | None = None,
    dedupe_key: str | None = None,
) -> StartEvent:
    """Raises click.UsageError."""
    told: dict[str, Any] = {}
    for pair in context:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--context takes KEY=VALUE, not {pair!r}")
        told[key] = value
    if max_steps is not None:
        told["max_steps"] = max_steps
    if dedupe_key == "":  # as of a variable that is not set: two starts would be two runs
        raise click.UsageError("--dedupe-key is empty; leave it out, or say by what the start is known")
    start_key = ids.start_key(dedupe_key) if dedupe_key else None
    payload = {"goal": goal, "context": told, "agent": agent}
    try:
        return StartEvent.model_validate({"type": "agentic.start", "payload": payload, "dedupe_key": start_key})
    except ValidationError as error:
        raise wrong_usage(error) from None
