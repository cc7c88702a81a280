"""Parsing of a call's arguments as a model wrote them, and validation against the tool's schema in bounded time.

Schema and arguments are untrusted: a pattern can take years on a crafted text, and so can definitions that refer to
each other twice, while the event loop is blocked. So patterns are matched by `regex`, which has a timeout, and each
step into a schema checks the clock.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from time import thread_time
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend
from pydantic_core import from_json
from referencing.exceptions import Unresolvable

from contracts.models import MAX_NESTING, NESTING_MARGIN, nesting_depth, replace_lone_escapes, replace_surrogates
from contracts.strict_input import parse_strict_json

_TYPE_KEYWORDS = ("type", "anyOf", "oneOf")  # the keywords that restrict the type of a value
MAX_LISTED_ERRORS = 10
MAX_CPU_SECONDS = 1.0  # seconds of CPU time for the arguments of a call; `regex` counts the time of the whole process

_until: ContextVar[float] = ContextVar("_until")


class SchemaNotApplicableError(Exception):
    """The schema itself cannot be applied. The message is one line."""


def find_schema_error(schema: dict[str, Any]) -> str | None:
    """Return the reason why a schema is not a valid JSON Schema, if it is not."""
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError) as error:
        return error.message[:200] if isinstance(error, SchemaError) else "it is nested too deeply"
    return None


def read_arguments(written: str) -> dict[str, Any]:
    """Parse a tool use's arguments. Raises ValueError if they are not a JSON object that history can hold.

    NaN and very deep nesting, which some parsers accept, would fail on the way to the run; a repeated name is
    ambiguous. A lone surrogate becomes U+FFFD. An object inside a JSON string is accepted: some models write that.
    """
    value = _read_bounded(written)
    if isinstance(value, str):
        value = _read_bounded(value)
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004 - callers handle all of these alike
    return value


def _read_bounded(written: str) -> Any:
    written = replace_lone_escapes(replace_surrogates(written))
    from_json(f"{'[' * NESTING_MARGIN}{written}{']' * NESTING_MARGIN}")
    return parse_strict_json(written)


class SchemaValidator:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = _BoundedValidator(schema)

    def find_error(self, arguments: dict[str, Any]) -> str | None:
        """Return the worst error, if any, as one line: `path: message`. Raises SchemaNotApplicableError."""
        with _bounded_check():
            wrong = best_match(self._validator.iter_errors(arguments))
        return None if wrong is None else _format_error(wrong, "arguments")

    def find_errors(self, value: Any, limit: int = MAX_LISTED_ERRORS) -> list[str]:
        """Return the errors as lines `path: message`, at most `limit`. Raises SchemaNotApplicableError."""
        with _bounded_check():
            return [_format_error(error, "value") for error in islice(self._validator.iter_errors(value), limit)]

    def read_written_values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with objects and lists parsed where a text holds their JSON.

        This applies only if the schema accepts an object or a list but no text. Unreadable text stays unchanged.
        """
        if not _holds_written_value(arguments):
            return arguments
        _until.set(thread_time() + MAX_CPU_SECONDS)
        changed = copy.deepcopy(arguments)
        try:
            for wrong in self._validator.iter_errors(arguments):
                value = self._read_expected(wrong)
                if value is not None:
                    _set_at_path(changed, list(wrong.absolute_path), value)
        except (RecursionError, Unresolvable, regex.error, TimeoutError):
            return arguments  # `fault` reports it
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
def _bounded_check() -> Iterator[None]:
    """Bound the time of a check. Raises SchemaNotApplicableError."""
    _until.set(thread_time() + MAX_CPU_SECONDS)
    try:
        yield
    except (RecursionError, Unresolvable, regex.error, TimeoutError) as error:
        # A reference without end or target, an invalid pattern, or no time left.
        raise SchemaNotApplicableError(str(error).partition("\n")[0][:200] or type(error).__name__) from None


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
    remaining = max(_until.get() - thread_time(), 0.001)
    try:
        return regex.search(pattern, text, timeout=remaining, concurrent=True) is not None
    except TimeoutError:
        raise TimeoutError(f"the pattern {pattern[:80]!r} takes too long on what was given") from None


def _check_pattern(validator: Any, pattern: str, given: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(given, "string") and not _matches_pattern(pattern, given):
        yield ValidationError(f"{given[:200]!r} does not match {pattern!r}")


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
