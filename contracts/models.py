"""The base classes: what lies in history is read tolerantly, what comes from outside strictly."""

import math
import re
from typing import Annotated, Any
from unicodedata import category

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Value(BaseModel):
    """A frozen value. Unknown fields are ignored, so that old workers can read newer histories."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Edge(BaseModel):
    """A frozen value from a file, a person or another program. Unknown fields are refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def sparse(default: Any) -> Any:
    """A field that is not written while it says nothing: a step of a run has two dozen, a mailbox thousands."""
    return Field(default=default, exclude_if=lambda value: value == default)


class Terse(Value):
    """A value that each step of a run brings into history, where nothing is written that is at its default.

    Everywhere else it is whole. A default of these is what "nothing" means, and never changes: it is in no history.
    """


class CamelValue(Value):
    """A value whose source writes `workflowId`; here it is `workflow_id`, and either is read."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )


class CamelEdge(CamelValue):
    """The same from outside. Unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


_BREAKS = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
_JOINERS = "\u200c\u200d"

MOST_DEPTH = 50  # of a value from outside: a payload nested 200 deep is not read any more, and it gets wrapped

AROUND = 16  # levels; more than lie around a result or arguments wherever a run keeps them, to be read back from there


def depth(value: Any) -> int:
    """How many lists and objects lie in each other."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def is_utf8(text: str) -> bool:
    """What a shell or a disk hands on may be any bytes; only these can be told to a server or a person."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(value: Any) -> Any:
    """Return the value with U+FFFD for each half of a surrogate pair: JSON can escape one, and UTF-8 cannot hold it.

    Two halves that came apart, as in two events of a stream, become their character again.
    """
    match value:
        case str():
            return (
                value if is_utf8(value) else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            )
        case dict():
            return {replace_surrogates(name): replace_surrogates(inner) for name, inner in value.items()}
        case list():
            return [replace_surrogates(inner) for inner in value]
        case _:
            return value


# An escaped half of a surrogate pair; the group is another escape, or a whole pair, and stays.
_LONE_ESCAPE = re.compile(
    r"(\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def replace_lone_escapes(written: str) -> str:
    """Return JSON text with U+FFFD for each escape that is half of a surrogate pair."""
    return _LONE_ESCAPE.sub(lambda escape: escape[1] or r"\ufffd", written)


def printable(text: str) -> str:
    """One line, with what cannot be printed escaped: it quotes what somebody has written.

    Spaces and joiners of every script stay as they are, so that a name can be copied from it.
    """
    return "".join(sign if sign.isprintable() or _is_blank(sign) else repr(sign)[1:-1] for sign in _in_one(text))


def _in_one(text: str) -> str:
    """Breaks with the blanks around them become one blank. A pattern for that takes years for a megabyte of blanks."""
    first, *others = _BREAKS.split(text)
    if not others:
        return text
    *middle, last = others
    between = [part for part in map(str.strip, middle) if part]
    return " ".join([first.rstrip(), *between, last.lstrip()])


def _is_blank(sign: str) -> bool:
    return sign in _JOINERS or category(sign) == "Zs"


_READABLE = 200  # levels; what is nested deeper, no reader of JSON takes, and it is refused where it would be kept


def _in_json(value: Any) -> Any:
    return _named(value, _READABLE)


def _named(value: Any, levels: int) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            return replace_surrogates(value)
        case dict() if levels:
            return {replace_surrogates(name): _named(inner, levels - 1) for name, inner in value.items()}
        case list() | tuple() if levels:
            return [_named(inner, levels - 1) for inner in value]
        case _:
            return value


# Text from outside, which may have half a surrogate pair in it.
ForeignText = Annotated[str, BeforeValidator(replace_surrogates)]

# NaN and the infinities are no numbers of JSON, and would be null at the next process: they become their names.
JsonResult = Annotated[Any, AfterValidator(_in_json)]


class Undecodable(Value):
    """Stands for a value from outside that could not be read at all."""

    reason: str
