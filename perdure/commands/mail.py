"""`perdure mail`: the bridge between a folder and an agent's mailbox, in the foreground."""

import asyncio
import json
import logging
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import click
from pydantic import ValidationError
from rich.markup import escape
from temporalio.client import Client
from temporalio.worker import Worker

from activities.mailbox.client import tell
from activities.mailbox.commands import Carrier
from activities.mailbox.folder import DEAD, MailFolder
from activities.mailbox.in_hand import in_hand
from activities.security.private import create_private, make_private
from activities.security.redaction import Redaction
from contracts.mail.mailbox import Redeliver
from decisions import ids
from decisions.mailbox.poll_mode import Patience
from decisions.text.formatting import cut
from perdure.process.mailbox_bridge import Bridge
from perdure.process.shutdown import leave
from perdure.session import Needs, Session, session
from perdure.terminal.command import DurationType, as_json_option, console, examples, go
from perdure.terminal.completion import agent_names
from perdure.terminal.follow import DETACHED, stopping
from settings import Settings, load
from settings.problems import resolved
from telemetry import log_to

LEAVES_WITHIN = 2.0  # seconds in which a cycle comes to its end
LOOKS_EVERY = 0.5  # seconds between looks whether all is done
MOST_DEAD = 1000  # dead letters that are shown
GRACE = timedelta(seconds=5)  # for the orders that are being carried out when it leaves
AT_ONCE = 4  # `carry` activities, each of several orders


