"""`perdure mail`: the bridge between a folder and an agent's mailbox."""

import asyncio
import json
import logging
import re
import signal
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import click
from pydantic import ValidationError
from rich.markup import escape
from temporalio.client import Client
from temporalio.worker import Worker

from activities.mailbox.client import OpenWork, query_open_work, signal_mailbox
from activities.mailbox.commands import OrderRunner
from activities.mailbox.folder import DEAD, MailFolder
from activities.security.private import create_private, make_private
from activities.security.redaction import RedactionInterceptor
from contracts.mail.mailbox import Redeliver
from decisions import ids
from decisions.mailbox.poll_mode import PollPolicy
from decisions.text.formatting import truncate
from perdure.process.mailbox_bridge import Bridge
from perdure.process.shutdown import exit_now
from perdure.session import Needs, Session, open_session
from perdure.terminal.command import DurationType, as_json_option, async_command, console, format_examples
from perdure.terminal.completion import complete_agents
from perdure.terminal.follow import DETACHED, stop_event
from settings import Settings, load_settings
from settings.problems import resolve_path
from telemetry import log_to

CYCLE_END_SECONDS = 2.0  # seconds for the current cycle to end
QUIET_POLL_SECONDS = 0.5  # seconds between checks whether all work is done
MAX_DEAD_LETTERS_LISTED = 1000  # dead letters listed
BRIDGE_GRACE = timedelta(seconds=5)  # for tasks that are running when the bridge stops
MAX_BRIDGE_ACTIVITIES = 4  # concurrent `carry` activities, each with several tasks


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
    settings = load_settings()
    mail_folder = MailFolder(resolve_path(folder), agent, settings.agent(agent).mailbox)
    mail_folder.open_folder()
    if dead:
        _print_dead_letters(mail_folder, as_json=as_json)
        return 0
    if redeliver is not None and not once:
        async with open_session(settings, Needs.nothing) as session:
            await _request_redelivery(session, redeliver, agent)
        _print_line("requested: a bridge of this folder redelivers them", as_json=as_json, ordered=redeliver)
        return 0
    async with open_session(settings, Needs.work) as session:
        if session.ui is None:
            make_private(settings.home)
            log = create_private(settings.home / "mail.log")
            log_to(logging.FileHandler(log, encoding="utf-8"), settings.secrets)
        if redeliver is not None:
            await _request_redelivery(session, redeliver, agent)
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
    bridge = Bridge(session.client, session.settings.task_queue, folder, policy, keys=session.settings.answer_keys)
    _print_line(f"mailbox of {folder.agent}: {folder.root / folder.incoming}", as_json=as_json, folder=folder.id)
    async with bridge_worker(session.client, session.settings, folder):
        running = asyncio.create_task(bridge.run(stop))
        telling = asyncio.create_task(_report_mode(bridge, as_json=as_json))
        done = asyncio.create_task(_wait_until_quiet(session.client, bridge) if once else stop.wait())
        await asyncio.wait({running, done}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        telling.cancel()
        done.cancel()
        await asyncio.wait({running}, timeout=CYCLE_END_SECONDS)
        if running.done():
            running.result()
        running.cancel()  # the next bridge delivers again what is in delivery now
    if once and (bridge.unread or folder.refused):
        code = 1  # these files stay in place, and were reported
    open_work = await query_open_work(session.client, folder.agent)
    summary, numbers = (_summarize_open(open_work), asdict(open_work)) if open_work else ("left", {})
    _print_line(summary, as_json=as_json, **numbers)
    return code


def _summarize_open(work: OpenWork) -> str:
    waits = [(work.inputs, "inputs"), (work.people, "a person"), (work.peers, "a peer")]
    parts = [f"{count} {'waits' if count == 1 else 'wait'} for {what}" for count, what in waits if count]
    return f"bridge stopped; open messages: {work.open}" + (f" ({', '.join(parts)})" if parts else "")


def bridge_worker(client: Client, settings: Settings, folder: MailFolder) -> Worker:
    """Return a worker for the tasks of this folder."""
    return Worker(
        client,
        task_queue=ids.mail_queue(folder.id),
        activities=[OrderRunner(client, folder, settings.workspaces, settings.task_queue).carry],
        interceptors=[RedactionInterceptor(settings.secrets)],
        max_concurrent_activities=MAX_BRIDGE_ACTIVITIES,
        graceful_shutdown_timeout=BRIDGE_GRACE,
    )


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


async def _wait_until_quiet(client: Client, bridge: Bridge) -> bool:
    """Wait until no file is undelivered and all open work waits for files, people or peers."""
    quiet_since: int | None = None  # the first cycle without work
    while quiet_since is None or bridge.cycle < quiet_since + 2:
        await asyncio.sleep(QUIET_POLL_SECONDS)
        open_work = await query_open_work(client, bridge.folder.agent) if bridge.is_quiet else None
        is_quiet = open_work is not None and open_work.is_idle
        quiet_since = None if not is_quiet else bridge.cycle if quiet_since is None else quiet_since
    return True


async def _request_redelivery(session: Session, which: str, agent: str) -> None:
    """Request redelivery of a file, a message or all. A file name starts with the mark of its claim."""
    is_file = re.match(r"\d{8}T\d{6}Z-[0-9a-f]{6}~", which) is not None
    selection = {} if which == "all" else {"file": which} if is_file else {"message_id": which}
    try:
        body = Redeliver.model_validate({**selection, "by": "perdure mail"})
    except ValidationError:
        raise click.UsageError(
            f"--redeliver takes the id of a message, a file of .deadletter/, or all, not {truncate(which, 80)!r}"
        ) from None
    await signal_mailbox(session.client, session.settings.task_queue, agent, "redeliver", body)


def _print_dead_letters(folder: MailFolder, *, as_json: bool) -> None:
    shown = 0
    for plan in folder.list_plans():
        for file in folder.below.names(folder.incoming, plan, DEAD):
            if file.endswith((".reason.json", ".envelope.json")) or shown == MAX_DEAD_LETTERS_LISTED:
                continue
            shown += 1
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
