"""What is read of a text takes time by its length, whatever is in it: a workflow task has two seconds."""

import re
from collections.abc import Callable
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.models import escape_unprintable
from perdure.contracts.run.journal import Journal
from perdure.decisions.run.journal import parse_framing
from perdure.decisions.text.formatting import format_signal_notice, plan_items, ticked_items, truncate

LENGTH = 100_000
PIECES = (" ", "\n", " \n", "-", "\n-", "- ", "\n- 1. ", "=\n", "\u3000", "\t", "1. ", "item 1 ", "[x] ", "plan ")
READERS: dict[str, Callable[[str], object]] = {
    "printable": escape_unprintable,
    "notice": lambda text: format_signal_notice(text, text),
    "cut": lambda text: truncate(text, 300),
    "framing": parse_framing,
    "items": plan_items,
    "done": lambda text: ticked_items(("one", "two"), Journal(current_state=text)),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_longer_than_its_length(name: str, piece: str) -> None:
    text = "so:" + piece * (LENGTH // len(piece)) + "x"
    began = process_time()
    READERS[name](text)
    assert process_time() - began < 1


@given(st.text(alphabet=" \t\n\r\x0b\x1c\x85\u2028\u3000ab\u200d"))
def test_breaks_become_one_blank_with_the_blanks_around_them(text: str) -> None:
    line = re.sub(r"\s*[\t-\r\x1c-\x1f\x85\u2028\u2029]\s*", " ", text)
    assert escape_unprintable(text) == line


@given(st.text(alphabet="-*# \n\tframeplan:x"))
def test_a_frame_and_a_plan_are_found_as_before(text: str) -> None:
    frame = re.search(r"^\W*frame\W+(.+)$", text, re.IGNORECASE | re.MULTILINE)
    plan = re.search(r"^\W*plan\b\W*(.+)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL)
    found = parse_framing(text)
    assert found.frame == (frame[1].strip() if frame else "")
    assert found.plan == (plan[1] if plan else text).strip()
