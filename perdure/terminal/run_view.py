"""A run on a person's screen: a permanent line for each event, and a live area below with current activity."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from activities.run.outcome import RunEnd
from contracts.run.journal import Journal
from contracts.run.signals import HumanInput
from contracts.run.state import QuestionView, RunView
from contracts.run.turn import ModelTurn
from decisions.run.calls import text_of
from decisions.text.visible_text import render_visible
from perdure.client.run_events import Answered, Happening, Held, Thinking, Thought, Waiting
from perdure.terminal import event_lines
from perdure.terminal.console import is_plain
from perdure.terminal.event_lines import Block, Line, Told
from perdure.terminal.live_area import Area
from perdure.terminal.progress import Progress
from perdure.terminal.prompt import can_ask, print_question, read_answer, read_line, what_is_possible

LOOKS_EVERY = 0.1  # seconds between updates of the live area


class Screen:
    """A printer of run events. Events that arrive during a prompt are printed after it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress()
        self._plain = is_plain(console)
        self._area = Area(console, partial(self.progress.lines, console))
        self._follows = False
        self._asks = False
        self._later: list[tuple[Happening, datetime | None]] = []
        self._held = False
        self._said = ""
        self._own: HumanInput | None = None  # the answer typed at this terminal: it is on the screen already

    @property
    def is_live(self) -> bool:
        return not self._plain

    @property
    def _width(self) -> int | None:
        return None if self._plain else self.console.width

    def knows(self, view: RunView, journal: Journal | None) -> None:
        self.progress.knows(view, journal)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        if self._plain:
            yield
            return

        async def keep_up() -> None:
            while True:
                await asyncio.sleep(LOOKS_EVERY)
                self._area.draw()

        drawing, loop = asyncio.create_task(keep_up()), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        try:
            self._follows = True
            self._area.open()
            yield
        finally:
            self._follows = False
            loop.remove_signal_handler(signal.SIGTSTP)
            drawing.cancel()
            self._area.close()

    def _suspend(self) -> None:
        """Restore the terminal and stop the process (Ctrl-Z); `fg` continues here."""
        is_shown = not self._asks
        self._area.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        if is_shown:
            self._area.open()

    def show(self, happening: Happening, time: datetime | None = None) -> None:
        """Print an event; `time` is its time in the history, if it has one."""
        if self._asks:
            self._later.append((happening, time))
            return
        self.hears(happening, time)
        match happening:
            case Waiting(question=QuestionView() as question):
                print_question(self.console, question)
            case Answered(answer):
                own, self._own = self._own, None
                if own is None or (answer.decision, answer.text) != (own.decision, own.text):
                    self._print(event_lines.told(happening, self._width))
            case Held() if self._held:
                pass  # only the first in a turn has a permanent line; the live area shows the waiting time
            case _:
                self._held = isinstance(happening, Held) or (self._held and not isinstance(happening, Thinking))
                self._print(event_lines.told(happening, self._width))

    def hears(self, happening: Happening, time: datetime | None) -> None:
        """Apply an event to the progress without printing it."""
        self.progress.takes(happening, time)
        if isinstance(happening, Thought):
            self._said = text_of(happening.reply.content)

    def tell_fallbacks(self, reply: ModelTurn) -> None:
        self._print(event_lines.fallbacks(reply))

    def _print(self, told: Told) -> None:
        """Print lines: wrapped on a screen, whole in other outputs."""
        for item in told:
            match item:
                case Line(markup, text, style):
                    line = Text.from_markup(markup, emoji=False).append(render_visible(text), style)
                    self.console.print(line, soft_wrap=self._plain)
                case Block(text, indent, style):
                    body = Text(render_visible(text), style=style, overflow="fold")
                    block = body if self._plain else Padding(body, (0, 0, 0, indent), expand=False)
                    self.console.print(block, soft_wrap=self._plain)

    def says(self, answer: HumanInput) -> HumanInput:
        """Note an answer that was typed at this terminal."""
        self._own = answer
        return answer

    def end(self, end: RunEnd) -> None:
        self._print(event_lines.ended(end, self.progress.facts, self._said, self._width))

    async def ask(self, question: QuestionView) -> HumanInput | None:
        """Ask the person for an answer to the printed question; None without a terminal, or if they leave it open."""
        if not can_ask(self.console):
            return None
        self._asks, text = True, ""
        self._area.close()
        try:
            while not text.strip():
                self._print(iter([Line(f"  [dim]{what_is_possible(question)}[/]")]))
                line = await read_line()
                if line is None:
                    self.console.print()
                    return None
                text = line
            return self.says(read_answer(question, text))
        except asyncio.CancelledError:
            self.console.print()  # end the line of the abandoned prompt
            raise
        finally:
            self._asks = False
            later, self._later = self._later, []
            for happening, time in later:
                self.show(happening, time)
            if self._follows:
                self._area.open()
