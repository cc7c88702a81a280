"""The one reader of JSON from outside: it refuses what two readers may understand differently, with its place.

There are no repeated names, and no numbers beyond JSON's own. `strict_yaml` reads YAML.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from perdure.contracts.models import MAX_READABLE, escape_unprintable, is_utf8, nesting_depth

MAX_DIGITS = 4300  # of a number: Python's own limit for integers

_TWICE, _LONG, _LARGE = "it is there twice", f"a number has more than {MAX_DIGITS:,} digits", "a number is too large"
_HALF = r"half of a \u pair is no character"


NESTED = "nested too deeply"
# The block between two lines "---" at the start of a file.
FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


class JsonError(ValueError):
    """The text is not strict JSON. The message is one line: the place and the reason. It quotes no value."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason, self.place = reason, place


class _Flaw:
    """A placeholder in a value for a part that JSON does not allow."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def parse_strict_json(text: str | bytes, max_nesting: int | None = None) -> Any:
    """Return the value of a JSON text. Raises JsonError, also if it is nested deeper than `max_nesting` levels.

    Each payload of a workflow task is read so, without a maximum: the check would cost more than the parser.
    """
    reader = _Reader()
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            plain,
            parse_int=reader.read_int,
            parse_float=reader.read_float,
            parse_constant=reader.read_constant,
            object_pairs_hook=reader.read_object,
        )
        is_deep = max_nesting is not None and nesting_depth(value) > max_nesting
        has_half = "\\u" in plain and not is_utf8(json.dumps(value, ensure_ascii=False, default=str))
    except RecursionError:
        is_deep = True
    except UnicodeDecodeError:
        raise JsonError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at character {error.pos}") from None
    if is_deep:
        raise JsonError(f"nested more than {max_nesting or MAX_READABLE} levels deep")
    if reader.is_flawed or has_half:
        place, reason = next(_find_flaws(value), ("", _HALF))
        raise JsonError(reason, place)
    return value


class _Reader:
    """The hooks of `json.loads`. They do not know the place, so they put a `_Flaw` into the value."""

    is_flawed = False

    def read_int(self, digits: str) -> int | _Flaw:
        try:
            return int(digits)
        except ValueError:
            return self._mark_flaw(_LONG)

    def read_float(self, digits: str) -> float | _Flaw:
        if len(digits) > MAX_DIGITS:
            return self._mark_flaw(_LONG)
        return number if math.isfinite(number := float(digits)) else self._mark_flaw(_LARGE)

    def read_constant(self, name: str) -> _Flaw:
        return self._mark_flaw(f"{name} is no number of JSON")

    def read_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            result[next(name for name in names if names.count(name) > 1)] = self._mark_flaw(_TWICE)
        return result

    def _mark_flaw(self, reason: str) -> _Flaw:
        self.is_flawed = True
        return _Flaw(reason)


def find_flaw(value: Any) -> str | None:
    """Return place and reason of the first part of a value that JSON cannot represent, if there is one."""
    place, reason = next(_find_flaws(value), ("", ""))
    return f"{place}: {reason}" if place else reason or None


def _find_flaws(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each flaw with its place, in order. Not recursive: a value may be nested deeply."""
    remaining: list[tuple[str, Any]] = [("", value)]
    while remaining:
        place, inner = remaining.pop()
        if reason := _flaw_reason(inner):
            yield place, reason
        elif isinstance(inner, dict):
            remaining += [(_join_path(place, name), item) for name, item in reversed(inner.items())]
        elif isinstance(inner, list | tuple):
            remaining += [(_join_path(place, str(number)), item) for number, item in reversed(list(enumerate(inner)))]


def _flaw_reason(value: Any) -> str | None:
    match value:
        case _Flaw():
            return value.reason
        case float() if not math.isfinite(value):
            return f"{value} is no number of JSON"
        case int() if not isinstance(value, bool) and value.bit_length() > MAX_DIGITS * 3.3222:
            return _LONG
        case str() if not is_utf8(value):
            return _HALF
        case dict() if not all(is_utf8(name) for name in value if isinstance(name, str)):
            return _HALF
    return None


def _join_path(place: str, name: Any) -> str:
    text = str(name)
    shown = escape_unprintable(text) if len(text) <= 60 and is_utf8(text) else f"{text[:59]!r}…"
    return f"{place}.{shown}" if place else shown


def plain_reason(error: Exception) -> str:
    """Return a parser's message, without Python's own wording about numbers with too many digits."""
    is_long = "integer string conversion" in str(error)
    return "a number has too many digits" if is_long else str(error)
