"""`perdure chat`: a conversation in the terminal."""

import asyncio
import dataclasses
import json
import secrets
import sys
import threading
from contextlib import suppress
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from perdure.activities.temporal import QueryCache
from perdure.client.door import check_agent
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.files import attach_files
from perdure.client.lanes import (
    TURN_POLL_INTERVAL,
    has_joined_run,
    submit_with_retry,
    wait_for_turn_start,
)
from perdure.client.run_events import RunEvent, WaitEnded, WaitStarted
from perdure.contracts.conversation import (
    MAX_ID_LENGTH,
    Forgotten,
    LaneView,
    SubmitRequest,
    Submitted,
    TurnEnd,
    WhenBusy,
)
from perdure.contracts.media import Attachment
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.state import QuestionView
from perdure.decisions import ids
from perdure.decisions.errors import format_validation_error
from perdure.decisions.lane import NO_TURN
from perdure.decisions.run.journal import render_journal
from perdure.decisions.text.formatting import truncate
from perdure.process.streams import unwrap_stream
from perdure.python_client import Perdure
from perdure.session import Needs, Session, open_session
from perdure.settings import load_settings
from perdure.terminal.chat_view import ChatView
from perdure.terminal.command import (
    as_json_option,
    async_command,
    console,
    format_examples,
    print_error,
    print_faults,
    require_utf8,
)
from perdure.terminal.completion import complete_agents
from perdure.terminal.console import BYTE_ORDER_MARK
from perdure.terminal.follow import (
    DETACHED,
    changes_call,
    exit_code_of,
    read_question_again,
    stop_event,
    watch_on_screen,
)
from perdure.terminal.prompt import is_person, parse_answer
from perdure.terminal.report import answer_commands

TURN_CHANGE_SECONDS = 3.0  # seconds that a command waits for a turn to start or to end
LANE_POLL_SECONDS = 1.0  # seconds between polls for messages of others
CHAT_HELP = """\
  /cancel             cancel the active turn
  /steer TEXT         send TEXT to the active turn, for its next model call
  /interrupt TEXT     cancel the active turn and ask TEXT next
  /forget [RUN]       remove the latest finished turn, or that of RUN, from the conversation
  /attach FILE        send an image or a PDF with the next message; without FILE, send none
  /journal            print the agent's journal
  /history            print the latest turns
  /quit               exit; the active turn continues"""


@click.command("chat", epilog=format_examples("chat", 'chat orders --agent clerk -m "where is A-1001?"'))
@click.argument("conversation_id", metavar="[CONVERSATION]", default="chat", callback=require_utf8)
@click.option(
    "--agent",
    shell_complete=complete_agents,
    help="The agent in agents/*.md to chat with; by default the previous one.",
)
@click.option("--message", "-m", help="Send this message, print the reply, and exit.")
@click.option(
    "--when-busy",
    type=click.Choice([policy.value for policy in WhenBusy]),
    default=WhenBusy.queue.value,
    help="Action if a turn is active.",
)
@as_json_option
@async_command()
async def chat_command(
    conversation_id: str, agent: str | None, message: str | None, when_busy: str, as_json: bool
) -> int:
    """Chat with an agent in a persistent conversation.

    CONVERSATION is its name, by default "chat". Lines typed during a turn are queued, or answer its question. /help
    lists the commands.
    """
    if as_json and message is None:
        raise click.UsageError("--json needs a --message")
    if not 0 < len(conversation_id) <= MAX_ID_LENGTH:
        raise click.UsageError(f"the name of a conversation must have 1 to {MAX_ID_LENGTH} characters")
    settings = load_settings(strict=False)
    check_agent(agent, None, settings)
    print_faults(*settings.roster.faults.values())
    async with open_session(settings, Needs.work) as session:
        talk = ChatSession(session, conversation_id, agent, console)
        if message is not None:
            return await talk.send_once(message, WhenBusy(when_busy), as_json=as_json)
        if session.rehearsal_message:
            console.print(f"[yellow]{escape(session.rehearsal_message)}[/]", soft_wrap=True)
        return await talk.run_loop()


