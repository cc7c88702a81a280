"""`perdure chat`: a conversation in the terminal."""

import asyncio
import dataclasses
import json
import secrets
import sys
import threading
from contextlib import suppress

import click
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from contracts.conversation import MAX_ID_LENGTH, LaneView, SubmitRequest, Submitted, TurnEnd, WhenBusy
from contracts.run.journal import Journal
from contracts.run.signals import CancelRequest
from contracts.run.state import QuestionView
from decisions import ids
from decisions.conversation.lane import NO_TURN
from decisions.errors import fault_line
from decisions.run.journal import render
from decisions.text.formatting import cut
from perdure.client.errors import NoSuchRun, Refused
from perdure.client.lanes import forget, look, submit
from perdure.client.run_events import Happening, Resumed, Waiting
from perdure.client.run_list import find
from perdure.client.runs import answer, cancel, ended
from perdure.client.watch import Watch
from perdure.process.shutdown import own
from perdure.session import Needs, Session, open_session
from perdure.terminal.chat_view import Page
from perdure.terminal.command import as_json_option, async_command, complain, console, examples, utf8
from perdure.terminal.completion import agent_names
from perdure.terminal.follow import DETACHED, exit_code, stopping
from perdure.terminal.prompt import read_answer
from perdure.terminal.report import ways_to_answer
from settings import load

LOOKS_EVERY = 0.2  # seconds between polls for the fate of a message
BEGINS_WITHIN = 3.0  # seconds that a cancel waits for the turn to start
OTHERS_EVERY = 1.0  # seconds between polls for messages of others
HELP = """\
  /cancel             cancel the active turn
  /steer TEXT         send TEXT to the active turn, for its next model call
  /interrupt TEXT     cancel the active turn and ask TEXT next
  /forget [RUN]       remove the latest finished turn, or that of RUN, from the conversation
  /journal            print the agent's journal
  /history            print the latest turns
  /quit               exit; the active turn continues"""


