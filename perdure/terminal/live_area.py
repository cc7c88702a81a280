"""The status lines at the bottom of a terminal while a run is active. Other output appears above them."""

import os
import sys
import termios
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import ceil
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType, Segment
from rich.text import Text

from perdure.terminal.console import neutralize_controls

AreaContent = Callable[[int, int], list[Text]]  # returns the status lines for a maximum width and height
HEIGHT_SHARE = 3  # the area takes at most a third of the screen's height
_ECHO = 3  # index of the local modes in the attributes of termios
# Synchronized output with a hidden cursor; terminals ignore codes that they do not know.
_BEGIN, _END = "\x1b[?2026h\x1b[?25l", "\x1b[?25h\x1b[?2026l"


class LiveArea(RenderHook):
    """A live area that redraws in one write, and only after a change. Keyboard echo is off, as typed text would break
    up the lines.
    """

    def __init__(self, console: Console, lines: AreaContent) -> None:
        self._console = console
        self._lines = lines
        self._drawn: list[Text] = []
        self._width = 0  # of the screen at the last drawing
        self._modes: list[Any] | None = None  # terminal attributes to restore
        self._is_open = False

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._disable_echo()
            self._console.push_render_hook(self)
            self.draw()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._console.control(*self._erase_codes())
            self._console.pop_render_hook()
            self._drawn = []
            self._restore_terminal()

    def draw(self) -> None:
        if self._is_open and (self._current_lines() != self._drawn or self._screen_width() != self._width):
            with self._console:
                self._console.print(Control())  # the render hook draws

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_control_of(_BEGIN), *self._erase_codes(), *renderables, self] if self._is_open else renderables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        self._drawn, self._width = self._current_lines(), self._screen_width()
        for number, line in enumerate(self._drawn):
            yield from line.render(console, end="\n" if number < len(self._drawn) - 1 else "")
        yield _control_of(_END).segment

    def _current_lines(self) -> list[Text]:
        width, height = self._screen_width() - 1, max(self._console.height // HEIGHT_SHARE, 1)
        lines = self._lines(width, height)[-height:]
        for line in lines:
            line.plain = neutralize_controls(line.plain)
            line.truncate(width, overflow="ellipsis")
        return lines

    def _screen_width(self) -> int:
        """Return the screen's real width: COLUMNS may exceed it, and a wrapped line cannot be erased."""
        with suppress(OSError, ValueError):
            return min(self._console.width, os.get_terminal_size(self._console.file.fileno()).columns or sys.maxsize)
        return self._console.width

    def _erase_codes(self) -> list[Control]:
        rows = self._used_rows()
        up = [Control((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))] * (rows - 1)
        return [Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)), *up] if rows else []

    def _used_rows(self) -> int:
        """Return the number of rows in use: most terminals wrap existing lines when they become narrower."""
        columns = self._screen_width()
        if columns >= self._width or "XTERM_VERSION" in os.environ:
            return len(self._drawn)
        return sum(max(ceil(line.cell_len / columns), 1) for line in self._drawn)

    def _disable_echo(self) -> None:
        with suppress(OSError, ValueError, termios.error, AttributeError):
            keyboard = sys.stdin.fileno()
            if os.tcgetpgrp(keyboard) == os.getpgrp():  # in the background this would stop the process
                self._modes = termios.tcgetattr(keyboard)
                modes = termios.tcgetattr(keyboard)
                modes[_ECHO] &= ~termios.ECHO
                termios.tcsetattr(keyboard, termios.TCSADRAIN, modes)

    def _restore_terminal(self) -> None:
        if self._modes is not None:
            with suppress(OSError, ValueError, termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._modes)
            self._modes = None


def _control_of(text: str) -> Control:
    control = Control()
    control.segment = Segment(text, None, [(ControlType.HOME,)])  # any control code: only the text is written
    return control
