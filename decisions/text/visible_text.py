"""Text of models, tools and callers, rendered for people: nothing in it is invisible, and nothing hides the rest.

Characters that a screen shows as nothing, as a blank, or that reorder their neighbours become their code point, like
`[U+202E]`; long runs of blanks and line breaks become their count. A model sees the same characters of a tool's result
written out, with all blanks and line breaks unchanged. Programs get the text unchanged.
"""

import json
import re
from collections.abc import Mapping
from typing import Any
from unicodedata import category

MAX_SPACES = 32  # in a row; more could push what follows out of sight
MAX_LINE_BREAKS = 3
MAX_MARKS = 4  # combining marks on one character; scripts use up to three
TAB_WIDTH = 8

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters, marks and a symbol that are blank or ignorable by definition (Unicode's Default_Ignorable_Code_Point).
_BLANKS = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
    | {*range(0xE0100, 0xE01F0)}
)
_JOINERS = "\u200c\u200d"
_EMOJI_STYLE = "\ufe0f"
_NOT_ASCII = re.compile(r"[^\t\n\x20-\x7e]+")
_NEITHER_ASCII_NOR_BLANK = re.compile(r"[^\t\n\r\x20-\x7e\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_JOINING = re.compile("[\u200c\u200d\ufe0f]")
_SPACES = re.compile(r" {3,}")
_ESCAPED_BLANKS = re.compile(r"\\\\|(\\[nrt])\1{5,}")  # an escaped backslash is consumed, so that its "n" is a letter
_RUN_OF_BLANKS = re.compile(r"[ \t\n]{4,}")


def render_visible(text: str) -> str:
    """Return the text with all that is hidden in it written out. Lines stay lines; rendering again changes nothing."""
    text = text.replace("\r\n", "\n")
    shown = _NOT_ASCII.sub(lambda part: _render_part(text, part.start(), part.end()), text)
    return _RUN_OF_BLANKS.sub(_count_blanks, shown)


def mark_hidden(text: str) -> str:
    """Return the text as a model reads it: hidden characters written out, blanks and line breaks unchanged.

    Text that people cannot see in a page, mail or answer must not reach the model unseen.
    """
    return _NEITHER_ASCII_NOR_BLANK.sub(lambda part: _render_part(text, part.start(), part.end()), text)


def replace_hidden(text: str, sign: str) -> str:
    """Return a text of the same length, with `sign` in place of each hidden character; blanks stay as they are."""
    return _NEITHER_ASCII_NOR_BLANK.sub(lambda part: _render_part(text, part.start(), part.end(), sign), text)


def render_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as indented JSON, for the person who approves it.

    Here joiners and emoji styles are written out wherever they are, since `pay` with one inside is another text, and
    blanks are counted from three on. A line of JSON begins with an indent that is not the model's.
    """
    written = json.dumps(arguments, ensure_ascii=False, indent=2)
    return "\n".join(_render_exactly(line) for line in written.split("\n"))


def _render_exactly(line: str) -> str:
    body = line.lstrip(" ")
    shown = _JOINING.sub(lambda sign: f"[U+{ord(sign[0]):04X}]", render_visible(body))
    shown = _SPACES.sub(lambda run: f"[{len(run[0]):,} spaces]", shown)
    shown = _ESCAPED_BLANKS.sub(lambda run: f"[{len(run[0]) // 2:,} times {run[1]}]" if run[1] else run[0], shown)
    return line[: len(line) - len(body)] + shown


def render_values(value: Any) -> Any:
    """Return a JSON value with its texts and names rendered, for an interface that shows it to people."""
    match value:
        case str():
            return render_visible(value)
        case dict():
            return _render_names(value)
        case list() | tuple():
            return [render_values(inner) for inner in value]
        case _:
            return value


def _render_names(values: dict[Any, Any]) -> dict[str, Any]:
    """Render the names. A name that renders like an earlier one gets a number, so that neither is lost."""
    shown: dict[Any, Any] = {}
    for name, inner in values.items():
        plain = render_visible(name) if isinstance(name, str) else name
        number = 2
        while plain in shown:
            plain, number = f"{render_visible(name)} [{number}]", number + 1
        shown[plain] = render_values(inner)
    return shown


def _render_part(text: str, start: int, end: int, sign: str | None = None) -> str:
    shown: list[str] = []
    marks = 0
    for at in range(start, end):
        kind = category(text[at])
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        is_shown = _is_shown(text, at, kind) and marks <= MAX_MARKS
        shown.append(text[at] if is_shown else sign or f"[U+{ord(text[at]):04X}]")
    return "".join(shown)


def _is_shown(text: str, at: int, kind: str) -> bool:
    character = text[at]
    if character in _JOINERS or character == _EMOJI_STYLE:
        return _is_in_place(text, at)
    return kind not in _HIDDEN_CATEGORIES and kind != "Zs" and ord(character) not in _BLANKS


def _is_in_place(text: str, at: int) -> bool:
    """Return whether a joiner or emoji style stands where a script or an emoji needs it, and alone."""
    before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    if text[at] == _EMOJI_STYLE:
        return _is_symbol(before)
    is_emoji = text[at] == "\u200d" and (_is_symbol(before) or before == _EMOJI_STYLE) and _is_symbol(after)
    return is_emoji or (_is_joining(before) and _is_joining(after))


def _is_symbol(character: str) -> bool:
    return bool(character) and (category(character) in ("So", "Sk") or character in "#*0123456789")


def _is_joining(character: str) -> bool:
    """Return whether the character's script joins or stacks: Arabic to Khmer, in which joiners change the reading."""
    return bool(character) and 0x0600 <= ord(character) <= 0x17FF and category(character)[0] in "LM"


def _count_blanks(run: re.Match[str]) -> str:
    breaks, tabs = run[0].count("\n"), run[0].count("\t")
    spaces = len(run[0]) - breaks - tabs + tabs * TAB_WIDTH
    if breaks > MAX_LINE_BREAKS:
        return f"\n[{breaks:,} line breaks, {spaces:,} spaces]\n" if spaces else f"\n[{breaks:,} line breaks]\n"
    return f" [{spaces:,} spaces] " if spaces > MAX_SPACES else run[0]
