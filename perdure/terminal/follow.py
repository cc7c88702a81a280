"""`follow`: show a run in the terminal to its end, and ask its questions, until the person leaves."""

import asyncio
import dataclasses
import json
import signal
import sys
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.markup import escape
from temporalio.service import RPCError

from activities.run.outcome import NO_RUN, RunEnd
from activities.storage.workspace import folder_name
from contracts.failures import RunFailure
from contracts.run.journal import Journal
from contracts.run.state import QuestionView, RunStatus
from decisions import ids
from decisions.run.resume import RESUMABLE
from perdure.client.errors import NoSuchRun, Refused
from perdure.client.run_events import Over, Resumed, Waiting, happening_json
from perdure.client.runs import answer, ended, state
from perdure.client.watch import Watch
from perdure.process.shutdown import leave
from perdure.process.streams import watch_reader
from perdure.session import Session
from perdure.terminal.report import near, ways_to_answer
from perdure.terminal.run_view import Screen

_EXIT_CODES = {RunStatus.completed: 0, RunStatus.escalated: 3, RunStatus.cancelled: 4}
NEVER_BEGUN = (RunFailure.invalid_input, RunFailure.unknown_agent, RunFailure.not_resumable, NO_RUN)
DETACHED = 130
LEARNS_EVERY = 1.0  # seconds


async def follow(session: Session, run_id: str, console: Console) -> int:
    """Show a run to its end, and return the exit code for its end."""
    screen = Screen(console)
    console.print(f"[bold]run[/]   {escape(run_id)}")
    if page := session.page_of(run_id):
        console.print(f"[bold]page[/]  {page}", soft_wrap=True)
    if lack := await session.no_worker():
        console.print(f"[yellow]{lack}[/]")
    if await _left(session, _show(session, run_id, screen), run_id):
        return DETACHED
    end = await ended(session.client, run_id)
    screen.end(end)
    if end.status in RESUMABLE and end.kind not in NEVER_BEGUN:
        console.print(f"  to continue after the cause is fixed: perdure resume {escape(run_id)}")
    folder = session.settings.workspaces / folder_name(run_id)
    for path in (end.event or {}).get("payload", {}).get("artifacts", ()):
        console.print(f"  → {near(folder / path)}", soft_wrap=True)
    return exit_code(end)


async def follow_json(session: Session, run_id: str, *, every: bool) -> int:
    """Print the end of a run as a line of JSON; with `every`, each event before it too."""

    async def print_all() -> None:
        async for happening in Watch(session.client, run_id).happenings():
            if every:
                print(happening_json(happening), flush=True)

    if await _left(session, print_all(), run_id):
        return DETACHED
    end = await ended(session.client, run_id)
    print(json.dumps({"run_id": run_id, **dataclasses.asdict(end)}), flush=True)
    return exit_code(end)


def exit_code(end: RunEnd) -> int:
    return _EXIT_CODES.get(end.status, 1)


async def _left(session: Session, following: Any, run_id: str) -> bool:
    """Return whether the person left before the end."""
    stop = stopping()
    showing, stopped = asyncio.create_task(following), asyncio.create_task(stop.wait())
    await asyncio.wait({showing, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if showing.done():
        stopped.cancel()
        stop.set()  # while the worker stops, the first signal ends the process
        showing.result()
        return False
    showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)
    print(f"\nleft the run. Follow it: perdure watch {run_id}   Stop it: perdure cancel {run_id}", file=sys.stderr)
    if session.is_busy():
        print("Waiting for running calls to finish (Ctrl-C again exits at once) …", file=sys.stderr)
    return True


async def _show(session: Session, run_id: str, screen: Screen) -> None:
    asking: asyncio.Task[None] | None = None
    learning = asyncio.create_task(_learn(session, run_id, screen))
    try:
        async with screen.following():
            async for at, happening in Watch(session.client, run_id).positioned():
                if asking is not None and isinstance(happening, Resumed | Waiting | Over):
                    await _given_up(asking)  # it has an answer, here or elsewhere
                    asking = None
                screen.show(happening, at.time if at else None)
                if isinstance(happening, Waiting) and happening.question is not None:
                    asking = asyncio.create_task(_ask(session, run_id, screen, happening.question))
    finally:
        await _given_up(learning, *([asking] if asking else []))


async def _given_up(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _learn(session: Session, run_id: str, screen: Screen) -> None:
    """Query the run for its step limit and plan. Retries until a worker answers."""
    while screen.is_live:
        with suppress(NoSuchRun, RPCError):
            if view := await state(session.client, run_id):
                run = session.client.get_workflow_handle(ids.run_workflow_id(run_id))
                screen.knows(view, await run.query("journal", result_type=Journal) if view.origin else None)
                return
        await asyncio.sleep(LEARNS_EVERY)


async def _ask(session: Session, run_id: str, screen: Screen, question: QuestionView) -> None:
    while body := await screen.ask(question):
        try:
            await answer(session.client, run_id, body, session.settings.answer_keys)
            return
        except (Refused, NoSuchRun) as error:
            screen.console.print(f"  [red]{escape(str(error))}[/]")
    ways = " or ".join(ways_to_answer(run_id, question))
    screen.console.print(f"  answer it with: {escape(ways)}", soft_wrap=True)


def stopping(*, is_read: bool = True) -> asyncio.Event:
    """Return an event that the first SIGINT or SIGTERM sets; the second ends the process.

    If the output `is_read`, the command also ends when its reader closes it.
    """
    if is_read:
        watch_reader()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: leave(DETACHED) if stop.is_set() else stop.set())
    return stop
