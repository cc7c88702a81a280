"""The turns of `perdure chat` as printed text. An answer appears as the model writes it."""

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
from perdure.terminal.report import status_colour
from perdure.terminal.run_view import Screen


class Page:
    """A printer of turns. It redraws nothing, so that the text a person is typing stays intact."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._screen = Screen(console)
        self._written = ""  # the printed part of the answer in progress
        self._lines = Wrapping(console.width)
        self._said = ""  # the last complete answer

    def show(self, happening: Happening, time: datetime | None) -> None:
        match happening:
            case Started():
                self._screen.hears(happening, time)
            case Live(text) if not isinstance(happening, Held):
                if self._screen.is_live and self._screen.progress.is_thinking:  # other outputs take whole lines
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
        """Note an answer that was typed at this terminal."""
        return self._screen.says(answer)

    def _write(self, text: str) -> None:
        self._written += text
        text = render_visible(text)
        self._console.print(Text(self._lines.add(text) if self._screen.is_live else text), end="", soft_wrap=True)

    def _close(self) -> None:
        """End the line in progress, if any."""
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
            reason = f": {payload['reason']}: {render_visible(payload['detail'])}" if payload["detail"] else ""
            colour = status_colour(end.status)
            self._console.print(f"[{colour}]■ {end.status}[/]{escape(reason)}")
        self._screen = Screen(self._console)  # each turn is a separate run


def _rest(written: str, text: str) -> str:
    """Return the new part of a text. A long text arrives without its beginning."""
    if text.startswith(written):
        return text[len(written) :]
    tail = written[-80:]
    index = text.rfind(tail)
    return text[index + len(tail) :] if index >= 0 else f" … {text}"


_TOKENS = re.compile(r"\s+|[⺀-￿]|[^\s⺀-￿]+")  # a word; each East Asian character is one


class Wrapping:
    """Word wrap for streamed text. A word is held back until it is complete; the terminal wraps a word that is longer
    than a line.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0
        self._held = ""

    def add(self, text: str) -> str:
        """Add text, and return the part that can be printed."""
        tokens = _TOKENS.findall(self._held + text)
        self._held = tokens.pop() if tokens else ""
        return "".join(self._placed(token) for token in tokens)

    def end(self) -> str:
        """Return the text that is held back."""
        held, self._held = self._held, ""
        return self._placed(held)

    def _placed(self, token: str) -> str:
        if token.isspace():
            return self._gap(token)
        cells = cell_len(token)
        if self._column == 0 or self._column + cells <= self._width:
            self._column = (self._column + cells) % self._width if cells > self._width else self._column + cells
            return token
        self._column = cells % self._width if cells > self._width else cells
        return f"\n{token}"

    def _gap(self, space: str) -> str:
        """Return white space without the spaces at the end of a line."""
        lines, _, last = space.expandtabs(4).rpartition("\n")
        broken = "\n" * (lines.count("\n") + 1) if "\n" in space else ""
        if broken:
            self._column = 0
        room = self._width - self._column
        last = last if len(last) < room else ""
        self._column = self._column + len(last) if last or broken else self._width
        return broken + last
