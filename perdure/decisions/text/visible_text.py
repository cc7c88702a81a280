"""Text of others: made visible, quoted as data, or with a call written in it."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from unicodedata import category

MAX_SPACES = 32  # in a row; more could push what follows out of sight
MAX_LINE_BREAKS = 3
MAX_MARKS = 4  # combining marks on one character; scripts use up to three
MAX_TEXT_LINES = 200  # of a text that is shown line by line; more could push what follows out of sight
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
_TEXT_LINE = re.compile(r'( *)("(?:[^"\\]|\\.)*": )?"((?:[^"\\]|\\.)*)"(,?)')
_MANY_BREAKS = re.compile(r"(?:\\n){5,}")
_RUN_OF_BLANKS = re.compile(r"[ \t\n]{4,}")


def cut_text(text: str, length: int) -> str:
    """Return at most `length` characters. If more follow, the last one is an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


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
    blanks are counted from three on. A line of JSON begins with an indent that is not the model's. A text of several
    lines, such as that of a mail, is shown line by line, each in its quotes.
    """
    written = json.dumps(arguments, ensure_ascii=False, indent=2)
    lines = (part for line in written.split("\n") for part in _split_text(line))
    return "\n".join(map(_render_exactly, lines))


def _split_text(line: str) -> list[str]:
    """Return a line of JSON, or one for each line of the text in it, if that has several."""
    match = _TEXT_LINE.fullmatch(line)
    texts = json.loads(f'"{match[3]}"').split("\n") if match and "\\n" in match[3] else []
    if match is None or not 1 < len(texts) <= MAX_TEXT_LINES or _MANY_BREAKS.search(match[3]):
        return [line]
    quoted = [f"{match[1]}  {json.dumps(text, ensure_ascii=False)}" for text in texts]
    head = [f"{match[1]}{match[2]}".rstrip()] if match[2] else []
    return [*head, *quoted[:-1], quoted[-1] + match[4]]


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


# `"name": "look"` beside `"arguments": {`, in the words of most templates; and the tags of some.
_NAMED = re.compile(r'"(?:name|tool|tool_name|function|function_name|action)"\s{0,99}:\s{0,99}"([\w.-]{1,64})"')
_ARGUMENTS = re.compile(r'"(?:arguments|args|parameters|params|input|tool_input|action_input)"\s{0,99}:\s{0,99}["{\[]')
_TAGGED = re.compile(r'<(?:function=|invoke name="|tool_call>\s{0,99}|\|python_tag\|>\s{0,99})([\w-]{1,64})')


def find_written_call(text: str, tools: Collection[str]) -> str | None:
    """Return the tool that a text has a call of, if any. It takes linear time."""
    names = [match[1] for match in _TAGGED.finditer(text)]
    if _ARGUMENTS.search(text):
        names += [match[1] for match in _NAMED.finditer(text)]
    return next((name for name in names if name in tools), None)


MAX_FENCE = 32  # backticks; a text with a longer run is quoted as JSON, so that fences stay short
LEFT_OUT = 80  # bytes of the entry that counts those left out
_HEADING = re.compile("((?:\\A|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])[ \t]*)#")
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # JSON may hold these as they are, and some readers end a line there


def format_entry(speaker: str, **fields: object) -> str:
    """Format an entry of a record as one line of JSON: no text in it can end the line, or begin another entry."""
    return _one_line({"from": speaker, **fields})


def fence_text(text: str, *others: str) -> str:
    """Put the text between Markdown fences, longer than any run of backticks in it: no heading of it counts.

    With `others`, which the same page quotes, the fences are as long as theirs: if the page is cut in the middle,
    the end of one text cannot close the fence of another.
    """
    runs = [max(map(len, re.findall("`+", quoted)), default=0) for quoted in (text, *others)]
    ticks = "`" * (max([2, *(run for run in runs if run < MAX_FENCE)]) + 1)
    body = text if runs[0] < MAX_FENCE else _one_line(text)  # one line, which begins with a quotation mark
    return f"{ticks}\n{body}\n{ticks}"


def escape_headings(text: str) -> str:
    """Escape each line that Markdown would read as a heading of its own (`# …`)."""
    return _HEADING.sub(r"\1\\#", text)


def join_within(lines: Sequence[str], limit: int) -> str:
    """Join lines to about `limit` bytes. Whole lines are left out of the middle, and an entry says how many."""
    if sum(map(_line_size, lines)) <= limit:
        return "\n".join(lines)
    half = (limit - LEFT_OUT) // 2
    first = _count_fitting(lines, half)
    last = _count_fitting(reversed(lines[first:]), half)
    end = len(lines) - last
    left_out = format_entry("runtime", text=f"{end - first:,} entries left out here")
    return "\n".join([*lines[:first], left_out, *lines[end:]])


def _count_fitting(lines: Iterable[str], limit: int) -> int:
    count = used = 0
    for line in lines:
        used += _line_size(line)
        if used > limit:
            break
        count += 1
    return count


def _line_size(line: str) -> int:
    return len(line.encode(errors="replace")) + 1


def _one_line(value: object) -> str:
    return _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", json.dumps(value, ensure_ascii=False))
