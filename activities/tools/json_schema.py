"""Parsing of a call's arguments as a model wrote them, and validation against the tool's schema in bounded time.

Schema and arguments are untrusted. Nothing outside of a schema is read, whatever it refers to. A pattern can take years
on a crafted text, and so can definitions that refer to each other twice: patterns are matched by `regex`, which has a
timeout, and each step into a schema checks the clock. In the event loop a check has a moment, then goes on in a thread.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, lru_cache
from itertools import islice
from math import prod
from time import thread_time
from typing import Any, Literal, TypeVar

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from pydantic_core import SchemaValidator as CoreValidator
from pydantic_core import ValidationError as CoreError
from pydantic_core import core_schema, from_json
from referencing import Registry
from referencing.exceptions import Unresolvable

from perdure.activities.tools.outcome import is_small
from perdure.contracts.models import (
    MAX_NESTING,
    NESTING_MARGIN,
    nesting_depth,
    replace_lone_escapes,
    replace_surrogates,
)
from perdure.contracts.strict_input import parse_strict_json
from perdure.decisions.tools import describe_foreign_reference, find_foreign_reference

T = TypeVar("T")
_TYPE_KEYWORDS = ("type", "anyOf", "oneOf")  # the keywords that restrict the type of a value
MAX_LISTED_ERRORS = 10
IN_LOOP_BYTES = 64 * 1024  # of a value that is checked in the event loop
IN_LOOP_SECONDS = 0.02  # of CPU time in the event loop; a check that needs more begins again in a thread
MAX_CPU_SECONDS = 1.0  # seconds of CPU time for the arguments of a call; `regex` counts the time of the whole process
MAX_SCHEMA_SECONDS = 5.0  # seconds of CPU time for a schema; 64 KiB of small subschemas take them
MAX_PATTERN_SIZE = 10_000  # elements of a compiled pattern, of up to 3 KB: `regex` holds `(a{9}){9}` as 81
MAX_KEPT_PATTERNS = 64

_COUNT = regex.compile(r"\{\s*0*(\d*)")
_EMAIL = regex.compile(r"[^\s@\"(),:;<>\[\\\]]{1,64}@(?:[\w-]{1,63}\.)+[\w-]{2,63}")

_NO_DOCUMENTS: Registry[Any] = Registry()  # retrieves nothing; the library's default opens URLs and files
_TOO_DEEP = "it is nested too deeply, or a reference has no end"

_until: ContextVar[float] = ContextVar("_until")


class SchemaNotApplicableError(Exception):
    """The schema itself cannot be applied. The message is one line."""


class NeedsThreadError(Exception):
    """The check needs more CPU time than the event loop can wait for."""


async def check_in_loop(check: Callable[[float | None], T], *values: Any) -> T:
    """Return the result of a check, which takes its maximum of CPU time in seconds. Raises what it raises.

    The event loop waits for it for a moment only: a check that needs more begins again in a thread, with its own
    maximum (None). If the `values` are large, it begins there.
    """
    if all(is_small(value, IN_LOOP_BYTES) for value in values):
        try:
            return check(IN_LOOP_SECONDS)
        except NeedsThreadError:
            pass
    return await asyncio.to_thread(check, None)


def find_schema_error(schema: dict[str, Any]) -> str | None:
    """Return the reason, in one line, why a schema is not a valid JSON Schema, or leads out of itself, if it does.

    This may take seconds: call it in a thread.
    """
    try:
        with _bounded_check(None, MAX_SCHEMA_SECONDS):
            error = next(_META_VALIDATOR.iter_errors(schema), None)
        foreign = None if error else find_foreign_reference(schema)
    except RecursionError:
        return f"not a JSON Schema: {_TOO_DEEP}"
    except SchemaNotApplicableError as reason:
        return f"not a JSON Schema: {reason}"
    if error is not None:
        return f"not a JSON Schema: {error.message[:200]}"
    return describe_foreign_reference(foreign) if foreign else None


def read_arguments(written: str) -> dict[str, Any]:
    """Parse a tool use's arguments. Raises ValueError if they are not a JSON object that history can hold.

    NaN and very deep nesting, which some parsers accept, would fail on the way to the run; a repeated name is
    ambiguous. A lone surrogate becomes U+FFFD. An object inside a JSON string is accepted: some models write that.
    Null and blanks are no arguments.
    """
    value = _read_bounded(written)
    if isinstance(value, str):
        value = _read_bounded(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004 - callers handle all of these alike
    return value


def _read_bounded(written: str) -> Any:
    if not written.strip():
        return None
    written = replace_lone_escapes(replace_surrogates(written))
    from_json(f"{'[' * NESTING_MARGIN}{written}{']' * NESTING_MARGIN}")
    return parse_strict_json(written)


class SchemaValidator:
    """A schema to check values against.

    `seconds` of CPU time bound a check, which raises NeedsThreadError if it needs more; without them, its maximum does.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    @cached_property
    def _validator(self) -> Any:
        """The validator, which arguments without written values do not need."""
        return _BoundedValidator(self._schema, registry=_NO_DOCUMENTS)

    def find_error(self, arguments: dict[str, Any], seconds: float | None = None) -> str | None:
        """Return the worst error, if any, as one line: `path: message`. Raises SchemaNotApplicableError."""
        with _bounded_check(seconds):
            wrong = best_match(self._validator.iter_errors(arguments))
        return None if wrong is None else _format_error(wrong, "arguments")

    def find_errors(self, value: Any, seconds: float | None = None, limit: int = MAX_LISTED_ERRORS) -> list[str]:
        """Return the errors as lines `path: message`, at most `limit`. Raises SchemaNotApplicableError."""
        with _bounded_check(seconds):
            return [_format_error(error, "value") for error in islice(self._validator.iter_errors(value), limit)]

    def read_written_values(self, arguments: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Return the arguments with objects and lists parsed where a text holds their JSON.

        This applies only if the schema accepts an object or a list but no text. Unreadable text stays unchanged.
        Raises SchemaNotApplicableError.
        """
        if not _holds_written_value(arguments):
            return arguments
        changed = copy.deepcopy(arguments)
        with _bounded_check(seconds):
            for wrong in self._validator.iter_errors(arguments):
                value = self._read_expected(wrong)
                if value is not None:
                    _set_at_path(changed, list(wrong.absolute_path), value)
        return changed if nesting_depth(changed) <= MAX_NESTING else arguments

    def _read_expected(self, wrong: ValidationError) -> dict[str, Any] | list[Any] | None:
        """Return the object or list that an invalid text holds, if the schema accepts it there."""
        if wrong.validator not in _TYPE_KEYWORDS or not wrong.absolute_path or not isinstance(wrong.instance, str):
            return None
        try:
            value = parse_strict_json(wrong.instance)
        except ValueError:
            return None
        expected = self._validator.evolve(schema={wrong.validator: wrong.validator_value})
        return value if isinstance(value, dict | list) and expected.is_valid(value) else None


@contextmanager
def _bounded_check(seconds: float | None, maximum: float | None = None) -> Iterator[None]:
    """Bound the CPU time of a check, to its maximum without `seconds`.

    Raises SchemaNotApplicableError, and NeedsThreadError if `seconds` are not enough.
    """
    most = MAX_CPU_SECONDS if maximum is None else maximum
    _until.set(thread_time() + (most if seconds is None else seconds))
    try:
        yield
    except TimeoutError as slow:
        if seconds is not None:
            raise NeedsThreadError from None
        raise SchemaNotApplicableError(str(slow)) from None
    except RecursionError:
        raise SchemaNotApplicableError(_TOO_DEEP) from None
    except Unresolvable as error:  # its message would quote the schema
        raise SchemaNotApplicableError(f"its reference {error.ref[:200]!a} leads to nothing in it") from None
    except regex.error as error:
        raise SchemaNotApplicableError(str(error).partition("\n")[0][:200]) from None


def _format_error(error: ValidationError, whole: str) -> str:
    return f"{'/'.join(str(part) for part in error.absolute_path) or whole}: {error.message[:500]}"


def _holds_written_value(value: Any) -> bool:
    match value:
        case str():
            return value.lstrip()[:1] in ("{", "[")
        case dict() | list():
            inner = value.values() if isinstance(value, dict) else value
            return any(map(_holds_written_value, inner))
        case _:
            return False


def _set_at_path(arguments: dict[str, Any], path: list[Any], value: Any) -> None:
    at: Any = arguments
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value


def _check_clock() -> None:
    if thread_time() > _until.get():
        raise TimeoutError("it takes too long on what was given")


def _matches_pattern(pattern: str, text: str) -> bool:
    """Return True if the pattern matches in the text. Raises regex.error and TimeoutError."""
    compiled = _compile_pattern(pattern)
    remaining = max(_until.get() - thread_time(), 0.001)
    try:
        return compiled.search(text, timeout=remaining, concurrent=True) is not None
    except TimeoutError:
        raise TimeoutError(f"the pattern {pattern[:80]!r} takes too long on what was given") from None


@lru_cache(maxsize=MAX_KEPT_PATTERNS)
def _compile_pattern(pattern: str) -> "regex.Pattern[str]":
    """Compile a pattern of bounded size. Raises regex.error, whose message names the pattern."""
    if len(pattern) > MAX_PATTERN_SIZE or _estimate_size(pattern) > MAX_PATTERN_SIZE:
        raise regex.error(f"the pattern {pattern[:80]!r} is too large, or its counts multiply to too much")
    try:
        return regex.compile(pattern, cache_pattern=False)
    except regex.error as error:
        raise regex.error(f"the pattern {pattern[:80]!r} cannot be compiled: {str(error)[:200]}") from None


def _estimate_size(pattern: str) -> int:
    """Return an upper bound for the elements that `regex` compiles a pattern to.

    It writes out the minimum of each count. Those after a group may multiply each other: here, all of them do, wherever
    they stand. A space before a count may follow a group, if the pattern is a verbose one.
    """
    counts = [(found[1], pattern[found.start() - 1 : found.start()]) for found in _COUNT.finditer(pattern)]
    groups, single = [1], [len(pattern)]
    for digits, before in counts:
        (groups if before == ")" or before.isspace() else single).append(int(digits[:7] or "1"))
    return sum(single) * prod(groups)


def _check_pattern(validator: Any, pattern: str, given: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(given, "string") and not _matches_pattern(pattern, given):
        yield ValidationError(f"{given[:200]!r} does not match {pattern!r}")


def _check_format(validator: Any, name: Any, given: Any, _: Any) -> Iterator[ValidationError]:
    """Check the formats that pydantic writes for its types, as pydantic reads them. Others are remarks."""
    if not validator.is_type(given, "string"):
        return
    if name == "regex":
        try:
            _compile_pattern(given)
        except regex.error as error:
            yield ValidationError(str(error))
    elif isinstance(name, str) and name in _FORMATS and not _FORMATS[name](given):
        yield ValidationError(f"{given[:200]!r} is not a {name!r}")


def _can_read(schema: core_schema.CoreSchema) -> Callable[[str], bool]:
    validator = CoreValidator(schema)

    def can_read(text: Any) -> bool:
        try:
            validator.validate_strings(text, strict=True)
        except CoreError:
            return False
        return True

    return can_read


def _can_read_date_time(text: str) -> bool:
    return text[4:5] == "-" and _DATE_TIME(text)  # pydantic reads a number, too


_DATE_TIME = _can_read(core_schema.datetime_schema())
_UUID_VERSIONS: tuple[Literal[1, 3, 4, 5, 6, 7, 8], ...] = (1, 3, 4, 5, 6, 7, 8)
_FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _can_read(core_schema.date_schema()),
    "date-time": _can_read_date_time,
    "time": _can_read(core_schema.time_schema()),
    "duration": _can_read(core_schema.timedelta_schema()),
    "uuid": _can_read(core_schema.uuid_schema()),
    **{f"uuid{version}": _can_read(core_schema.uuid_schema(version=version)) for version in _UUID_VERSIONS},
    "uri": _can_read(core_schema.url_schema()),
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
}


def _check_pattern_properties(
    validator: Any, patterns: Mapping[str, Any], given: Any, _: Any
) -> Iterator[ValidationError]:
    if validator.is_type(given, "object"):
        for pattern, schema in patterns.items():
            for name, value in given.items():
                if _matches_pattern(pattern, name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _check_additional_properties(
    validator: Any, others: Any, given: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not validator.is_type(given, "object"):
        return
    patterns = schema.get("patternProperties", {})
    known = schema.get("properties", {})
    extra = [
        name for name in given if name not in known and not any(_matches_pattern(pattern, name) for pattern in patterns)
    ]
    if validator.is_type(others, "object"):
        for name in extra:
            yield from validator.descend(given[name], others, path=name)
    elif not others and extra:
        verb = "was" if len(extra) == 1 else "were"
        names = ", ".join(map(repr, extra))
        yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


def _check_unique_items(validator: Any, is_required: Any, given: Any, _: Any) -> Iterator[ValidationError]:
    """Check uniqueness in one pass. The library compares all pairs if the items cannot be sorted."""
    if not is_required or not validator.is_type(given, "array"):
        return
    seen = set()
    for item in given:
        _check_clock()
        seen.add(_to_comparable(item))
    if len(seen) < len(given):
        yield ValidationError(f"{given!r} has non-unique elements")


def _to_comparable(value: Any) -> Any:
    """Return a value that compares as JSON Schema requires: 1 equals 1.0, but not true."""
    if isinstance(value, dict):
        return dict, frozenset((name, _to_comparable(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return list, tuple(map(_to_comparable, value))
    return (bool, value) if isinstance(value, bool) else value


def _no_unevaluated(kind: str, noun: str) -> Callable[[Any, Any, Any, Any], Iterator[ValidationError]]:
    """Return the keyword `unevaluatedProperties` or `unevaluatedItems`. The library's uses `re`, in quadratic time."""

    def check(validator: Any, _allowed: Any, given: Any, _: Any) -> Iterator[ValidationError]:
        if not validator.is_type(given, kind):
            return
        known = set(_evaluated_keys(validator, given))
        if extra := [entry for entry in _list_entries(given) if entry[0] not in known]:
            shown = [key if isinstance(given, dict) else value for key, value in extra]
            yield ValidationError(f"Unevaluated {noun} are not allowed ({', '.join(map(repr, shown))})")

    return check


def _list_entries(given: Any) -> Iterable[tuple[Any, Any]]:
    return given.items() if isinstance(given, dict) else enumerate(given)


def _evaluated_keys(validator: Any, given: Any) -> Iterator[Any]:
    """Yield the names of an object, or the indexes of a list, that some keyword of the schema applies to."""
    schema = validator.schema
    if not isinstance(schema, dict):
        return
    if isinstance(given, dict):
        yield from schema.get("properties", {}).keys() & given.keys()
        for pattern in schema.get("patternProperties", {}):
            yield from (name for name in given if _matches_pattern(pattern, name))
        keywords = ("additionalProperties", "unevaluatedProperties")
    else:
        yield from range(len(given) if "items" in schema else len(schema.get("prefixItems", ())))
        keywords = ("contains", "unevaluatedItems")
    for keyword in keywords:
        if keyword in schema:
            inner = validator.evolve(schema=schema[keyword])
            yield from (key for key, value in _list_entries(given) if inner.is_valid(value))
    for part in _matching_subschemas(validator, given):
        yield from _evaluated_keys(part, given)


def _matching_subschemas(validator: Any, given: Any) -> Iterator[Any]:
    """Yield the validators of the subschemas that apply to the same value and accept it."""
    schema = validator.schema
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            target = validator._resolver.lookup(schema[keyword])  # noqa: SLF001 - as the library's keywords do
            yield validator.evolve(schema=target.contents, _resolver=target.resolver)
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
    if isinstance(given, dict):
        parts += [part for name, part in schema.get("dependentSchemas", {}).items() if name in given]
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(given)
        parts += [schema[branch] for branch in (("if", "then") if holds else ("else",)) if branch in schema]
    yield from filter(lambda part: part.is_valid(given), (validator.evolve(schema=part) for part in parts))


_BoundedValidator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "format": _check_format,
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "additionalProperties": _check_additional_properties,
        "uniqueItems": _check_unique_items,
        "unevaluatedProperties": _no_unevaluated("object", "properties"),
        "unevaluatedItems": _no_unevaluated("array", "items"),
    },
)


def _evolve_bounded(validator: Any, *, schema: Any, _resolver: Any = None) -> Any:
    """Return the validator of a subschema; the library calls this for each. It ignores the subschema's `$schema`."""
    _check_clock()
    return _BoundedValidator(schema, _resolver=_resolver or validator._resolver)  # noqa: SLF001 - as the library's own does


def _with_clock(errors_of: Callable[[Any, Any], Iterator[ValidationError]]) -> Callable[[Any, Any], Any]:
    """Wrap `iter_errors` with a check of the clock: one validator may check each item of a long list."""

    def iter_errors(validator: Any, given: Any) -> Iterator[ValidationError]:
        _check_clock()
        return errors_of(validator, given)

    return iter_errors


_BoundedValidator.evolve, _BoundedValidator.iter_errors = _evolve_bounded, _with_clock(_BoundedValidator.iter_errors)

_META_VALIDATOR = _BoundedValidator(Draft202012Validator.META_SCHEMA, registry=_NO_DOCUMENTS)
