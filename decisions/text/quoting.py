"""Quotes the text of others as data: as one line of JSON, or between fences that the text cannot close."""

import json
import re
from collections.abc import Iterable, Sequence

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
