"""The one reader of JSON and YAML from outside: it refuses what two readers may understand differently, with its place.

JSON has no repeated names and no numbers beyond its own; YAML also has no tags and no documents without bounds.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from perdure.contracts.models import MAX_NESTING, MAX_READABLE, escape_unprintable, is_utf8, nesting_depth

MAX_DIGITS = 4300  # of a number: Python's own limit for integers

_TWICE, _LONG, _LARGE = "it is there twice", f"a number has more than {MAX_DIGITS:,} digits", "a number is too large"
_HALF = r"half of a \u pair is no character"


MAX_YAML = 4_000_000  # characters, with aliases expanded
NESTED = "nested too deeply"
# The block between two lines "---" at the start of a file.
FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_TAGS = {None, "!", "tag:yaml.org,2002:str"}
_OF_TEXT = re.compile(r' in "<[a-z ]+>",')  # PyYAML's name for the input


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


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document. Raises ValueError with the reason in one line."""
    with _one_line_errors():
        _must_be_bounded(text, MAX_NESTING)
        return yaml.load(text, _Unique)  # noqa: S506 - it is a SafeLoader


def compose_yaml(text: str, max_nesting: int) -> yaml.Node | None:
    """Return the nodes of a YAML document, in which aliases are not allowed. Raises ValueError as `parse_yaml`."""
    with _one_line_errors():
        _must_be_bounded(text, max_nesting, has_aliases=False)
        return yaml.compose(text, Loader=yaml.CBaseLoader)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (yaml.YAMLError, ValueError) as error:  # a bad number or date is a ValueError
        raise ValueError(_OF_TEXT.sub(",", " ".join(plain_reason(error).split()))) from None


def plain_reason(error: Exception) -> str:
    """Return a parser's message, without Python's own wording about numbers with too many digits."""
    is_long = "integer string conversion" in str(error)
    return "a number has too many digits" if is_long else str(error)


def find_yaml_line(text: str, setting: Sequence[str], item: str | None = None) -> int | None:
    """Return the line of a setting in a valid YAML document, or of an item in its list."""
    node, line = yaml.compose(text, Loader=yaml.CBaseLoader), None
    for part in setting:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        key, node = next(((key, value) for key, value in pairs if key.value == part), (None, node))
        line = key.start_mark.line + 1 if key is not None else line
    items = node.value if isinstance(node, yaml.SequenceNode) else ()
    return next((entry.start_mark.line + 1 for entry in items if item is not None and entry.value == item), line)


def _must_be_bounded(text: str, max_nesting: int, *, has_aliases: bool = True) -> None:
    """Raise ValueError if the document is too deep or, with aliases expanded, too large."""
    size, sizes, outer = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if (tag := getattr(event, "tag", None)) not in _TAGS:
            raise ValueError(f"tags are not supported: {tag}, line {event.start_mark.line + 1}")  # type: ignore[union-attr]
        if not has_aliases and getattr(event, "anchor", None) is not None:
            raise ValueError("anchors and aliases are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            outer.append((event.anchor, size))
            size = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = outer.pop()
            sizes[anchor or ""], size = size, before + size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor or ""] = 1 + len(event.value)
            size += 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            size += sizes.get(event.anchor or "", 1)
        if len(outer) > max_nesting:
            raise ValueError(NESTED)
        if size > MAX_YAML:
            raise ValueError(f"more than {MAX_YAML:,} characters with aliases expanded")


class _Unique(yaml.CSafeLoader):
    """A loader that rejects duplicate keys, because one of their values would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen |= {key.value} if isinstance(key.value, str) else set()
        return super().construct_mapping(node, deep)
