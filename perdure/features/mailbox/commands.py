"""`perdure mail`: the bridge between a folder and an agent's mailbox."""

import asyncio
import json
import logging
import signal
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path

import click
from rich.markup import escape
from temporalio.client import Client

from perdure.activities.security import create_private, make_private
from perdure.features.mailbox.activities.folder import DEAD, MailFolder
from perdure.features.mailbox.activities.message import MessageError, parse_message
from perdure.features.mailbox.activities.records import TaskRecords
from perdure.features.mailbox.activities.server import OpenWork
from perdure.features.mailbox.bridge import Bridge
from perdure.features.mailbox.contract import MAX_MESSAGE_BYTES, Delivery, InboxMessage
from perdure.features.mailbox.places import note_mailbox
from perdure.features.mailbox.rules.admission import allow_again, new_message
from perdure.features.mailbox.rules.poll_mode import PollPolicy
from perdure.process.streams import exit_now
from perdure.session import Needs, Session, open_session
from perdure.settings import Settings, load_settings
from perdure.settings.problems import resolve_path
from perdure.telemetry import log_to
from perdure.terminal.command import DurationType, as_json_option, async_command, console, format_examples
from perdure.terminal.completion import complete_agents
from perdure.terminal.follow import DETACHED, stop_event

CYCLE_END_SECONDS = 2.0  # seconds for the current cycle to end
QUIET_POLL_SECONDS = 0.5  # seconds between checks whether all work is done
MAX_DEAD_LETTERS_LISTED = 1000  # dead letters listed