@click.command("chat", epilog=examples("chat", 'chat orders --agent clerk -m "where is A-1001?"'))
@click.argument("conversation_id", metavar="[CONVERSATION]", default="chat", callback=utf8)
@click.option(
    "--agent", shell_complete=agent_names, help="The agent in agents/*.md to chat with; by default the previous one."
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
    settings = load()
    settings.check_agent(agent)
    async with open_session(settings, Needs.work) as session:
        talk = Talk(session, conversation_id, agent, console)
        if message is not None:
            return await talk.once(message, WhenBusy(when_busy), as_json=as_json)
        if session.rehearsal:
            console.print(f"[yellow]{escape(session.rehearsal)}[/]", soft_wrap=True)
        return await talk.on()


class Talk:
    """A conversation in this terminal. It shows one turn after another, in the order in which they run."""

    def __init__(self, session: Session, conversation_id: str, agent: str | None, console: Console) -> None:
        self._session = session
        self._id = conversation_id
        self._agent = agent
        self._console = console
        self._page = Page(console)
        self._speaking = asyncio.Lock()  # held while sending, so that the message is not taken for another person's
        self._turns: asyncio.Queue[str] = asyncio.Queue()  # run ids to show
        self._known: set[str] = set()
        self._open = 0  # turns shown now or later
        self._now: str | None = None  # the run shown now
        self._is_shown = asyncio.Event()  # set while a run is shown
        self._asks: tuple[str, QuestionView] | None = None  # the run that waits for a person, and its question

    async def once(self, message: str, when_busy: WhenBusy, *, as_json: bool) -> int:
        """Send a message, print the reply, and return the exit code."""
        submitted, own = await self._send(message, when_busy)
        run_id = submitted.run_id
        if not as_json:
            if self._session.rehearsal:
                complain(self._session.rehearsal)
            code = await self._show(run_id)
            return code if await self._has_joined(run_id, own) else await self._show(own)
        if not await self._has_joined(run_id, own):
            run_id = own
        await self._begun(run_id)
        end = await ended(self._session.client, run_id)
        click.echo(json.dumps({"conversation_id": self._id, "run_id": run_id, **dataclasses.asdict(end)}))
        return exit_code(end)

    async def on(self) -> int:
        """Run the conversation until the person leaves, or until all of a piped input is answered."""
        await self._greet()
        lines, stop = _lines(), stopping()
        showing, noticing = asyncio.create_task(self._show_all()), asyncio.create_task(self._notice())
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
                await self._finish(showing, stopped)
                break
            if line.strip() in ("/quit", "/exit"):
                break
            await self._typed(line)
        for task in (showing, noticing):
            task.cancel()
        self._console.print(f"\n[dim]left; to continue: perdure chat {escape(self._id)}[/]")
        return code

    async def _finish(self, showing: asyncio.Task[None], stopped: asyncio.Task[bool]) -> None:
        """Wait until all of a piped input is answered. At a terminal, Ctrl-D exits at once."""
        if not _is_person():
            done = asyncio.create_task(self._turns.join())
            await asyncio.wait({done, showing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()  # it ends only with an error

    async def _greet(self) -> None:
        """Print the history, and show active turns."""
        self._console.print(f"[bold]conversation[/]  {escape(self._id)}   [dim]/help lists the commands[/]")
        try:
            view = await look(self._session.client, self._id)
        except NoSuchRun:
            view = None
        if view is not None:
            self._history(view)
            self._known.update(turn.run_id for turn in view.recent)
            self._follow_new(view)
        self._ready()

    async def _notice(self) -> None:
        """Show turns that this terminal did not start, such as those of follow-ups."""
        while True:
            await asyncio.sleep(OTHERS_EVERY)
            with suppress(NoSuchRun, Refused):
                async with self._speaking:
                    if view := await look(self._session.client, self._id):
                        self._follow_new(view)

    def _follow_new(self, view: LaneView) -> None:
        ended_turns = [turn for turn in view.recent if turn.end not in NO_TURN]
        for turn in (*ended_turns, *((view.active,) if view.active else ()), *view.waiting):
            if turn.run_id not in self._known:
                self._console.print(f"[bold]> {escape(cut(turn.asked, 400))}[/]")
                self._follow(turn.run_id)

    def _history(self, view: LaneView) -> None:
        for turn in view.recent:
            self._console.print(f"[bold]> {escape(turn.asked)}[/]")
            colour = "dim" if turn.end is TurnEnd.completed else "yellow"
            text = turn.said if turn.end is TurnEnd.completed else f"{turn.end}: {turn.said}".rstrip(": ")
            self._console.print(Padding(Text(text, style=colour), (0, 0, 0, 2), expand=False))

    def _ready(self) -> None:
        """Print the prompt, unless more output follows."""
        if not self._open and _is_person() and self._console.is_terminal:
            self._console.print("[bold]> [/]", end="")

    async def _typed(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        try:
            match word:
                case "":
                    pass
                case "/help":
                    self._console.print(HELP)
                case "/cancel":
                    await self._cancel()
                case "/forget":
                    turn = await forget(self._session.client, self._id, rest.strip() or None)
                    line = f"removed from the next turn on: {cut(turn.asked, 80)} · run {turn.run_id}"
                    self._console.print(f"[dim]{escape(line)}[/]")
                case "/steer" | "/interrupt" if rest:
                    await self._ask(rest, WhenBusy(word[1:]))
                case "/journal":
                    await self._journal()
                case "/history":
                    if view := await look(self._session.client, self._id):
                        self._history(view)
                case _ if word.startswith("/"):
                    self._console.print(f"[red]there is no {escape(cut(word, 40))}[/]\n{HELP}")
                case _:
                    await self._said(line.strip())
        except (Refused, NoSuchRun) as error:
            self._console.print(f"[red]{escape(str(error))}[/]")
        self._ready()

    async def _cancel(self) -> None:
        """Cancel the turn on the screen, or the one about to start; the lane may be at a later one."""
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_shown.wait(), BEGINS_WITHIN)
        if self._now is None:
            raise Refused("the turn has not started yet" if self._open else "no turn is active")
        await cancel(self._session.client, self._now, CancelRequest(by="perdure chat"))

    async def _said(self, text: str) -> None:
        """Send text as the answer to the turn's question, or as the next request."""
        if self._asks is not None:
            run_id, question = self._asks
            try:
                body = read_answer(question, text)
            except ValidationError as error:
                raise Refused(fault_line(error)) from None
            await answer(self._session.client, run_id, self._page.says(body), self._session.settings.answer_keys)
        else:
            await self._ask(text, WhenBusy.queue)

    async def _ask(self, text: str, when_busy: WhenBusy) -> None:
        async with self._speaking:
            submitted, _ = await self._send(text, when_busy)
            if submitted.position and self._open:
                self._console.print(f"[dim]queued; {submitted.position} ahead[/]")
            self._follow(submitted.run_id)

    async def _has_joined(self, run_id: str, own: str) -> bool:
        """Return whether a message joined the active run, instead of starting the run `own`; wait until it is known."""
        while run_id != own:
            if (view := await look(self._session.client, self._id)) is not None:
                ends = {turn.run_id: turn.end for turn in view.recent}
                if own in ends:
                    return ends[own] in (TurnEnd.steered, TurnEnd.answered)
                if any(turn.run_id == own for turn in (view.active, *view.waiting) if turn):
                    return False
                if view.active is None or view.active.run_id != run_id:
                    break  # the lane has dropped it from its recent turns
            await asyncio.sleep(LOOKS_EVERY)
        return True

    async def _send(self, text: str, when_busy: WhenBusy) -> tuple[Submitted, str]:
        """Submit a message. Return the result, and the id of the run that it starts if it joins no other."""
        try:
            request = SubmitRequest(
                request_id=secrets.token_hex(6),
                goal=text,
                agent=self._agent,
                when_busy=when_busy,
                request_client="perdure chat",
            )
        except ValidationError as error:
            raise Refused(fault_line(error)) from None
        submitted = await submit(self._session.client, self._session.settings.task_queue, self._id, request)
        return submitted, ids.turn_run_id(self._id, request.request_id)

    def _follow(self, run_id: str) -> None:
        if run_id not in self._known:
            self._known.add(run_id)
            self._open += 1
            self._turns.put_nowait(run_id)

    async def _show_all(self) -> None:
        while True:
            run_id = await self._turns.get()
            await self._show(run_id)
            self._open -= 1
            self._turns.task_done()
            self._ready()

    async def _show(self, run_id: str) -> int:
        if not await self._begun(run_id):
            self._console.print("[dim]the message was dropped[/]")
            return 1
        self._now = run_id
        self._is_shown.set()
        try:
            async for at, happening in Watch(self._session.client, run_id).positioned():
                self._page.show(happening, at.time if at else None)
                self._note_question(run_id, happening)
        finally:
            self._now = self._asks = None
            self._is_shown.clear()
        end = await ended(self._session.client, run_id)
        self._page.end(end)
        return exit_code(end)

    async def _begun(self, run_id: str) -> bool:
        """Wait for a turn to start; return False if it was dropped."""
        while True:
            with suppress(NoSuchRun):
                await find(self._session.client, run_id)
                return True
            view = await look(self._session.client, self._id)
            if view is not None and any(turn.run_id == run_id and turn.end is TurnEnd.dropped for turn in view.recent):
                return False
            await asyncio.sleep(LOOKS_EVERY)

    def _note_question(self, run_id: str, happening: Happening) -> None:
        if isinstance(happening, Resumed):
            self._asks = None
        if isinstance(happening, Waiting) and happening.question is not None:
            self._asks = (run_id, happening.question)
            if not _is_person():
                ways = " or ".join(ways_to_answer(run_id, happening.question))
                self._console.print(f"  answer it with: {escape(ways)}", soft_wrap=True)

    async def _journal(self) -> None:
        view = await look(self._session.client, self._id)
        latest = (view.active.run_id if view.active else view.recent[-1].run_id) if view and view.accepted else None
        if latest is None:
            self._console.print("[dim]no turns yet[/]")
            return
        run = self._session.client.get_workflow_handle(ids.run_workflow_id(latest))
        journal: Journal = await run.query("journal", result_type=Journal)
        self._console.print(Text(render(journal)))


def _is_person() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _lines() -> asyncio.Queue[str | None]:
    """Return a queue of input lines; None marks the end. A thread reads, as asyncio cannot wait for a file."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read() -> None:
        with suppress(RuntimeError, ValueError, OSError):  # the loop, or standard input, is closed or gone
            try:
                for line in own(sys.stdin).buffer if sys.stdin else ():
                    text = line.decode(own(sys.stdin).encoding, errors="replace")
                    loop.call_soon_threadsafe(lines.put_nowait, text)
            finally:
                loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    return lines
