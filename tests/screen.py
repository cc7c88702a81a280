"""What a person sees of what was written to a terminal: the few codes that we use, and an error at any other."""

import re
from io import StringIO

from rich.cells import cell_len

CODES = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])")
STYLES, MODES = "m", "hl"
JOINER = "\u200d"
ROOM = ""  # the second column of a wide character


class Terminal(StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


class TerminalScreen:
    """A screen without an end above. A line that is too long goes on in the next row."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.hides_cursor = False
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                code = CODES.match(text, at)
                assert code is not None, f"a code that we never write: {text[at : at + 10]!r}"
                self._obey(*code.groups())
                at = code.end()
            else:
                self._put(text[at])
                at += 1

    def narrow_to(self, columns: int) -> None:
        """As terminals do: what does not fit any more goes on in rows of its own, and the cursor stays at its text."""
        before = sum(max(-(-len(row) // columns), 1) for row in self.rows[: self._row])
        offset = max(self._column - 1, 0) // columns
        self.rows = [row[at : at + columns] for row in self.rows for at in range(0, max(len(row), 1), columns)]
        self._row, self._column, self.columns = before + offset, self._column - offset * columns, columns

    def _obey(self, private: str | None, number: str, letter: str) -> None:
        if private or letter in STYLES:
            assert letter in STYLES + MODES
            self.hides_cursor = letter == "l" if number == "25" else self.hides_cursor
        elif letter == "A":
            self._row = max(self._row - int(number or 1), 0)
        elif (number, letter) == ("2", "K"):
            self.rows[self._row] = []
        else:
            raise AssertionError(f"a code that we never write: {number}{letter}")

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row, self._column = self._row + 1, 0
        elif character != JOINER:  # terminals disagree of it: one that joins and one that does not are both right
            assert character.isprintable(), f"a control character: {character!r}"
            wide = cell_len(character)
            if self._column + wide > self.columns:
                self._row, self._column = self._row + 1, 0
            self._grow()
            row = self.rows[self._row]
            row += [" "] * (self._column + wide - len(row))
            row[self._column : self._column + wide] = [character, ROOM][:wide]
            self._column += wide
        self._grow()

    def _grow(self) -> None:
        self.rows += [[] for _ in range(self._row + 1 - len(self.rows))]