@click.command("mail", epilog=format_examples("mail ~/Scribe --agent scribe", "mail ~/Scribe --agent scribe --dead"))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--agent", required=True, shell_complete=complete_agents, help="The agent in agents/*.md that owns the mailbox."
)
@click.option(
    "--once",
    is_flag=True,
    help="Exit when no file is undelivered and all open work waits for files, people or peers.",
)
@click.option(
    "--idle-after",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Empty polls before the bridge goes idle.",
)
@click.option(
    "--dormant-after",
    type=DurationType(),
    default="5m",
    show_default=True,
    help="Time without work before the bridge goes dormant; then only a file wakes it.",
)
@click.option("--redeliver", metavar="ID|FILE|all", help="Redeliver dead letters: of a message, a file, or all.")
@click.option("--dead", is_flag=True, help="List dead letters with reasons, then exit.")
@as_json_option
@async_command()
async def mail_command(
    folder: Path,
    agent: str,
    once: bool,
    idle_after: int,
    dormant_after: timedelta,
    redeliver: str | None,
    dead: bool,
    as_json: bool,
) -> int:
    """Run the bridge between a folder and an agent's mailbox.

    Tasks and replies arrive in FOLDER/inbox/PLAN/; results go to FOLDER/outbox/PLAN/. Several bridges can share a
    folder: each file is handled once. Ctrl-C exits; active runs continue.
    """
    settings = load_settings(strict=False)
    mail_folder = MailFolder(resolve_path(folder), agent, settings.agent(agent).mailbox)
    mail_folder.open_folder()
    if dead:
        _print_dead_letters(mail_folder, as_json=as_json)
        return 0
    if redeliver is not None:
        count = _redeliver(mail_folder, redeliver)
        files = "1 file" if count == 1 else f"{count} files"
        _print_line(f"redelivered: {files}", as_json=as_json, redelivered=count)
        if not once:
            return 0
    async with open_session(settings, Needs.work) as session:
        if session.ui is None:
            make_private(settings.home)
            log = create_private(settings.home / "mail.log")
            log_to(logging.FileHandler(log, encoding="utf-8"), settings.secrets)
        note_mailbox(settings.home, mail_folder)
        policy = PollPolicy(idle_after=idle_after, dormant_after=dormant_after)
        return await _run_bridge(session, mail_folder, policy, once=once, as_json=as_json)


async def _run_bridge(session: Session, folder: MailFolder, policy: PollPolicy, *, once: bool, as_json: bool) -> int:
    stop, code = stop_event(), 0

    def interrupted() -> None:
        nonlocal code
        if stop.is_set():
            exit_now(DETACHED)
        code = DETACHED
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
    bridge = make_bridge(session.client, session.settings, folder, policy)
    _print_line(f"mailbox of {folder.agent}: {folder.root / folder.incoming}", as_json=as_json, folder=folder.id)
    running = asyncio.create_task(bridge.run(stop))
    telling = asyncio.create_task(_report_mode(bridge, as_json=as_json))
    done = asyncio.create_task(_wait_until_quiet(bridge) if once else stop.wait())
    await asyncio.wait({running, done}, return_when=asyncio.FIRST_COMPLETED)
    open_work = await bridge.open_work()
    stop.set()
    telling.cancel()
    done.cancel()
    await asyncio.wait({running}, timeout=CYCLE_END_SECONDS)
    if running.done():
        running.result()
    running.cancel()  # the next bridge goes on with what is at work now
    if once and (bridge.unread or folder.refused):
        code = 1  # these files stay in place, and were reported
    summary, numbers = (_summarize_open(open_work), asdict(open_work)) if open_work else ("left", {})
    _print_line(summary, as_json=as_json, **numbers)
    return code


def make_bridge(client: Client, settings: Settings, folder: MailFolder, policy: PollPolicy) -> Bridge:
    return Bridge(
        client,
        settings.task_queue,
        folder,
        settings.workspaces,
        policy,
        keys=settings.answer_keys,
        secrets=settings.secrets,
    )


def _summarize_open(work: OpenWork) -> str:
    waits = [(work.inputs, "inputs"), (work.people, "a person"), (work.peers, "a peer")]
    parts = [f"{count} {'waits' if count == 1 else 'wait'} for {what}" for count, what in waits if count]
    return f"bridge stopped; open messages: {work.open}" + (f" ({', '.join(parts)})" if parts else "")


async def _report_mode(bridge: Bridge, *, as_json: bool) -> None:
    """Print the bridge's mode and its last error after each change."""
    known: tuple[str, str] = ("", "")
    while True:
        await bridge.cycled.wait()
        bridge.cycled.clear()
        now = (bridge.pace.mode.value, bridge.last_error)
        if now != known:
            known = now
            reason = f": {now[1]}" if now[1] else ""
            _print_line(f"{now[0]}{reason}", as_json=as_json, mode=now[0], trouble=now[1], open=bridge.open)


async def _wait_until_quiet(bridge: Bridge) -> bool:
    """Wait until no file is left to judge and all open work waits for files, people or peers."""
    quiet_since: int | None = None  # the first cycle without work
    while quiet_since is None or bridge.cycle < quiet_since + 2:
        await asyncio.sleep(QUIET_POLL_SECONDS)
        open_work = await bridge.open_work() if bridge.is_quiet else None
        is_quiet = open_work is not None and open_work.is_idle
        quiet_since = None if not is_quiet else bridge.cycle if quiet_since is None else quiet_since
    return True


def _redeliver(folder: MailFolder, which: str) -> int:
    """Return dead letters to the new files: of a message, a file, or all. Return their number."""
    records, count = TaskRecords(folder.below), 0
    for plan, file in list(folder.dead_letters()):
        message = _dead_message(folder, plan, file)
        if which not in ("all", file, message.message_id if message is not None else None):
            continue
        if message is not None:
            records.update(message.task, partial(allow_again, key=message.key))
        folder.restore_file(plan, file)
        count += 1
    return count


def _dead_message(folder: MailFolder, plan: str, file: str) -> InboxMessage | None:
    """Return the message in a dead letter, if it is one."""
    try:
        data = folder.below.read(folder.incoming, plan, DEAD, file, most=MAX_MESSAGE_BYTES)
        head, _ = parse_message(data, plan)
    except (OSError, MessageError):
        return None
    return new_message(Delivery(file=file, plan=plan, sha256=sha256(data).hexdigest()), head)


def _print_dead_letters(folder: MailFolder, *, as_json: bool) -> None:
    for plan, file in islice(folder.dead_letters(), MAX_DEAD_LETTERS_LISTED):
        reason = folder.dead_letter_reason(plan, file)
        if as_json:
            click.echo(json.dumps({"plan": plan, "file": file, "why": reason}))
        else:
            console.print(f"{escape(plan)}  [bold]{escape(file)}[/]  {escape(reason)}", soft_wrap=True)


def _print_line(line: str, *, as_json: bool, **fields: object) -> None:
    if as_json:
        click.echo(json.dumps(fields))
    else:
        console.print(escape(line), soft_wrap=True)
