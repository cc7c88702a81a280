"""A turn of `perdure chat` as it is printed: the answer grows while the model writes it."""

from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from activities.outcome import RunEnd
from contracts.signals import HumanInput
from decisions.calls import text_of
from decisions.visible_text import render_visible
from perdure.client.happenings import Failed, Happening, Held, Live, Retrying, Started, Thought
from perdure.commands.report import COLOURS
from perdure.commands.terminal import Screen
from perdure.commands.wrapping import Wrapping


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
