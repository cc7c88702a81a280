"""What is wrong with the arguments of a call, by the schema of its tool.

The schema may be a stranger's, and the arguments are a model's: a pattern may take years on the right text, and `re`
lets nothing else run meanwhile. So patterns are matched by `regex`, which gives up in time.
"""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from time import process_time
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable

WITHIN = 1.0  # seconds of CPU, as `regex` counts them, for all patterns of a call

_until: ContextVar[float] = ContextVar("_until")


class NotApplicable(Exception):
    """The schema itself cannot be applied. The message is a line."""


class Arguments:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = _Bounded(schema)

    def fault(self, arguments: dict[str, Any]) -> str | None:
        """The worst of it, in a line: `where: what`. Raises NotApplicable."""
        _until.set(process_time() + WITHIN)
        try:
            wrong = best_match(self._validator.iter_errors(arguments))
        except (RecursionError, Unresolvable, regex.error, TimeoutError) as error:
            # It refers to itself or to nothing, or has a pattern that is none, or that comes to no end.
            raise NotApplicable(str(error).partition("\n")[0][:200] or type(error).__name__) from None
        if wrong is None:
            return None
        return f"{'/'.join(str(part) for part in wrong.absolute_path) or 'arguments'}: {wrong.message[:500]}"


def _has(pattern: str, text: str) -> bool:
    """Raises regex.error, TimeoutError."""
    left = max(_until.get() - process_time(), 0.001)
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


_Bounded: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"pattern": _pattern, "patternProperties": _named_alike, "additionalProperties": _others},
)
