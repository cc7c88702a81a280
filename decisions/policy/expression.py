"""The expressions of rules, in CEL (Common Expression Language).

Nothing can stop a running evaluation, so expressions and facts are bounded before it. The library takes 0.2 s to load,
which only projects with a policy pay for.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from contracts.models import is_utf8

if TYPE_CHECKING:
    import cel

FACTS = frozenset({"args", "tool", "effect", "agent", "caller", "run", "history", "now"})
MAX_EXPRESSION = 1_000  # characters
MAX_MACROS = 2  # inside each other: 200 x 200 steps take 0.03 s
MAX_PARENTHESES = 60
MAX_ENTRIES = 200  # of a list or an object among the facts
MAX_FACT_BYTES = 256 * 1024  # of a call's arguments

_MACRO = re.compile(r"\.\s*(?:map|filter|exists|exists_one|all)\s*\((?:\s*(\w+)\s*,)?")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


class ExpressionError(ValueError):
    """An expression that cannot be used. The message is one line."""


@dataclass(frozen=True)
class Expression:
    """A compiled expression, and the names of the facts in it."""

    text: str
    names: frozenset[str]
    _program: "cel.Program"

    def holds(self, context: "cel.Context") -> bool | None:
        """Return its value, or None if it cannot be evaluated or is neither true nor false."""
        value = self.evaluate(context)
        return value if isinstance(value, bool) else None

    def evaluate(self, context: "cel.Context") -> Any:
        """Return its value, or None if it cannot be evaluated."""
        try:
            return self._program.execute(context)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - the library's panics are no Exception
            return None


def compile_expression(text: str, known: frozenset[str] = FACTS) -> Expression:
    """Compile an expression over the `known` facts. Raises ExpressionError."""
    import cel

    plain = _STRING.sub("''", text)
    if len(text) > MAX_EXPRESSION or plain.count("(") > MAX_PARENTHESES or _count_nested_macros(plain) > MAX_MACROS:
        limits = f"{MAX_EXPRESSION:,} characters, {MAX_PARENTHESES} parentheses, {MAX_MACROS} macros in each other"
        raise ExpressionError(f"too long or too deep; the limits are {limits}")
    try:
        program = cel.compile(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        raise ExpressionError(f"not CEL: {(str(error).splitlines() or [''])[0][:200]}") from None
    names = set(program.variables()) - {match[1] for match in _MACRO.finditer(plain)}
    if unknown := sorted(names - known):
        raise ExpressionError(f"there is no fact {unknown[0]!r}; the facts are: {', '.join(sorted(known))}")
    return Expression(text, frozenset(names), program)


def _count_nested_macros(plain: str) -> int:
    heads = {match.start() + match[0].index("(") for match in _MACRO.finditer(plain)}
    deepest, is_macro = 0, list[bool]()
    for at, char in enumerate(plain):
        if char == "(":
            is_macro.append(at in heads)
            deepest = max(deepest, sum(is_macro))
        elif char == ")" and is_macro:
            is_macro.pop()
    return deepest


def build_context(facts: Mapping[str, Any]) -> "cel.Context | None":
    """Return the context of an evaluation, or None if a fact has no exact value in CEL or is too large."""
    import cel

    if not is_exact(facts["args"]) or len(to_json(facts["args"])) > MAX_FACT_BYTES:
        return None
    context = cel.Context(dict(facts))
    context.add_function("total", _add_numbers)
    return context


def is_exact(value: Any) -> bool:
    """Return whether the value has an exact counterpart in CEL, whose integers have 64 bits, and no long lists."""
    match value:
        case int():
            return -(2**63) < value < 2**63
        case str():
            return is_utf8(value)
        case dict():
            return len(value) <= MAX_ENTRIES and all(map(is_exact, (*value, *value.values())))
        case list():
            return len(value) <= MAX_ENTRIES and all(map(is_exact, value))
        case _:
            return True


def _add_numbers(values: Sequence[Any]) -> Any:
    """Return the sum, or None if there is none. It must not raise: the library prints the text of errors."""
    is_numeric = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    total = sum(values) if is_numeric else None
    return total if is_exact(total) else None
