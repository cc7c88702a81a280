"""The base classes: values in history are read tolerantly, values from outside strictly."""

import math
import re
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Self
from unicodedata import category

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

_set = object.__setattr__  # frozen models refuse their own


class Value(BaseModel):
    """A frozen value that makes changed copies of itself."""

    # A client uses few of the contracts, and building all of them takes half of the time of loading it.
    model_config = ConfigDict(frozen=True, defer_build=True)

    def evolve(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields, which are not validated.

        The type checker knows the fields of each class (`tests/typed_evolve.py`). A copy of `__dict__` takes about
        half of the time of `model_copy`.
        """
        copy = object.__new__(type(self))
        _set(copy, "__dict__", {**self.__dict__, **changes})
        _set(copy, "__pydantic_fields_set__", self.__pydantic_fields_set__ | changes.keys())
        _set(copy, "__pydantic_extra__", None)
        _set(copy, "__pydantic_private__", None)
        return copy


def build_models() -> None:
    """Build the validators of all contracts that are loaded, which otherwise happens at their first use.

    A worker does it before its tasks: a workflow's thread has two seconds for all that a task does. A gateway does it
    before its routes: FastAPI hides pydantic's warnings about them only while it makes them.
    """
    remaining = list(Value.__subclasses__())
    while remaining:
        kind = remaining.pop()
        kind.model_rebuild()
        kind.model_config["defer_build"] = False
        remaining += kind.__subclasses__()


class FrozenModel(Value):
    """A frozen value. Unknown fields are ignored, so that old workers can read newer histories."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StrictModel(Value):
    """A frozen value from a file, a person or another program. Unknown fields are refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def omit_default(default: Any) -> Any:
    """Return a field that is omitted from JSON at its default: a step has two dozen of them, a mailbox thousands."""
    return Field(default=default, exclude_if=lambda value: value == default)


class NoResult(Enum):
    """The type of `NO_RESULT`, which is false."""

    no_result = "no result"

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.value


NO_RESULT = NoResult.no_result  # of a run without a typed result; None is a result, JSON null


def omit_no_result() -> Any:
    """Return a field for the typed result of a run. JSON has it only if there is one, which may be null."""
    return Field(default_factory=lambda: NO_RESULT, exclude_if=lambda value: value is NO_RESULT)


class SparseModel(FrozenModel):
    """A value that each step of a run adds to history, without the fields that are at their default.

    Never change a default of these classes: histories do not contain it.
    """


class CamelModel(FrozenModel):
    """A value with camelCase names in JSON: `workflow_id` is written as `workflowId`, and both are read."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )


class StrictCamelModel(CamelModel):
    """A value from outside with camelCase names in JSON. Unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


_BREAKS = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]+")
_JOINERS = "\u200c\u200d"

MAX_NESTING = 50  # levels of a value from outside: payloads nested 200 deep cannot be read, and other values wrap it
MAX_READABLE = 200  # levels; JSON readers fail beyond them, so deeper values are refused when they are stored
MAX_SCHEMA_BYTES = 64 * 1024
NESTING_MARGIN = 16  # levels; more than wrap a result or arguments anywhere in a run's state


def nesting_depth(value: Any) -> int:
    """Return the nesting depth of lists and objects."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(nesting_depth, value.values() if isinstance(value, dict) else value), default=0)


def is_utf8(text: str) -> bool:
    """Return whether the text can be encoded: text from a shell or a disk may contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(value: Any) -> Any:
    """Return the value with U+FFFD for each lone surrogate: JSON can escape one, but UTF-8 cannot encode it.

    Two adjacent halves, as from two events of a stream, are joined into their character.
    """
    match value:
        case str() if not is_utf8(value):
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            return {replace_surrogates(name): replace_surrogates(inner) for name, inner in value.items()}
        case list():
            return [replace_surrogates(inner) for inner in value]
        case _:
            return value


# An escaped lone surrogate. The group matches other escapes and whole pairs, which are kept.
_LONE_ESCAPE = re.compile(
    r"(\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def replace_lone_escapes(written: str) -> str:
    """Return JSON text with U+FFFD for each escaped lone surrogate."""
    return _LONE_ESCAPE.sub(lambda escape: escape[1] or r"\ufffd", written)


def escape_unprintable(text: str) -> str:
    """Return foreign text as one line, with unprintable characters escaped.

    Spaces and joiners of every script are kept, so that a name can be copied.
    """
    return "".join(
        char if char.isprintable() or char in _JOINERS or category(char) == "Zs" else repr(char)[1:-1]
        for char in _join_lines(text)
    )


def _join_lines(text: str) -> str:
    """Replace line breaks and the blanks around them by one blank. One regex for both has quadratic run time."""
    first, *others = _BREAKS.split(text)
    if not others:
        return text
    *middle, last = others
    between = [part for part in map(str.strip, middle) if part]
    return " ".join([first.rstrip(), *between, last.lstrip()])


def _replace_nonfinite(value: Any, levels: int = MAX_READABLE) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            return replace_surrogates(value)
        case dict() if levels:
            return {replace_surrogates(name): _replace_nonfinite(inner, levels - 1) for name, inner in value.items()}
        case list() | tuple() if levels:
            return [_replace_nonfinite(inner, levels - 1) for inner in value]
        case _:
            return value


# Text from outside that may contain lone surrogates.
ForeignText = Annotated[str, BeforeValidator(replace_surrogates)]

# JSON has no NaN or infinities, which would be written as null: they become their names.
JsonResult = Annotated[Any, AfterValidator(_replace_nonfinite)]


def check_schema_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema. Raises ValueError if it is nested too deeply or too large."""
    if nesting_depth(schema) > MAX_NESTING:
        raise ValueError(f"nested more than {MAX_NESTING} deep")
    if (size := len(to_json(schema))) > MAX_SCHEMA_BYTES:
        raise ValueError(f"{size:,} bytes; the maximum is {MAX_SCHEMA_BYTES:,}")
    return schema


# The JSON Schema that a start or a subtask gives for the result of its run.
OutputSchema = Annotated[dict[str, Any], AfterValidator(check_schema_bounds)]


class Undecodable(FrozenModel):
    """A placeholder for a value from outside that could not be read."""

    reason: str


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")

MAX_DURATION = timedelta(days=366)
HEARTBEAT_TIMEOUT = timedelta(seconds=15)  # the default of `[worker] heartbeat`
EXPECTED_DURATION = "expected a duration above zero and up to 366 days"


def _parse_duration(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError('expected a duration such as "30s"')  # noqa: TRY004 - pydantic reports ValueErrors
    if isinstance(value, str) and (written := _WRITTEN.fullmatch(value)):
        value = float(written[1]) * _UNITS[written[2]]
    if isinstance(value, int | float):
        if not 0 < value <= MAX_DURATION.total_seconds():
            raise ValueError(EXPECTED_DURATION)
        return timedelta(seconds=value)
    if isinstance(value, str) and not value.startswith("P"):
        raise ValueError('expected a duration such as "500ms", "30s", "15m", "2h" or "7d"')
    return value


def _check_range(value: timedelta) -> timedelta:
    """Return the value if it is in range: "PT0S" and "0.0001ms" are zero too. Raises ValueError."""
    if not timedelta() < value <= MAX_DURATION:
        raise ValueError(EXPECTED_DURATION)
    return value


Duration = Annotated[timedelta, BeforeValidator(_parse_duration), AfterValidator(_check_range)]
