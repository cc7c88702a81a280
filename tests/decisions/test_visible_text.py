"""What people are shown of text that a model, a tool or a caller wrote."""

import json
from time import thread_time
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import mark_hidden, render_arguments, render_values, render_visible

HIDDEN = [
    *("\u202e", "\u2066", "\u200b", "\u200e", "\u061c", "\u00ad", "\u2060", "\ufeff", "\u2062"),  # bidi and zero-width
    *("\u3164", "\u115f", "\u1160", "\uffa0", "\u2800", "\u034f", "\u17b4", "\u180e"),  # fillers
    *("\u00a0", "\u2003", "\u202f", "\u3000", "\u1680"),  # blanks that are no spaces
    *("\U000e0041", "\U000e0100", "\ufe01", "\ufff9", "\U0001d173"),  # tags, selectors, annotations
    *("\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\ue000", "\ud800", "\u0378", "\r", "\x0b"),
]


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda each: f"U+{ord(each):04X}")
def test_what_a_screen_does_not_show_is_written_out(hidden: str) -> None:
    assert render_visible(f"pay {hidden}9") == f"pay [U+{ord(hidden):04X}]9"
    assert f"[U+{ord(hidden):04X}]" in truncate(f"pay {hidden}9", 80)


@pytest.mark.parametrize(
    "text",
    [
        "plain text, with\n\ttabs and\n\n  lines",
        "Grüße, 日本語, ไทย, עברית, العربية, हिन्दी, Việt Nam, é e\u0301",
        "👩\u200d👩\u200d👧 ❤\ufe0f 1\ufe0f\u20e3 👍🏽 🏳\ufe0f\u200d🌈 🇩🇪",
        "می\u200cخواهم क्\u200dष",
        "def f():\n        return 1\n\n\ndef g(): ...",
        "“typographic” – signs … €",
    ],
)
def test_ordinary_text_of_every_script_stays_as_it_is(text: str) -> None:
    assert render_visible(text) == text
    assert mark_hidden(text) == text


