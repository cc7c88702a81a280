"""Where everything is printed: what models, tools and people wrote is shown there, and never obeyed by the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

REPLACEMENT = 0xFFFD
# One for one, so that styles stay where they are: the net below `decisions.visible_text`, which writes code points.
# Bell, backspace, carriage return and form feeds are dropped by rich.
_SHOWN = {
    **{code: 0x2400 + code for code in range(32) if code not in (7, 8, 9, 10, 11, 12, 13)},  # ESC is ␛
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), REPLACEMENT),  # escape sequences of one character
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), REPLACEMENT),  # text that reads backwards
    **dict.fromkeys((0xAD, 0x200B, 0x200E, 0x200F, 0x61C, 0x2060, 0xFEFF, 0x3164, 0x2800), REPLACEMENT),  # not seen
    **dict.fromkeys(range(0xE0000, 0xE0080), REPLACEMENT),  # tags
    **dict.fromkeys((0x2028, 0x2029), 0x20),
    **dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT),  # half a character, which cannot be written
}


def harmless(text: str) -> str:
    """The same text for the eye, of the same length, with nothing in it that a terminal acts upon."""
    return text.translate(_SHOWN)


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
