"""The console for all output. It neutralises control characters in texts of models, tools and people."""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from perdure.decisions.text.visible_text import replace_hidden

REPLACEMENT = "\ufffd"
BYTE_ORDER_MARK = "\ufeff"  # before a text, as editors of Windows write one; it is no part of it
# Bell, backspace, tabs, line breaks and form feeds: rich drops those that are not white space.
_DROPPED = frozenset(range(7, 14))
_PICTURES = {code: 0x2400 + code for code in range(32) if code not in _DROPPED} | {0x7F: 0x2421}  # ESC is ␛
_SEPARATORS = dict.fromkeys((0x2028, 0x2029), 0x20)
_LEFT_TO_RICH = re.compile(r"([\x07-\x0d]+)")


def neutralize_controls(text: str) -> str:
    """Replace each character that a terminal acts upon, so that the text keeps its length and its styles.

    A second line of defence after `render_visible`, which writes code points.
    """
    parts = _LEFT_TO_RICH.split(text.translate(_PICTURES | _SEPARATORS))
    return "".join(part if number % 2 else replace_hidden(part, REPLACEMENT) for number, part in enumerate(parts))


class SafeConsole(Console):
    """A console that prints only `neutralize_controls` text, from any renderable."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(neutralize_controls(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and (plain := neutralize_controls(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = plain
        return super().render(renderable, options)


def is_plain_output(console: Console) -> bool:
    """Return whether output is not an interactive terminal: long lines stay whole, and nothing is redrawn."""
    return not console.is_terminal or console.is_dumb_terminal or not console.file.isatty()


def fit_line(text: str, cells: int) -> str:
    """Return the text as one line of at most `cells` columns; wide characters take two."""
    line = Text(neutralize_controls(" ".join(text.split())))
    line.truncate(max(cells, 1), overflow="ellipsis")
    return line.plain
