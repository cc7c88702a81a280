"""`perdure event`: publish external events to the follow-up tasks that wait for them; follow-ups in `perdure show`."""

import codecs
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from pydantic import ValidationError
from pydantic_core import from_json
from rich.console import Console
from rich.markup import escape
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.client.run_list import RunInfo
from perdure.contracts.strict_input import JsonError, parse_strict_json
from perdure.decisions.errors import format_validation_error
from perdure.decisions.text.formatting import truncate
from perdure.features.follow_ups.activities import NotAwaitedError
from perdure.features.follow_ups.client import publish_external_event
from perdure.features.follow_ups.contract import MESSAGE_CREATED, Event, FollowUpState
from perdure.features.follow_ups.rules.state import open_prompts
from perdure.features.follow_ups.rules.topic import event_id
from perdure.session import Needs, open_session
from perdure.settings import ProjectError, load_settings
from perdure.terminal.command import as_json_option, async_command, console, format_examples
from perdure.terminal.report import format_age, status_colour


@dataclass(frozen=True)
class EventResult:
    """The result of one event: its topic, or why it was rejected. `line` is its first line in the input."""

    line: int
    event: str | None = None
    topic: str | None = None
    refused: str | None = None


@click.command("event", epilog=format_examples("event reply.json", "event - < events.jsonl"))
@click.argument("file", metavar="[FILE|-]", default="-", type=click.Path(dir_okay=False, allow_dash=True))
@as_json_option
@async_command()
async def event_command(file: str, as_json: bool) -> int:
    """Publish an external event.

    FILE has one event as JSON, or one per line; "-" is standard input. An event is {"type":
    "evt.adapter.message.created", "data": {"platform", "channelId", "messageId", "userId", "text", "ts", "raw"}}. An
    event that is sent again counts once.
    """
    settings = load_settings(strict=False)
    data = _read_input(file)
    is_accepted = True
    async with open_session(settings, Needs.nothing) as session:
        for line, event in _split_events(data):
            result = await _publish_event(session.client, settings.task_queue, line, event)
            is_accepted = is_accepted and result.refused is None
            _print_result(result, as_json=as_json)
    return 0 if is_accepted else 1


def _read_input(file: str) -> bytes:
    if file != "-":
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise ProjectError(f"{file}: {error.strerror}") from None
    elif sys.stdin is None:
        raise click.UsageError("standard input is closed")
    else:
        data = sys.stdin.buffer.read()
    return data.removeprefix(codecs.BOM_UTF8)


def _split_events(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each event with its line number: the whole input if it is one JSON value, or each line."""
    try:
        from_json(data)
    except ValueError:
        yield from ((number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip())
    else:
        yield 1, data


async def _publish_event(client: Client, task_queue: str, line: int, data: bytes) -> EventResult:
    try:
        event = _parse_event(data)
        return EventResult(line, event_id(event), await publish_external_event(client, task_queue, event))
    except NotAwaitedError as error:
        return EventResult(line, refused=str(error))
    except RPCError as error:
        return EventResult(line, refused=f"Temporal rejected it: {truncate(error.message)}")


def _parse_event(data: bytes) -> Event:
    """Parse an event. Raises NotAwaitedError."""
    try:
        value = parse_strict_json(data)
    except JsonError as error:
        raise NotAwaitedError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("type") != MESSAGE_CREATED:
        kind = value.get("type") if isinstance(value, dict) else value
        raise NotAwaitedError(f"only {MESSAGE_CREATED} is accepted, not {truncate(str(kind), 100)}")
    try:
        return Event.model_validate(value)
    except ValidationError as error:
        raise NotAwaitedError(format_validation_error(error)) from None


def _print_result(result: EventResult, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(result)))
    elif result.refused is not None:
        console.print(f"[red]line {result.line}:[/] {escape(result.refused)}", soft_wrap=True)
    else:
        console.print(f"{escape(str(result.event))} → {escape(str(result.topic))}", soft_wrap=True)


def print_follow_up(console: Console, run: RunInfo, state: FollowUpState | None) -> None:
    """Print a follow-up: its tasks, its open questions, and what it ignored."""
    colour, started = status_colour(run.status), format_age(run.execution.start_time)
    about = f", {state.state}" if state else "  [yellow]no worker answers now[/]"
    console.print(f"[bold]{escape(run.run_id)}[/]  [{colour}]{run.status}[/]{about}  started {started} ago")
    if state is None:
        return
    target = state.definition.resume_target
    console.print(f"  summary  {escape(truncate(state.definition.summary, 500))}")
    console.print(f"  resumes  in {escape(target.session_id)}, after {state.definition.completion} of its tasks")
    for task in state.tasks:
        by = f" by {escape(truncate(task.resolved_by, 80))}" if task.resolved_by else ""
        described = escape(truncate(task.description, 200))
        console.print(f"  task     {escape(task.task_id)} {described} ({task.kind}): {task.state}{by}", soft_wrap=True)
    for question in open_prompts(state):
        line = f'           perdure answer {run.run_id} --question {escape(question.task_id)} "…"'
        console.print(line, soft_wrap=True)
    for late in state.late[-3:]:
        console.print(f"  late     {escape(late.event)}, for task {escape(late.task_id)}")
    for notice in state.ignored[-3:]:
        console.print(f"  ignored  {escape(notice)}")
