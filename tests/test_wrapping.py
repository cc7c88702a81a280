"""Text that comes in pieces is wrapped as it would be in one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perdure.terminal.chat_view import WordWrapper

ALPHABET = "ab日 \n\t"


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


@given(st.lists(st.text(ALPHABET, max_size=8)), st.integers(2, 12))
def test_pieces_are_wrapped_as_the_whole_is_and_nothing_is_lost(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    told = wrapped(pieces, width)
    assert "".join(told.split()) == "".join(text.split())
    for line in told.split("\n"):
        assert cell_len(line) <= width or " " not in line.strip()
