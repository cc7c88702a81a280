"""Text that comes in pieces, wrapped at words without drawing anything twice."""

import re

from rich.cells import cell_len

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
