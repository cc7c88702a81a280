"""`perdure event`: publish external events to the follow-up tasks that wait for them."""

import codecs
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from pydantic import ValidationError
from pydantic_core import from_json
from rich.markup import escape
from temporalio.client import Client
from temporalio.service import RPCError

from activities.followup.topic import NotAwaitedError
from contracts.strict_input import JsonError, parse_strict_json
from contracts.topic import MESSAGE_CREATED, Event
from decisions.errors import format_validation_error
from decisions.followup.topic import event_id
from decisions.text.formatting import truncate
from perdure.client.runs import publish_external_event
from perdure.session import Needs, open_session
from perdure.terminal.command import as_json_option, async_command, console, format_examples
from settings import ProjectError, load_settings


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
    settings = load_settings()
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
        return EventResult(line, refused=f"Temporal rejected it: {truncate(error.message, 200)}")


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