@click.command("mail", epilog=examples("mail ~/Scribe --agent scribe", "mail ~/Scribe --agent scribe --dead"))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--agent", required=True, shell_complete=agent_names, help="The agent of agents/*.md whose mailbox the folder is."
)
@click.option(
    "--once",
    is_flag=True,
    help="Leave when nothing is left to come, and what is in hand waits for files, people or peers.",
)
@click.option(
    "--idle-after",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Looks without work until it is idle.",
)
@click.option(
    "--dormant-after",
    type=DurationType(),
    default="5m",
    show_default=True,
    help="Without work; then only a file wakes it.",
)
@click.option("--redeliver", metavar="ID|FILE|all", help="Bring dead letters back: of a message, a file, or all.")
@click.option("--dead", is_flag=True, help="Show the dead letters and why they are, and leave.")
@as_json_option
def mail(
    folder: Path,
    agent: str,
    once: bool,
    idle_after: int,
    dormant_after: timedelta,
    redeliver: str | None,
    dead: bool,
    as_json: bool,
) -> None:
    """Take tasks and replies that come as files in a folder.

    They come in FOLDER/inbox/PLAN/, and what becomes of them goes into outbox/PLAN/. Several may run on one folder:
    each file is handled once. Ctrl-C leaves; what is at work goes on.
    """

    async def main() -> int:
        settings = load()
        there = MailFolder(resolved(folder), agent, settings.agent(agent).mailbox)
        there.open()
        if dead:
            _show_dead(there, as_json=as_json)
            return 0
        if redeliver is not None and not once:
            async with session(settings, Needs.nothing) as here:
                await _redeliver(here, redeliver, agent)
            _say("ordered: a bridge of the folder brings them back", as_json=as_json, ordered=redeliver)
            return 0
        async with session(settings, Needs.work) as here:
            if here.ui is None:
                make_private(settings.home)
                log_to(
                    logging.FileHandler(create_private(settings.home / "mail.log"), encoding="utf-8"), settings.secrets
                )
            if redeliver is not None:
                await _redeliver(here, redeliver, agent)
            patience = Patience(idle_after=idle_after, dormant_after=dormant_after)
            return await _bridge(here, there, patience, once=once, as_json=as_json)

    go(main)


async def _bridge(here: Session, folder: MailFolder, patience: Patience, *, once: bool, as_json: bool) -> int:
    stop, code = stopping(), 0

    def interrupted() -> None:
        nonlocal code
        if stop.is_set():
            leave(DETACHED)
        code = DETACHED
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
    bridge = Bridge(here.client, here.settings.task_queue, folder, patience, keys=here.settings.answer_keys)
    _say(f"mailbox of {folder.agent}: {folder.root / folder.incoming}", as_json=as_json, folder=folder.id)
    async with carrying(here.client, here.settings, folder):
        running = asyncio.create_task(bridge.run(stop))
        telling = asyncio.create_task(_tell(bridge, as_json=as_json))
        done = asyncio.create_task(_done(here.client, bridge) if once else stop.wait())
        await asyncio.wait({running, done}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        telling.cancel()
        done.cancel()
        await asyncio.wait({running}, timeout=LEAVES_WITHIN)
        if running.done():
            running.result()
        running.cancel()  # what it was delivering is delivered again by the next one
    if once and (bridge.unread or folder.refused):
        code = 1  # they stay where they are, and were told of
    left = await in_hand(here.client, folder.agent)
    _say(left.told(), as_json=as_json, **asdict(left)) if left else _say("left", as_json=as_json)
    return code


@asynccontextmanager
async def carrying(client: Client, settings: Settings, folder: MailFolder) -> AsyncIterator[None]:
    """Carries out the orders of this folder while the block runs."""
    carrier = Carrier(client, folder, settings.workspaces, settings.task_queue)
    async with Worker(
        client,
        task_queue=ids.mail_queue(folder.id),
        activities=[carrier.carry],
        interceptors=[Redaction(settings.secrets)],
        max_concurrent_activities=AT_ONCE,
        graceful_shutdown_timeout=GRACE,
    ):
        yield


async def _tell(bridge: Bridge, *, as_json: bool) -> None:
    """What changes: the mode, and what keeps it from going on."""
    known: tuple[str, str] = ("", "")
    while True:
        await bridge.cycled.wait()
        bridge.cycled.clear()
        now = (bridge.pace.mode.value, bridge.hindrance)
        if now != known:
            known = now
            why = f": {now[1]}" if now[1] else ""
            _say(f"{now[0]}{why}", as_json=as_json, mode=now[0], trouble=now[1], open=bridge.open)


async def _done(client: Client, bridge: Bridge) -> bool:
    """Returns when no file is left to be delivered, and what is in hand waits for files or for a person."""
    quiet_since: int | None = None  # the cycle in which nothing was left to do
    while quiet_since is None or bridge.cycle < quiet_since + 2:
        await asyncio.sleep(LOOKS_EVERY)
        left = await in_hand(client, bridge.folder.agent) if bridge.is_quiet else None
        is_quiet = left is not None and left.is_idle
        quiet_since = None if not is_quiet else bridge.cycle if quiet_since is None else quiet_since
    return True


async def _redeliver(here: Session, which: str, agent: str) -> None:
    """A file is known by the mark that it was given when it was claimed."""
    is_file = re.match(r"\d{8}T\d{6}Z-[0-9a-f]{6}~", which) is not None
    named = {} if which == "all" else {"file": which} if is_file else {"message_id": which}
    try:
        body = Redeliver.model_validate({**named, "by": "perdure mail"})
    except ValidationError:
        raise click.UsageError(
            f"--redeliver takes the id of a message, a file of .deadletter/, or all, not {cut(which, 80)!r}"
        ) from None
    await tell(here.client, here.settings.task_queue, agent, "redeliver", body)


def _show_dead(folder: MailFolder, *, as_json: bool) -> None:
    shown = 0
    for plan in folder.plans():
        for file in folder.below.names(folder.incoming, plan, DEAD):
            if file.endswith((".reason.json", ".envelope.json")) or shown == MOST_DEAD:
                continue
            shown += 1
            why = folder.reason(plan, file)
            if as_json:
                click.echo(json.dumps({"plan": plan, "file": file, "why": why}))
            else:
                console.print(f"{escape(plan)}  [bold]{escape(file)}[/]  {escape(why)}", soft_wrap=True)


def _say(line: str, *, as_json: bool, **told: object) -> None:
    if as_json:
        click.echo(json.dumps(told))
    else:
        console.print(escape(line), soft_wrap=True)