def test_blanks_and_line_breaks_stay_as_they_are_for_a_model() -> None:
    text = "a\r\n" + " " * 500 + "\n" * 400 + "\t" * 99 + "\u00a0\u3000\u202f«x»"
    assert mark_hidden(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u200db", "a[U+200D]b"),
        ("❤\u200d\u200d❤", "❤[U+200D][U+200D]❤"),
        ("a\ufe0f", "a[U+FE0F]"),
        ("❤\ufe0f\ufe0f", "❤\ufe0f[U+FE0F]"),
        ("a" + "\u0301" * 6, "a" + "\u0301" * 4 + "[U+0301]" * 2),
        ("a" + " " * 5000 + "b", "a [5,000 spaces] b"),
        ("a" + "\n" * 400 + "b", "a\n[400 line breaks]\nb"),
        ("a" + "\n " * 400 + "b", "a\n[400 line breaks, 400 spaces]\nb"),
        ("a" + "\t" * 99 + "b", "a [792 spaces] b"),
        ("a" + "\u00a0" * 3 + "b", "a[U+00A0][U+00A0][U+00A0]b"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_what_is_out_of_place_or_too_long_is_written_out(text: str, shown: str) -> None:
    assert render_visible(text) == shown


ANY = st.text(st.one_of(st.characters(), st.sampled_from(HIDDEN), st.sampled_from("a \n\t\u200d\ufe0f❤")), max_size=60)


@given(ANY)
def test_nothing_hidden_is_left_and_rendering_again_changes_nothing(text: str) -> None:
    shown = render_visible(text)
    kept = shown.translate({ord(sign): None for sign in "\n\t\u200c\u200d\ufe0f"})
    assert not {category(sign) for sign in kept} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert set(shown) - {" "} == {sign for sign in shown if category(sign) != "Zs"}
    assert not set(shown) & {"\u3164", "\u2800", "\u034f", "\U000e0100"}
    assert render_visible(shown) == shown


@given(ANY)
def test_nothing_but_blanks_is_hidden_from_a_model_and_marking_again_changes_nothing(text: str) -> None:
    marked = mark_hidden(text)
    kept = marked.translate({ord(sign): None for sign in "\n\t\r\u200c\u200d\ufe0f"})
    assert not {category(sign) for sign in kept} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert not set(marked) & {"\u3164", "\u2800", "\u034f", "\u115f", "\U000e0100"}
    assert mark_hidden(marked) == marked


@given(ANY, st.sampled_from([sign for sign in HIDDEN if sign != "\r"]), st.integers(0, 60))
def test_a_hidden_character_always_makes_a_difference_that_is_seen(text: str, hidden: str, at: int) -> None:
    altered = text[:at] + hidden + text[at:]
    assert render_visible(altered) != render_visible(text)


def test_arguments_are_rendered_whole_and_in_values() -> None:
    assert render_values({"a": ["x\u202ey", 1, None]}) == {"a": ["x[U+202E]y", 1, None]}
    assert render_values({"p\u200bay": {"t\u202eo": 1}}) == {"p[U+200B]ay": {"t[U+202E]o": 1}}
    twins = {"a\u202e": 1, "a[U+202E]": 2, "a\n\n\n\nb": 3}
    assert render_values(twins) == {"a[U+202E]": 1, "a[U+202E] [2]": 2, "a\n[4 line breaks]\nb": 3}
    assert "[U+202E]" in render_visible(json.dumps({"to": "eve\u202e"}, ensure_ascii=False))


def test_a_megabyte_takes_no_time_to_speak_of() -> None:
    for text in ("x" * 1_000_000, " " * 1_000_000, "日" * 300_000, "\u202e" * 100_000, "a\u0301" * 100_000):
        began = thread_time()
        render_visible(text)
        assert thread_time() - began < 3


def test_the_arguments_of_an_approval_show_joiners_and_count_blanks() -> None:
    shown = render_arguments(
        {
            "to": "می\u200cخواهم",
            "heart": "❤\ufe0f",
            "note": "a" + " " * 20 + "pay",
            "lines": "\n" * 40,
            "path": r"C:\\nnnnnnn",
        }
    )
    for part in ("می[U+200C]خواهم", "❤[U+FE0F]", "a[20 spaces]pay", r"[40 times \n]", r"\\nnnnnnn"):
        assert part in shown
    assert render_arguments({"a\u200d": 1, "a": 2}).count("\n") == 3  # no name takes another's place


@given(ANY, st.sampled_from([*HIDDEN, "\u200d", "\u200c", "\ufe0f"]), st.integers(0, 60))
def test_arguments_that_differ_in_a_hidden_character_look_different(text: str, hidden: str, at: int) -> None:
    altered = render_arguments({"to": text[:at] + hidden + text[at:]})
    assert altered != render_arguments({"to": text})
    assert not set(altered) & {"\u200c", "\u200d", "\ufe0f"}
    assert render_visible(altered) == altered  # every door may render it again


def test_a_text_of_several_lines_is_shown_line_by_line() -> None:
    mail = {"to": "ann@shop.example", "body": 'Dear Ann,\n\nyour "cents": 1,\n  thanks \n', "cents": 500}
    assert render_arguments(mail).split("\n") == [
        "{",
        '  "to": "ann@shop.example",',
        '  "body":',
        '    "Dear Ann,"',
        '    ""',
        '    "your \\"cents\\": 1,"',
        '    "  thanks "',
        '    "",',
        '  "cents": 500',
        "}",
    ]
    assert render_arguments({"text": "a" + 6 * "\n" + "b"}).count("\n") == 2  # counted
    assert render_arguments({"text": "a\n" * 300}).count("\n") == 2  # nothing is pushed out of sight


LINES = st.text(st.sampled_from(["a", "n", "\n", "\\", '"', ",", " ", ":", "1"]), max_size=12)


@given(st.lists(LINES, max_size=2), st.lists(LINES, max_size=2), LINES, LINES)
def test_two_calls_with_texts_of_several_lines_never_look_alike(
    one: list[str], two: list[str], here: str, there: str
) -> None:
    first, second = {"to": here, "all": one, "z": 1}, {"to": there, "all": two, "z": 1}
    assert (render_arguments(first) == render_arguments(second)) == (first == second)
