"""A run on a person's screen: lasting lines as things happen, and below them what is going on right now."""

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

LOOKS_EVERY = 0.1  # seconds between looks whether the live area says something new


class Screen:
    """Prints happenings as they come. What comes while a person is being asked is printed after that."""

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
        self._own: HumanInput | None = None  # what was answered here: whoever typed it sees it

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
        """Ctrl-Z gives the terminal back as it was; `fg` goes on here."""
        is_shown = not self._asks
        self._area.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        if is_shown:
            self._area.open()

    def show(self, happening: Happening, time: datetime | None = None) -> None:
        """`time` is when it happened, where history tells."""
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
                pass  # a lasting line for the first of a turn; the live area tells how long it takes
            case _:
                self._held = isinstance(happening, Held) or (self._held and not isinstance(happening, Thinking))
                self._print(event_lines.told(happening, self._width))

    def hears(self, happening: Happening, time: datetime | None) -> None:
        """Takes what happened into account without printing it."""
        self.progress.takes(happening, time)
        if isinstance(happening, Thought):
            self._said = text_of(happening.reply.content)

    def tell_fallbacks(self, reply: ModelTurn) -> None:
        self._print(event_lines.fallbacks(reply))

    def _print(self, told: Told) -> None:
        """A line is wrapped on a screen, and whole elsewhere."""
        for each in told:
            match each:
                case Line(markup, text, style):
                    line = Text.from_markup(markup, emoji=False).append(render_visible(text), style)
                    self.console.print(line, soft_wrap=self._plain)
                case Block(text, indent, style):
                    said = Text(render_visible(text), style=style, overflow="fold")
                    block = said if self._plain else Padding(said, (0, 0, 0, indent), expand=False)
                    self.console.print(block, soft_wrap=self._plain)

    def says(self, answer: HumanInput) -> HumanInput:
        """An answer that is given here."""
        self._own = answer
        return answer

    def end(self, end: RunEnd) -> None:
        """How it ended, and what it took."""
        self._print(event_lines.ended(end, self.progress.facts, self._said, self._width))

    async def ask(self, question: QuestionView) -> HumanInput | None:
        """The person's answer to what is shown already; None where nobody can be asked here, or they leave it open."""
        if not can_ask(self.console):
            return None
        self._asks, said = True, ""
        self._area.close()
        try:
            while not said.strip():
                self._print(iter([Line(f"  [dim]{what_is_possible(question)}[/]")]))
                line = await read_line()
                if line is None:
                    self.console.print()
                    return None
                said = line
            return self.says(read_answer(question, said))
        except asyncio.CancelledError:
            self.console.print()  # below the prompt that nobody needs any more
            raise
        finally:
            self._asks = False
            later, self._later = self._later, []
            for happening, time in later:
                self.show(happening, time)
            if self._follows:
                self._area.open()
