"""`perdure event`: what happened outside comes in, and meets the task that waits for it."""

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

from activities.followup.topic import NotAwaited
from contracts.strict_json import read_json
from contracts.topic import MESSAGE_CREATED, Event
from decisions.errors import fault_line
from decisions.followup.topic import event_id
from decisions.text.formatting import cut
from perdure.client.publish import publish
from perdure.session import Needs, session
from perdure.terminal.command import as_json_option, console, examples, go
from settings import ProjectError, load


@dataclass(frozen=True)
class Told:
    """What became of one event: published to a topic, or why not. `line` is where it begins in what was read."""

    line: int
    event: str | None = None
    topic: str | None = None
    refused: str | None = None


@click.command("event", epilog=examples("event reply.json", "event - < events.jsonl"))
@click.argument("file", metavar="[FILE|-]", default="-", type=click.Path(dir_okay=False, allow_dash=True))
@as_json_option
def event_(file: str, as_json: bool) -> None:
    """Publish what happened outside, for what waits for it.

    FILE has one event as JSON, or one a line; "-" is standard input. An event is {"type":
    "evt.adapter.message.created", "data": {"platform", "channelId", "messageId", "userId", "text", "ts", "raw"}}. Sent
    again it counts once.
    """

    async def main() -> int:
        settings = load()
        data = _given(file)
        well = True
        async with session(settings, Needs.nothing) as here:
            for line, written in _events(data):
                told = await _published(here.client, settings.task_queue, line, written)
                well = well and told.refused is None
                _print(told, as_json=as_json)
        return 0 if well else 1

    go(main)


def _given(file: str) -> bytes:
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


def _events(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each event with its line: all of it where that is one JSON object, else what stands on each line."""
    if _is_json(data):
        yield 1, data
        return
    yield from ((number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip())


def _is_json(data: bytes) -> bool:
    try:
        from_json(data)
    except ValueError:
        return False
    return True


async def _published(client: Client, task_queue: str, line: int, written: bytes) -> Told:
    """One that cannot be published is told, and the others go on."""
    try:
        event = _read(written)
        return Told(line, event_id(event), await publish(client, task_queue, event))
    except NotAwaited as why:
        return Told(line, refused=str(why))
    except RPCError as error:
        return Told(line, refused=f"Temporal does not take it: {cut(error.message, 200)}")


def _read(written: bytes) -> Event:
    """Raises NotAwaited."""
    try:
        found = read_json(written)
        from_json(written)  # refuses what is nested too deep for a run
    except ValueError as error:
        raise NotAwaited(f"not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("type") != MESSAGE_CREATED:
        kind = found.get("type") if isinstance(found, dict) else found
        raise NotAwaited(f"only {MESSAGE_CREATED} is taken, not {cut(str(kind), 100)}")
    try:
        return Event.model_validate(found)
    except ValidationError as error:
        raise NotAwaited(fault_line(error)) from None


def _print(told: Told, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(told)))
    elif told.refused is not None:
        console.print(f"[red]line {told.line}:[/] {escape(told.refused)}", soft_wrap=True)
    else:
        console.print(f"{escape(str(told.event))} → {escape(str(told.topic))}", soft_wrap=True)
