"""The one reader of JSON from outside: what two readers may understand differently is refused, with its place."""

import json
import math
from collections.abc import Iterator
from typing import Any

from contracts.models import is_utf8

MAX_DIGITS = 4300  # of a number: Python reads and writes no more of a whole one

_TWICE, _LONG, _LARGE = "it is there twice", f"a number has more than {MAX_DIGITS:,} digits", "a number is too large"
_HALF = r"half of a \u pair is no character"
_DEEP = "it is nested too deeply"


class JsonError(ValueError):
    """The text is no JSON, or not plain. The message is one line: the place, and what is wrong. It quotes no value."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason, self.place = reason, place


class _Flaw:
    """Stands in a value for what must not be there."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def read_json(text: str | bytes) -> Any:
    """Return what a text says. Raises JsonError."""
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
        has_half = "\\u" in plain and not is_utf8(json.dumps(value, ensure_ascii=False, default=str))
    except RecursionError:
        raise JsonError(_DEEP) from None
    except UnicodeDecodeError:
        raise JsonError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at character {error.pos}") from None
    if reader.is_flawed or has_half:
        place, reason = next(_flaws_in(value), ("", _HALF))
        raise JsonError(reason, place)
    return value


class _Reader:
    """The hooks of `json.loads`, which know no place: a flaw stands in the value until it is looked for."""

    is_flawed = False

    def read_int(self, digits: str) -> int | _Flaw:
        try:
            return int(digits)
        except ValueError:
            return self._flaw(_LONG)

    def read_float(self, digits: str) -> float | _Flaw:
        if len(digits) > MAX_DIGITS:
            return self._flaw(_LONG)
        return number if math.isfinite(number := float(digits)) else self._flaw(_LARGE)

    def read_constant(self, name: str) -> _Flaw:
        return self._flaw(f"{name} is no number of JSON")

    def read_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            found[next(name for name in names if names.count(name) > 1)] = self._flaw(_TWICE)
        return found

    def _flaw(self, reason: str) -> _Flaw:
        self.is_flawed = True
        return _Flaw(reason)


def flaw_in(value: Any) -> str | None:
    """Return what of a value JSON cannot say, with its place; None if nothing of it is known to be so."""
    place, reason = next(_flaws_in(value), ("", ""))
    return f"{place}: {reason}" if place else reason or None


def _flaws_in(value: Any) -> Iterator[tuple[str, str]]:
    """Each flaw with its place, in order. Not by recursion: a value may be nested deep."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        place, inner = left.pop()
        if reason := _reason(inner):
            yield place, reason
        elif isinstance(inner, dict):
            left += [(_within(place, name), each) for name, each in reversed(inner.items())]
        elif isinstance(inner, list | tuple):
            left += [(_within(place, str(number)), each) for number, each in reversed(list(enumerate(inner)))]


def _reason(value: Any) -> str | None:
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


def _within(place: str, name: Any) -> str:
    shown = str(name) if len(str(name)) <= 60 and is_utf8(str(name)) else f"{str(name)[:59]!r}…"
    return f"{place}.{shown}" if place else shown
