"""A turn of `perdure chat` as it is printed: the answer grows while the model writes it."""

import re
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from activities.run.outcome import RunEnd
from contracts.run.signals import HumanInput
from decisions.run.calls import text_of
from decisions.text.visible_text import render_visible
from perdure.client.run_events import Failed, Happening, Held, Live, Retrying, Started, Thought
from perdure.terminal.report import COLOURS
from perdure.terminal.run_view import Screen


class Page:
    """Prints a turn as it goes on. Nothing is drawn twice, so that what a person types meanwhile stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen = Screen(console)
        self._written = ""  # of the answer that is being written
        self._lines = Wrapping(console.width)
        self._said = ""  # the last whole one

    def show(self, happening: Happening, time: datetime | None) -> None:
        match happening:
            case Started():
                self._screen.hears(happening, time)
            case Live(text) if not isinstance(happening, Held):
                if self._screen.is_live and self._screen.progress.is_thinking:  # elsewhere a line is a line
                    self._write(_rest(self._written, text))
            case Thought(reply=reply):
                self._screen.hears(happening, time)
                self._said = text_of(reply.content)
                is_known = self._said.startswith(self._written.rstrip())
                self._write(self._said[len(self._written) :] if is_known else f"\n{self._said}")
                self._close()
                self._screen.tell_fallbacks(reply)
            case Retrying() | Failed():
                self._close()
                self._screen.show(happening, time)
            case _:
                self._screen.show(happening, time)

    def says(self, answer: HumanInput) -> HumanInput:
        """An answer that is given here."""
        return self._screen.says(answer)

    def _write(self, text: str) -> None:
        self._written += text
        text = render_visible(text)
        self._console.print(Text(self._lines.add(text) if self._screen.is_live else text), end="", soft_wrap=True)

    def _close(self) -> None:
        """Ends the line, where one was begun."""
        if self._written:
            self._console.print(Text(self._lines.end()), soft_wrap=True)
        self._written, self._lines = "", Wrapping(self._console.width)

    def end(self, end: RunEnd) -> None:
        self._close()
        if end.event and end.event["type"] == "agent.completed":
            outcome = end.event["payload"]["outcome"]
            if outcome != self._said:
                self._console.print(Text(render_visible(outcome)))
            if self._screen.is_live:
                self._console.print(f"[dim]{self._screen.progress.facts}[/]")
        else:
            payload = end.event["payload"] if end.event else {"reason": end.kind, "detail": end.message}
            why = f": {payload['reason']}: {render_visible(payload['detail'])}" if payload["detail"] else ""
            colour = COLOURS.get(end.status, "white")
            self._console.print(f"[{colour}]■ {end.status}[/]{escape(why)}")
        self._screen = Screen(self._console)  # each turn is a run of its own


def _rest(written: str, text: str) -> str:
    """What is new in a text of which only the end is told where it is long."""
    if text.startswith(written):
        return text[len(written) :]
    tail = written[-80:]
    at = text.rfind(tail)
    return text[at + len(tail) :] if at >= 0 else f" … {text}"


_TOKENS = re.compile(r"\s+|[⺀-￿]|[^\s⺀-￿]+")  # a word; East Asian characters stand for themselves


class Wrapping:
    """Of lines of so many columns. A word is held back until it is whole; one that is too long for a line is left to
    the terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0
        self._held = ""

    def add(self, text: str) -> str:
        """What can be printed now."""
        tokens = _TOKENS.findall(self._held + text)
        self._held = tokens.pop() if tokens else ""
        return "".join(self._placed(token) for token in tokens)

    def end(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return self._placed(held)

    def _placed(self, token: str) -> str:
        if token.isspace():
            return self._gap(token)
        cells, begins = cell_len(token), self._column == 0
        if begins or self._column + cells <= self._width:
            self._column = (self._column + cells) % self._width if cells > self._width else self._column + cells
            return token
        self._column = cells % self._width if cells > self._width else cells
        return f"\n{token}"

    def _gap(self, space: str) -> str:
        """Spaces at the end of a line are left out."""
        lines, _, last = space.expandtabs(4).rpartition("\n")
        broken = "\n" * (lines.count("\n") + 1) if "\n" in space else ""
        if broken:
            self._column = 0
        room = self._width - self._column
        last = last if len(last) < room else ""
        self._column = self._column + len(last) if last or broken else self._width
        return broken + last
