"""Tables, and how values look in them."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns in which nothing stands are left out."""
    rows = [tuple(row) for row in rows]
    kept = [i for i, title in enumerate(head) if any(row[i] for row in rows)]
    lines = [[head[i] for i in kept], ["---"] * len(kept), *([_cell(row[i]) for i in kept] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def code(text: str) -> str:
    return f"`{text}`"


def fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def as_json(value: Any) -> str:
    """An object a line each where they do not fit one line."""
    return fenced(_indented(value, ""), "json")


def _indented(value: Any, margin: str) -> str:
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + len(margin) <= 96 or not isinstance(value, dict | list) or not value:
        return short
    inner = margin + "  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _indented(each, inner) for each in value) + f"\n{margin}]"
    lines = (f"{inner}{json.dumps(key)}: {_indented(each, inner)}" for key, each in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}"


def format_default(value: Any) -> str:
    """A default, as a person would write it."""
    match value:
        case None:
            return "none"
        case timedelta():
            return code(duration(value))
        case BaseModel():
            return ""
        case () | [] | {} | "":
            return "empty"
        case _:
            return code(json.dumps(to_jsonable_python(value), ensure_ascii=False))


def duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0 and seconds >= (2 * size if unit == "m" else size):
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading, where it is the first of its page."""
    kept = "".join(char for char in title.lower() if char.isalnum() or char in " -_")
    return kept.replace(" ", "-")


def page(title: str, *parts: str) -> str:
    mark = "<!-- Written by `make reference` from the code: change it there. -->"
    return "\n\n".join((f"# {title}", mark, *(_filled(part.strip()) for part in parts if part.strip()))) + "\n"


def _filled(part: str) -> str:
    """Prose at the width of these pages; what else there is stays as it is."""
    if part.startswith(("#", "|", "```", "<!--")):
        return part
    return "\n\n".join(textwrap.fill(each, 119, break_on_hyphens=False) for each in part.split("\n\n"))
