"""The arguments of a call, as a model wrote them; and what is wrong with them, by the schema of its tool.

The schema may be a stranger's, and the arguments are a model's: a pattern may take years on the right text, and so may
definitions that name each other twice; nothing else runs meanwhile. So patterns are matched by `regex`, which gives up
in time, and each step into a schema looks at the clock.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from time import thread_time
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend
from pydantic_core import from_json
from referencing.exceptions import Unresolvable

from contracts.models import AROUND, MOST_DEPTH, depth, replace_lone_escapes, replace_surrogates
from contracts.strict_json import read_json

_KINDS = ("type", "anyOf", "oneOf")  # the keywords that say which kinds of value are taken
WITHIN = 1.0  # seconds of CPU for the arguments of a call; `regex` counts those of the whole process

_until: ContextVar[float] = ContextVar("_until")


class NotApplicable(Exception):
    """The schema itself cannot be applied. The message is a line."""


def schema_fault(schema: dict[str, Any]) -> str | None:
    """Why it is no JSON Schema; None where it is one."""
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError) as error:
        return error.message[:200] if isinstance(error, SchemaError) else "it is nested too deeply"
    return None


def read_arguments(written: str) -> dict[str, Any]:
    """A tool use's arguments. Raises ValueError for what is no JSON object, or none that history can hold.

    NaN and very deep nesting are valid for some parsers, and would fail on their way to the run. Of a
    name that is there twice, no two readers take the same. Half a surrogate pair becomes U+FFFD. Some models write
    the object into a text: it is taken, since no tool takes a text.
    """
    value = _read_bounded(written)
    if isinstance(value, str):
        value = _read_bounded(value)
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004 - callers tell all of these alike
    return value


def _read_bounded(written: str) -> Any:
    written = replace_lone_escapes(replace_surrogates(written))
    from_json(f"{'[' * AROUND}{written}{']' * AROUND}")
    return read_json(written)


class Arguments:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = _Bounded(schema)

    def fault(self, arguments: dict[str, Any]) -> str | None:
        """The worst of it, in a line: `where: what`. Raises NotApplicable."""
        _until.set(thread_time() + WITHIN)
        try:
            wrong = best_match(self._validator.iter_errors(arguments))
        except (RecursionError, Unresolvable, regex.error, TimeoutError) as error:
            # It refers to itself or to nothing, or has a pattern that is none, or that comes to no end.
            raise NotApplicable(str(error).partition("\n")[0][:200] or type(error).__name__) from None
        if wrong is None:
            return None
        return f"{'/'.join(str(part) for part in wrong.absolute_path) or 'arguments'}: {wrong.message[:500]}"

    def read_written_values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with each object or list in place of a text that holds its JSON.

        Only where the schema wants an object or a list, and takes no text. What cannot be read stays as it is.
        """
        if not _holds_written_value(arguments):
            return arguments
        _until.set(thread_time() + WITHIN)
        changed = copy.deepcopy(arguments)
        try:
            for wrong in self._validator.iter_errors(arguments):
                value = self._read_wanted(wrong)
                if value is not None:
                    _put(changed, list(wrong.absolute_path), value)
        except (RecursionError, Unresolvable, regex.error, TimeoutError):
            return arguments  # `fault` says so
        return changed if depth(changed) <= MOST_DEPTH else arguments

    def _read_wanted(self, wrong: ValidationError) -> dict[str, Any] | list[Any] | None:
        """Return the object or list that a refused text holds; None where the schema does not want it there."""
        if wrong.validator not in _KINDS or not wrong.absolute_path or not isinstance(wrong.instance, str):
            return None
        try:
            value = read_json(wrong.instance)
        except ValueError:
            return None
        wanted = self._validator.evolve(schema={wrong.validator: wrong.validator_value})
        return value if isinstance(value, dict | list) and wanted.is_valid(value) else None


def _holds_written_value(value: Any) -> bool:
    match value:
        case str():
            return value.lstrip()[:1] in ("{", "[")
        case dict() | list():
            inner = value.values() if isinstance(value, dict) else value
            return any(map(_holds_written_value, inner))
        case _:
            return False


def _put(arguments: dict[str, Any], path: list[Any], value: Any) -> None:
    at: Any = arguments
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value


def _look_at_the_clock() -> None:
    if thread_time() > _until.get():
        raise TimeoutError("it takes too long on what was given")


def _has(pattern: str, text: str) -> bool:
    """Raises regex.error, TimeoutError."""
    left = max(_until.get() - thread_time(), 0.001)
    try:
        return regex.search(pattern, text, timeout=left, concurrent=True) is not None
    except TimeoutError:
        raise TimeoutError(f"the pattern {pattern[:80]!r} takes too long on what was given") from None


