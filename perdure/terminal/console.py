"""Where everything is printed: what models, tools and people wrote is shown there, and never obeyed by the terminal."""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from decisions.text.visible_text import replace_hidden

REPLACEMENT = "\ufffd"
# Bell, backspace, tabs, line breaks and form feeds: rich drops those that are no blanks.
_DROPPED = frozenset(range(7, 14))
_PICTURES = {code: 0x2400 + code for code in range(32) if code not in _DROPPED} | {0x7F: 0x2421}  # ESC is ␛
_SEPARATORS = dict.fromkeys((0x2028, 0x2029), 0x20)
_LEFT_TO_RICH = re.compile(r"([\x07-\x0d]+)")


def harmless(text: str) -> str:
    """The same text for the eye, of the same length, with nothing in it that a terminal acts upon.

    One for one, so that styles stay where they are: the net below `render_visible`, which writes code points.
    """
    parts = _LEFT_TO_RICH.split(text.translate(_PICTURES | _SEPARATORS))
    return "".join(part if at % 2 else replace_hidden(part, REPLACEMENT) for at, part in enumerate(parts))


class SafeConsole(Console):
    """A console that prints `harmless` text only, whoever prints it."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(harmless(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and (plain := harmless(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = plain
        return super().render(renderable, options)


def is_plain(console: Console) -> bool:
    """Whether a line is a line here: no terminal, or one that can only print."""
    return not console.is_terminal or console.is_dumb_terminal or not console.file.isatty()


def fitted(text: str, cells: int) -> str:
    """One line of at most `cells` columns; wide characters take two."""
    line = Text(harmless(" ".join(text.split())))
    line.truncate(max(cells, 1), overflow="ellipsis")
    return line.plain