class ChatSession:
    """A conversation in this terminal. It shows one turn after another, in the order in which they run."""

    def __init__(self, session: Session, conversation_id: str, agent: str | None, console: Console) -> None:
        self._session = session
        self._perdure = Perdure.over(session)
        self._talk = self._perdure.conversation(conversation_id)
        self._id = conversation_id
        self._agent = agent
        self._console = console
        self._page = ChatView(console)
        self._queries = QueryCache()
        self._speaking = asyncio.Lock()  # held while sending, so that the message is not taken for another person's
        self._turns: asyncio.Queue[str] = asyncio.Queue()  # run ids to show
        self._known: set[str] = set()
        self._open = 0  # turns shown now or later
        self._now: str | None = None  # the run shown now
        self._is_shown = asyncio.Event()  # set while a run is shown
        self._asks: tuple[str, QuestionView | None] | None = None  # the run that waits, and its question
        self._attached: tuple[Attachment, ...] = ()  # to the next message

    async def send_once(self, message: str, when_busy: WhenBusy, *, as_json: bool) -> int:
        """Send a message, print the reply, and return the exit code."""
        submitted, own = await self._submit_message(message, when_busy)
        run_id = submitted.run_id
        if not as_json:
            if self._session.rehearsal_message:
                print_error(self._session.rehearsal_message)
            code = await self._show_turn(run_id)
            return code if await self._has_joined(run_id, own) else await self._show_turn(own)
        if not await self._has_joined(run_id, own):
            run_id = own
        await self._wait_for_start(run_id)
        end = await self._perdure.get_run(run_id).end()
        click.echo(json.dumps({"conversation_id": self._id, "run_id": run_id, **dataclasses.asdict(end)}))
        return exit_code_of(end)

    async def run_loop(self) -> int:
        """Run the conversation until the person leaves, or until all of a piped input is answered."""
        await self._print_greeting()
        lines, stop = _read_lines(), stop_event()
        showing, noticing = asyncio.create_task(self._show_turns()), asyncio.create_task(self._watch_lane())
        stopped = asyncio.create_task(stop.wait())
        code = 0
        while True:
            typed = asyncio.create_task(lines.get())
            await asyncio.wait({typed, stopped, showing, noticing}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                code = DETACHED
                break
            for task in (showing, noticing):
                if task.done():
                    task.result()
            line = typed.result()
            if line is None:
                await self._finish_input(showing, stopped)
                break
            if line.strip() in ("/quit", "/exit"):
                break
            await self._handle_line(line)
        for task in (showing, noticing):
            task.cancel()
        self._console.print(f"\n[dim]left; to continue: perdure chat {escape(self._id)}[/]")
        return code

    async def _finish_input(self, showing: asyncio.Task[None], stopped: asyncio.Task[bool]) -> None:
        """Wait until all of a piped input is answered. At a terminal, Ctrl-D exits at once."""
        if not is_person():
            done = asyncio.create_task(self._turns.join())
            await asyncio.wait({done, showing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()  # it ends only with an error

    async def _print_greeting(self) -> None:
        """Print the history, and show active turns."""
        self._console.print(f"[bold]conversation[/]  {escape(self._id)}   [dim]/help lists the commands[/]")
        try:
            view = await self._talk.state()
        except RunNotFoundError:
            view = None
        if view is not None:
            self._print_history(view)
            self._known.update(turn.run_id for turn in view.recent)
            self._follow_new_turns(view)
        self._print_prompt()

    async def _watch_lane(self) -> None:
        """Show turns that this terminal did not start, such as those of follow-ups."""
        while True:
            await asyncio.sleep(LANE_POLL_SECONDS)
            with suppress(RunNotFoundError, RejectedError):
                async with self._speaking:
                    if view := await self._read_lane():
                        self._follow_new_turns(view)

    async def _read_lane(self) -> LaneView | None:
        """Return the lane's state, if a worker answers; it is queried only if it may have changed."""
        return await self._talk.state(self._queries)

    def _follow_new_turns(self, view: LaneView) -> None:
        ended_turns = [turn for turn in view.recent if turn.end not in NO_TURN]
        for turn in (*ended_turns, *((view.active,) if view.active else ()), *view.waiting):
            if turn.run_id not in self._known:
                self._console.print(f"[bold]> {escape(truncate(turn.asked, 400))}[/]")
                self._follow_turn(turn.run_id)

    def _print_history(self, view: LaneView) -> None:
        for turn in view.recent:
            self._console.print(f"[bold]> {escape(turn.asked)}[/]")
            colour = "dim" if turn.end is TurnEnd.completed else "yellow"
            text = turn.said if turn.end is TurnEnd.completed else f"{turn.end}: {turn.said}".rstrip(": ")
            self._console.print(Padding(Text(text, style=colour), (0, 0, 0, 2), expand=False))

    def _print_prompt(self) -> None:
        """Print the prompt, unless more output follows."""
        if not self._open and is_person() and self._console.is_terminal:
            files = "".join(f"[{attachment.name}] " for attachment in self._attached)
            self._console.print(Text.assemble((files, "cyan"), ("> ", "bold")), end="")

    async def _handle_line(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        try:
            match word:
                case "":
                    pass
                case "/help":
                    self._console.print(CHAT_HELP)
                case "/cancel":
                    await self._cancel_turn()
                case "/forget":
                    turn = await self._forget_turn(rest.strip() or None)
                    line = f"removed from the next turn on: {truncate(turn.asked, 80)} · run {turn.run_id}"
                    self._console.print(f"[dim]{escape(line)}[/]")
                case "/steer" | "/interrupt" if rest:
                    await self._send_request(rest, WhenBusy(word[1:]))
                case "/attach":
                    await self._attach_file(rest.strip())
                case "/journal":
                    await self._print_journal()
                case "/history":
                    if view := await self._talk.state():
                        self._print_history(view)
                case _ if word.startswith("/"):
                    self._console.print(f"[red]there is no {escape(truncate(word, 40))}[/]\n{CHAT_HELP}")
                case _:
                    await self._handle_text(line.strip())
        except (RejectedError, RunNotFoundError) as error:
            self._console.print(f"[red]{escape(str(error))}[/]")
        self._print_prompt()

    async def _attach_file(self, name: str) -> None:
        """Attach a file to the next message; without a name, detach all."""
        paths = [Path(name.strip("'\""))] if name else []
        added = await attach_files(self._session.settings.stores, paths)
        self._attached = (*self._attached, *added) if added else ()

    async def _cancel_turn(self) -> None:
        """Cancel the turn on the screen, or the one about to start; the lane may be at a later one."""
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_shown.wait(), TURN_CHANGE_SECONDS)
        if self._now is None:
            raise RejectedError("the turn has not started yet" if self._open else "no turn is active")
        await self._perdure.get_run(self._now).cancel(by="perdure chat")

    async def _forget_turn(self, run_id: str | None) -> Forgotten:
        """Forget a turn. The reply on the screen may be that of a turn whose end the lane does not know yet."""
        deadline = asyncio.get_running_loop().time() + TURN_CHANGE_SECONDS
        while run_id is None and asyncio.get_running_loop().time() < deadline:
            view = await self._talk.state()
            if view is None or view.active is None:
                break
            await asyncio.sleep(TURN_POLL_INTERVAL)
        return await self._talk.forget(run_id)

    async def _handle_text(self, text: str) -> None:
        """Send text as the answer to the turn's question, or as the next request."""
        if self._asks is not None:
            run_id, question = self._asks
            question = question or await self._read_question(run_id)
            try:
                body = parse_answer(question, text)
            except ValidationError as error:
                raise RejectedError(format_validation_error(error)) from None
            body = self._page.note_answer(body.evolve(attachments=self._attached))
            try:
                await self._perdure.get_run(run_id).send_answer(body)
            except RejectedError:
                await self._refresh_question(run_id, question)
                raise
            self._attached = ()
        else:
            await self._send_request(text, WhenBusy.queue)

    async def _refresh_question(self, run_id: str, question: QuestionView) -> None:
        """Print the question again if its call was changed meanwhile."""
        now = await read_question_again(self._session, run_id, self._console, question)
        self._asks = (run_id, now) if now is not None and self._asks is not None else None

    async def _read_question(self, run_id: str) -> QuestionView:
        """Read a question of which only the short form was shown, as no worker answered. Raises RejectedError."""
        view = await self._perdure.get_run(run_id).state()
        if view is None or view.question is None:
            raise RejectedError("no worker answers for the question now" if view is None else "the question is closed")
        return view.question

    async def _send_request(self, text: str, when_busy: WhenBusy) -> None:
        async with self._speaking:
            submitted, _ = await self._submit_message(text, when_busy)
            if submitted.position and self._open:
                self._console.print(f"[dim]queued; {submitted.position} ahead[/]")
            self._follow_turn(submitted.run_id)

    async def _has_joined(self, run_id: str, own: str) -> bool:
        return await has_joined_run(self._session.client, self._id, run_id, own, self._queries)

    async def _submit_message(self, text: str, when_busy: WhenBusy) -> tuple[Submitted, str]:
        """Submit a message. Return the result, and the id of the run that it starts if it joins no other."""
        try:
            request = SubmitRequest(
                request_id=secrets.token_hex(6),
                goal=text,
                attachments=self._attached,
                agent=self._agent,
                when_busy=when_busy,
                request_client="perdure chat",
            )
        except ValidationError as error:
            raise RejectedError(format_validation_error(error)) from None
        # Not `Lane.submit`: without --agent it checks files for the default agent, not for that of the lane.
        submitted = await submit_with_retry(self._session.client, self._session.settings.task_queue, self._id, request)
        self._attached = ()
        return submitted, ids.turn_run_id(self._id, request.request_id)

    def _follow_turn(self, run_id: str) -> None:
        if run_id not in self._known:
            self._known.add(run_id)
            self._open += 1
            self._turns.put_nowait(run_id)

    async def _show_turns(self) -> None:
        while True:
            run_id = await self._turns.get()
            await self._show_turn(run_id)
            self._open -= 1
            self._turns.task_done()
            self._print_prompt()

    async def _show_turn(self, run_id: str) -> int:
        if not await self._wait_for_start(run_id):
            self._console.print("[dim]the message was dropped[/]")
            return 1
        self._now = run_id
        self._is_shown.set()
        try:
            async for event in watch_on_screen(self._session, run_id, self._console).events():
                self._page.show_event(event)
                self._note_question(run_id, event)
                if changes_call(event) and self._asks is not None and self._asks[1] is not None:
                    await self._refresh_question(run_id, self._asks[1])
        finally:
            self._now = self._asks = None
            self._is_shown.clear()
        end = await self._perdure.get_run(run_id).end()
        self._page.show_end(end)
        return exit_code_of(end)

    async def _wait_for_start(self, run_id: str) -> bool:
        return await wait_for_turn_start(self._session.client, self._id, run_id, self._queries)

    def _note_question(self, run_id: str, event: RunEvent) -> None:
        if isinstance(event, WaitEnded):
            self._asks = None
        if isinstance(event, WaitStarted) and event.is_for_person:
            self._asks = (run_id, question := next(iter(event.questions), None))
            if question is not None and not is_person():
                ways = " or ".join(answer_commands(run_id, question))
                self._console.print(f"  answer it with: {escape(ways)}", soft_wrap=True)

    async def _print_journal(self) -> None:
        view = await self._talk.state()
        latest = (view.active.run_id if view.active else view.recent[-1].run_id) if view and view.accepted else None
        if latest is None:
            self._console.print("[dim]no turns yet[/]")
            return
        run = self._session.client.get_workflow_handle(ids.run_workflow_id(latest))
        journal: Journal = await run.query("journal", result_type=Journal)
        self._console.print(Text(render_journal(journal)))


def _read_lines() -> asyncio.Queue[str | None]:
    """Return a queue of input lines; None marks the end. A thread reads, as asyncio cannot wait for a file."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read() -> None:
        with suppress(RuntimeError, ValueError, OSError):  # the loop, or standard input, is closed or gone
            try:
                for line in unwrap_stream(sys.stdin).buffer if sys.stdin else ():
                    text = line.decode(unwrap_stream(sys.stdin).encoding, errors="replace")
                    loop.call_soon_threadsafe(lines.put_nowait, text.removeprefix(BYTE_ORDER_MARK))
            finally:
                loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    return lines
