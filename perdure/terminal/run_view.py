"""A run on a person's screen: a permanent line for each event, and a live area below with current activity."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from rich.console import Console

from perdure.activities.run.outcome import RunEnd
from perdure.client import run_events
from perdure.client.run_events import RunEvent
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.decisions.run.transcript import join_text_blocks
from perdure.terminal import event_lines
from perdure.terminal.console import is_plain_output
from perdure.terminal.event_lines import EventLines
from perdure.terminal.progress import LiveArea, Progress
from perdure.terminal.prompt import format_input_hint, is_person, parse_answer, print_question, read_line

REDRAW_SECONDS = 0.1  # seconds between updates of the live area


class RunScreen:
    """A printer of run events. Events that arrive during a prompt are printed after it."""

    def __init__(self, console: Console, *, shows_thinking: bool = False) -> None:
        self.console = console
        self._shows_thinking = shows_thinking
        self.progress = Progress()
        self._plain = is_plain_output(console)
        self._area = LiveArea(console, partial(self.progress.render_lines, console))
        self._follows = False
        self._asks = False
        self._later: list[RunEvent] = []
        self._held = False
        self._said = ""
        self._own: HumanInput | None = None  # the answer typed at this terminal: it is on the screen already

    @property
    def is_live(self) -> bool:
        return not self._plain

    @property
    def _width(self) -> int | None:
        return None if self._plain else self.console.width

    @asynccontextmanager
    async def live_display(self) -> AsyncIterator[None]:
        if self._plain:
            yield
            return

        async def keep_up() -> None:
            while True:
                await asyncio.sleep(REDRAW_SECONDS)
                self._area.draw()

        drawing, loop = asyncio.create_task(keep_up()), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._suspend_process)
        try:
            self._follows = True
            self._area.open()
            yield
        finally:
            self._follows = False
            loop.remove_signal_handler(signal.SIGTSTP)
            drawing.cancel()
            self._area.close()

    def _suspend_process(self) -> None:
        """Restore the terminal and stop the process (Ctrl-Z); `fg` continues here."""
        is_shown = not self._asks
        self._area.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        if is_shown:
            self._area.open()

    def show_event(self, event: RunEvent) -> None:
        if self._asks:
            self._later.append(event)
            return
        self.apply_event(event)
        match event:
            case run_events.WaitStarted(questions=[question, *_]):
                print_question(self.console, question)
            case run_events.AnswerReceived(answer):
                own, self._own = self._own, None
                if own is None or (answer.decision, answer.text) != (own.decision, own.text):
                    self.print_lines(event_lines.format_event(event, self._width))
            case run_events.RateLimitWait() if self._held:
                pass  # only the first in a turn has a permanent line; the live area shows the waiting time
            case _:
                self._held = isinstance(event, run_events.RateLimitWait) or (
                    self._held and not isinstance(event, run_events.ModelCallStarted)
                )
                self.print_lines(event_lines.format_event(event, self._width))
                if self._shows_thinking and isinstance(event, run_events.ModelReplied):
                    self.print_lines(event_lines.format_whole_thinking(event.reply, self._width))

    def apply_event(self, event: RunEvent) -> None:
        """Apply an event to the progress without printing it."""
        self.progress.apply_event(event)
        if isinstance(event, run_events.ModelReplied):
            self._said = join_text_blocks(event.reply.content)

    def print_lines(self, lines: EventLines) -> None:
        """Print lines: wrapped on a screen, whole in other outputs."""
        for line in lines:
            self.console.print(line, soft_wrap=self._plain)

    def note_answer(self, answer: HumanInput) -> HumanInput:
        """Note an answer that was typed at this terminal."""
        self._own = answer
        return answer

    def show_end(self, end: RunEnd) -> None:
        self.print_lines(event_lines.format_end(end, self.progress.facts, self._said, self._width))

    async def ask_person(self, question: QuestionView) -> HumanInput | None:
        """Ask the person for an answer to the printed question; None without a terminal, or if they leave it open."""
        if not (is_person() and self.console.is_terminal):
            return None
        self._asks, text = True, ""
        self._area.close()
        try:
            while not text.strip():
                self.console.print(f"  [dim]{format_input_hint(question)}[/]", soft_wrap=self._plain)
                line = await read_line()
                if line is None:
                    self.console.print()
                    return None
                text = line
            return self.note_answer(parse_answer(question, text))
        except asyncio.CancelledError:
            self.console.print()  # end the line of the abandoned prompt
            raise
        finally:
            self._asks = False
            later, self._later = self._later, []
            for event in later:
                self.show_event(event)
            if self._follows:
                self._area.open()
