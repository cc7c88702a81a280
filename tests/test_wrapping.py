"""Text that comes in pieces is wrapped as it would be in one."""

import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.terminal.chat_view import WordWrapper
from tests.screen import TerminalScreen

ALPHABET = "ab日 \n\t"
WORDS = re.compile("[ab]+")


def wrapped(pieces: list[str], width: int) -> str:
    lines = WordWrapper(width)
    return "".join(lines.add_text(piece) for piece in pieces) + lines.take_rest()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("one two  three", ["one two", "three"]),
        ("one\n\ntwo", ["one", "", "two"]),
        ("- a\n  - b", ["- a", "  - b"]),
        ("日本語テキスト", ["日本語テ", "キスト"]),
        ("a word-longer-than-a-line b", ["a", "word-longer-than-a-line", "b"]),
    ],
)
def test_lines_break_between_words(text: str, lines: list[str]) -> None:
    assert [line.rstrip() for line in wrapped([text], 8).split("\n")] == lines


@example(["aaaaa a"], 4)
@given(st.lists(st.text(ALPHABET, max_size=8)), st.integers(2, 12))
def test_streamed_text_loses_nothing_and_no_word_that_fits_a_row_is_broken(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    result = wrapped(pieces, width)
    assert "".join(result.split()) == "".join(text.split())
    screen = TerminalScreen(width)  # which breaks words that are longer than a row
    screen.write(result.replace("\n", "\r\n").expandtabs(4))
    shown = Counter(word for row in screen.lines for word in WORDS.findall(row))
    assert Counter(word for word in WORDS.findall(text) if len(word) <= width) <= shown
