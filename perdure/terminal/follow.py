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

from perdure.activities.run.outcome import NO_RUN, RunEnd
from perdure.activities.storage.workspace import folder_name
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.run_events import AnswerReceived, RunEnded, RunEvent, WaitEnded, WaitStarted, event_to_json
from perdure.client.watch import Watch
from perdure.contracts.failures import RunFailure
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.decisions import ids
from perdure.decisions.run.resume import RESUMABLE
from perdure.process.streams import exit_now, watch_reader
from perdure.python_client import Perdure
from perdure.session import Session
from perdure.terminal.console import is_plain_output
from perdure.terminal.prompt import print_question
from perdure.terminal.report import answer_commands, format_path
from perdure.terminal.run_view import RunScreen

_EXIT_CODES = {RunStatus.completed: 0, RunStatus.escalated: 3, RunStatus.cancelled: 4}
NOT_STARTED = (RunFailure.invalid_input, RunFailure.unknown_agent, RunFailure.not_resumable, NO_RUN)
DETACHED = 130
STATE_POLL_SECONDS = 1.0  # seconds


async def follow_to_end(session: Session, run_id: str, console: Console, *, shows_thinking: bool = False) -> int:
    """Show a run to its end, and return the exit code for its end."""
    screen = RunScreen(console, shows_thinking=shows_thinking)
    console.print(f"[bold]run[/]   {escape(run_id)}")
    if page := session.web_ui_page(run_id):
        console.print(f"[bold]page[/]  {page}", soft_wrap=True)
    if lack := await session.missing_worker_message():
        console.print(f"[yellow]{lack}[/]")
    if await _run_until_left(session, _show_run(session, run_id, screen), run_id):
        return DETACHED
    end = await Perdure.over(session).get_run(run_id).end()
    screen.show_end(end)
    if end.status in RESUMABLE and end.kind not in NOT_STARTED:
        console.print(f"  to continue after the cause is fixed: perdure resume {escape(run_id)}")
    folder = session.settings.workspaces / folder_name(run_id)
    for path in (end.event or {}).get("payload", {}).get("artifacts", ()):
        console.print(f"  → {format_path(folder / path)}", soft_wrap=True)
    return exit_code_of(end)


async def follow_json(session: Session, run_id: str, *, every: bool) -> int:
    """Print the end of a run as a line of JSON; with `every`, each event before it too."""

    async def print_all() -> None:
        workspaces = session.settings.workspaces if every else None
        async for event in Watch(session.client, run_id, workspaces=workspaces).events():
            if every:
                print(event_to_json(event), flush=True)

    if await _run_until_left(session, print_all(), run_id):
        return DETACHED
    end = await Perdure.over(session).get_run(run_id).end()
    print(json.dumps({"run_id": run_id, **dataclasses.asdict(end)}), flush=True)
    return exit_code_of(end)


def watch_on_screen(session: Session, run_id: str, console: Console) -> Watch:
    """Return a watch for a terminal. Other outputs show no partial text, which would cost heartbeats."""
    return Watch(session.client, run_id, workspaces=None if is_plain_output(console) else session.settings.workspaces)


def exit_code_of(end: RunEnd) -> int:
    return _EXIT_CODES.get(end.status, 1)


async def _run_until_left(session: Session, following: Any, run_id: str) -> bool:
    """Return whether the person left before the end."""
    stop = stop_event()
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


async def _show_run(session: Session, run_id: str, screen: RunScreen) -> None:
    asking: asyncio.Task[None] | None = None
    asked: QuestionView | None = None
    learning = asyncio.create_task(_query_state(session, run_id, screen))
    try:
        async with screen.live_display():
            async for event in watch_on_screen(session, run_id, screen.console).events():
                if asking is not None and isinstance(event, WaitEnded | WaitStarted | RunEnded):
                    await _cancel_tasks(asking)  # it has an answer, here or elsewhere
                    asking = None
                screen.show_event(event)
                if isinstance(event, WaitStarted) and event.questions:
                    asked = event.questions[0]
                    asking = asyncio.create_task(_ask_question(session, run_id, screen, asked))
                elif asking is not None and asked is not None and changes_call(event):
                    await _cancel_tasks(asking)
                    asked = await read_question_again(session, run_id, screen.console, asked)
                    asking = asyncio.create_task(_ask_question(session, run_id, screen, asked)) if asked else None
    finally:
        await _cancel_tasks(learning, *([asking] if asking else []))


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _query_state(session: Session, run_id: str, screen: RunScreen) -> None:
    """Query the run for its step limit and plan. Retries until a worker answers."""
    while screen.is_live:
        with suppress(RunNotFoundError, RPCError):
            if view := await Perdure.over(session).get_run(run_id).state():
                run = session.client.get_workflow_handle(ids.run_workflow_id(run_id))
                screen.progress.apply_state(
                    view, await run.query("journal", result_type=Journal) if view.origin else None
                )
                return
        await asyncio.sleep(STATE_POLL_SECONDS)


async def _ask_question(session: Session, run_id: str, screen: RunScreen, asked: QuestionView) -> None:
    question = await read_question_again(session, run_id, screen.console, asked)
    if question is None:  # the wait is in the past
        return
    while body := await screen.ask_person(question):
        try:
            await Perdure.over(session).get_run(run_id).send_answer(body)
            return
        except (RejectedError, RunNotFoundError) as error:
            screen.console.print(f"  [red]{escape(str(error))}[/]")
            now = await read_question_again(session, run_id, screen.console, question)
            if now is None:
                return
            question = now
    ways = " or ".join(answer_commands(run_id, question))
    screen.console.print(f"  answer it with: {escape(ways)}", soft_wrap=True)


def changes_call(event: RunEvent) -> bool:
    """Return whether a person has changed the arguments of a call, so that its question is another one now."""
    return isinstance(event, AnswerReceived) and event.answer.arguments is not None


async def read_question_again(
    session: Session, run_id: str, console: Console, question: QuestionView
) -> QuestionView | None:
    """Return the question as it is now, or None if it is closed. One whose call was changed is printed again."""
    with suppress(RunNotFoundError):
        if view := await Perdure.over(session).get_run(run_id).state():
            now = next((asked for asked in view.questions if asked.id == question.id), None)
            if now is not None and now.call != question.call:
                print_question(console, now)
            return now
    return question  # no worker can tell


def stop_event(*, is_read: bool = True) -> asyncio.Event:
    """Return an event that the first SIGINT or SIGTERM sets; the second ends the process.

    If the output `is_read`, the command also ends when its reader closes it.
    """
    if is_read:
        watch_reader()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: exit_now(DETACHED) if stop.is_set() else stop.set())
    return stop