def _pattern(validator: Any, pattern: str, given: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(given, "string") and not _has(pattern, given):
        yield ValidationError(f"{given[:200]!r} does not match {pattern!r}")


def _named_alike(validator: Any, patterns: Mapping[str, Any], given: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(given, "object"):
        for pattern, schema in patterns.items():
            for name, value in given.items():
                if _has(pattern, name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _others(validator: Any, others: Any, given: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
    if not validator.is_type(given, "object"):
        return
    patterns = schema.get("patternProperties", {})
    known = schema.get("properties", {})
    extra = [name for name in given if name not in known and not any(_has(pattern, name) for pattern in patterns)]
    if validator.is_type(others, "object"):
        for name in extra:
            yield from validator.descend(given[name], others, path=name)
    elif not others and extra:
        were = "was" if len(extra) == 1 else "were"
        named = ", ".join(map(repr, extra))
        yield ValidationError(f"Additional properties are not allowed ({named} {were} unexpected)")


def _unique(validator: Any, wanted: Any, given: Any, _: Any) -> Iterator[ValidationError]:
    """In one pass: the library compares each with each where they cannot be sorted."""
    if not wanted or not validator.is_type(given, "array"):
        return
    seen = set()
    for item in given:
        _look_at_the_clock()
        seen.add(_comparable(item))
    if len(seen) < len(given):
        yield ValidationError(f"{given!r} has non-unique elements")


def _comparable(value: Any) -> Any:
    """Equal to another where JSON Schema has them equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return dict, frozenset((name, _comparable(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return list, tuple(map(_comparable, value))
    return (bool, value) if isinstance(value, bool) else value


def _unevaluated_names(validator: Any, others: Any, given: Any, _: Any) -> Iterator[ValidationError]:
    if not validator.is_type(given, "object"):
        return
    known = set(_names_looked_at(validator, given))
    inner = validator.evolve(schema=others)
    if wrong := [name for name in given if name not in known and not inner.is_valid(given[name])]:
        yield ValidationError(f"Unevaluated properties are not allowed ({', '.join(map(repr, wrong))})")


def _unevaluated_items(validator: Any, _others: Any, given: Any, _: Any) -> Iterator[ValidationError]:
    if not validator.is_type(given, "array"):
        return
    known = set(_items_looked_at(validator, given))
    if wrong := [item for at, item in enumerate(given) if at not in known]:
        yield ValidationError(f"Unevaluated items are not allowed ({', '.join(map(repr, wrong))})")


def _names_looked_at(validator: Any, given: dict[str, Any]) -> Iterator[str]:
    """The library's own goes by `re`, and what it finds is a list that it looks through for each name."""
    schema = validator.schema
    if not isinstance(schema, dict):
        return
    yield from schema.get("properties", {}).keys() & given.keys()
    for pattern in schema.get("patternProperties", {}):
        yield from (name for name in given if _has(pattern, name))
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema:
            inner = validator.evolve(schema=schema[keyword])
            yield from (name for name, value in given.items() if inner.is_valid(value))
    for part in _parts(validator, given):
        yield from _names_looked_at(part, given)


def _items_looked_at(validator: Any, given: list[Any]) -> Iterator[int]:
    schema = validator.schema
    if not isinstance(schema, dict):
        return
    yield from range(len(given) if "items" in schema else len(schema.get("prefixItems", ())))
    for keyword in ("contains", "unevaluatedItems"):
        if keyword in schema:
            inner = validator.evolve(schema=schema[keyword])
            yield from (at for at, item in enumerate(given) if inner.is_valid(item))
    for part in _parts(validator, given):
        yield from _items_looked_at(part, given)


def _parts(validator: Any, given: Any) -> Iterator[Any]:
    """The validators of what a schema says of the same value elsewhere, as far as it holds."""
    schema = validator.schema
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            found = validator._resolver.lookup(schema[keyword])  # noqa: SLF001 - the library's keywords do so
            yield validator.evolve(schema=found.contents, _resolver=found.resolver)
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
    if isinstance(given, dict):
        parts += [part for name, part in schema.get("dependentSchemas", {}).items() if name in given]
    if "if" in schema:
        is_so = validator.evolve(schema=schema["if"]).is_valid(given)
        parts += [schema[each] for each in (("if", "then") if is_so else ("else",)) if each in schema]
    yield from filter(lambda part: part.is_valid(given), (validator.evolve(schema=part) for part in parts))


_Bounded: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _named_alike,
        "additionalProperties": _others,
        "uniqueItems": _unique,
        "unevaluatedProperties": _unevaluated_names,
        "unevaluatedItems": _unevaluated_items,
    },
)


def _evolved(validator: Any, *, schema: Any, _resolver: Any = None) -> Any:
    """The validator of a part; the library goes into each by this. It is one of ours, whatever `$schema` it names."""
    _look_at_the_clock()
    return _Bounded(schema, _resolver=_resolver or validator._resolver)  # noqa: SLF001 - as its own does


def _looking(errors_of: Callable[[Any, Any], Iterator[ValidationError]]) -> Callable[[Any, Any], Any]:
    """One validator may be asked about each item of a long list."""

    def iter_errors(validator: Any, given: Any) -> Iterator[ValidationError]:
        _look_at_the_clock()
        return errors_of(validator, given)

    return iter_errors


_Bounded.evolve, _Bounded.iter_errors = _evolved, _looking(_Bounded.iter_errors)
