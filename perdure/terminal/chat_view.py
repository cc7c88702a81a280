"""The turns of `perdure chat` as printed text. An answer appears as the model writes it."""

import re
from itertools import chain

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from perdure.activities.run.outcome import RunEnd
from perdure.client import run_events
from perdure.client.run_events import RunEvent
from perdure.contracts.run.signals import HumanInput
from perdure.decisions.run.transcript import join_text_blocks
from perdure.decisions.text.visible_text import render_visible
from perdure.terminal.event_lines import format_fallbacks, format_thinking
from perdure.terminal.report import status_colour
from perdure.terminal.run_view import RunScreen


class ChatView:
    """A printer of turns. It redraws nothing, so that the text a person is typing stays intact."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen = RunScreen(console)
        self._written = ""  # the printed part of the answer in progress
        self._lines = WordWrapper(console.width)
        self._said = ""  # the last complete answer

    def show_event(self, event: RunEvent) -> None:
        match event:
            case run_events.RunStarted():
                self._screen.apply_event(event)
            case run_events.PartialText(text) if not isinstance(event, run_events.RateLimitWait | run_events.BatchWait):
                if self._screen.is_live and self._screen.progress.is_thinking:  # other outputs take whole lines
                    self._write_text(_new_text(self._written, text))
            case run_events.ModelReplied(reply=reply):
                self._screen.apply_event(event)
                self._said = join_text_blocks(reply.content)
                is_known = self._said.startswith(self._written.rstrip())
                self._write_text(self._said[len(self._written) :] if is_known else f"\n{self._said}")
                self._end_line()
                self._screen.print_lines(chain(format_thinking(reply), format_fallbacks(reply)))
            case run_events.ActivityRetrying() | run_events.ActivityFailed():
                self._end_line()
                self._screen.show_event(event)
            case _:
                self._screen.show_event(event)

    def note_answer(self, answer: HumanInput) -> HumanInput:
        """Note an answer that was typed at this terminal."""
        return self._screen.note_answer(answer)

    def _write_text(self, text: str) -> None:
        self._written += text
        text = render_visible(text)
        self._console.print(Text(self._lines.add_text(text) if self._screen.is_live else text), end="", soft_wrap=True)

    def _end_line(self) -> None:
        """End the line in progress, if any."""
        if self._written:
            self._console.print(Text(self._lines.take_rest()), soft_wrap=True)
        self._written, self._lines = "", WordWrapper(self._console.width)

    def show_end(self, end: RunEnd) -> None:
        self._end_line()
        if end.event and end.event["type"] == "agent.completed":
            outcome = end.event["payload"]["outcome"]
            if outcome != self._said:
                self._console.print(Text(render_visible(outcome)))
            if self._screen.is_live:
                self._console.print(f"[dim]{escape(self._screen.progress.facts)}[/]")
        else:
            payload = end.event["payload"] if end.event else {"reason": end.kind, "detail": end.message}
            reason = f": {payload['reason']}: {render_visible(payload['detail'])}" if payload["detail"] else ""
            colour = status_colour(end.status)
            self._console.print(f"[{colour}]■ {end.status}[/]{escape(reason)}")
        self._screen = RunScreen(self._console)  # each turn is a separate run


def _new_text(written: str, text: str) -> str:
    """Return the new part of a text. A long text arrives without its beginning."""
    if text.startswith(written):
        return text[len(written) :]
    tail = written[-80:]
    index = text.rfind(tail)
    return text[index + len(tail) :] if index >= 0 else f" … {text}"


_TOKENS = re.compile(r"\s+|[⺀-￿]|[^\s⺀-￿]+")  # a word; each East Asian character is one


class WordWrapper:
    """Word wrap for streamed text. A word is held back until it is complete; the terminal wraps a word that is longer
    than a line.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0
        self._held = ""

    def add_text(self, text: str) -> str:
        """Add text, and return the part that can be printed."""
        tokens = _TOKENS.findall(self._held + text)
        self._held = tokens.pop() if tokens else ""
        return "".join(self._place_word(token) for token in tokens)

    def take_rest(self) -> str:
        """Return the text that is held back."""
        held, self._held = self._held, ""
        return self._place_word(held)

    def _place_word(self, token: str) -> str:
        if token.isspace():
            return self._place_space(token)
        cells = cell_len(token)
        if self._column == 0 or self._column + cells <= self._width:
            self._column = (self._column + cells) % self._width if cells > self._width else self._column + cells
            return token
        self._column = cells % self._width if cells > self._width else cells
        return f"\n{token}"

    def _place_space(self, space: str) -> str:
        """Return white space without the spaces at the end of a line."""
        lines, _, last = space.expandtabs(4).rpartition("\n")
        broken = "\n" * (lines.count("\n") + 1) if "\n" in space else ""
        if broken:
            self._column = 0
        room = self._width - self._column
        last = last if len(last) < room else ""
        self._column = self._column + len(last) if last or broken else self._width
        return broken + last
