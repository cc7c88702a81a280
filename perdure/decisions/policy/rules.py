"""Parsing of `policy.toml`, the rule that decides about a call, and the stricter of two verdicts."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json

from perdure.contracts.models import is_utf8
from perdure.contracts.policy import ApprovalTerms, PolicyFile, PolicyVerdict, Rubric, Rule, Verdict
from perdure.contracts.strict_input import plain_reason
from perdure.decisions.ids import digest

if TYPE_CHECKING:
    import cel


FACTS = frozenset({"args", "tool", "effect", "agent", "caller", "run", "history", "now"})
MAX_EXPRESSION = 1_000  # characters
MAX_MACROS = 2  # inside each other
MAX_PARENTHESES = 60
MAX_ENTRIES = 200  # of a list or an object among the facts
MAX_FACT_BYTES = 256 * 1024  # of a call's arguments
MAX_SUMS = 4  # of a simple expression: each one of lists copies them
MAX_SMALL = 16 * 1024  # bytes of a fact from outside: simple expressions then take milliseconds

_CAUSES: dict[type[BaseException], str] = {
    TypeError: "its values are of other types",
    OverflowError: "a number is beyond 64 bits",
    ZeroDivisionError: "it divides by zero",
    IndexError: "a list is too short",
}
PENDING = "pending"  # the outcome of an earlier call of the same reply, for expressions that name it
_UNKNOWN = {"history": "the conversation has more calls than `history` holds"}
_FROM_OUTSIDE = frozenset({"args", "event", "user"})  # facts that a model or another program wrote
NOT_EXACT = "a number beyond 64 bits, a list of more than 200 entries, or invalid text"
_MACRO = re.compile(r"\.\s*(?:map|filter|exists|exists_one|all)\s*\((?:\s*(\w+)\s*,)?")
_SHORT_LOOP = re.compile(r"\brun\s*\.\s*has_read\s*" + _MACRO.pattern)
_PATTERN = re.compile(r"\bmatches\s*\(")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


class ExpressionError(ValueError):
    """An expression that cannot be used. The message is one line."""


class UnevaluableError(Exception):
    """An expression has no value for a call. The message is a clause that says why."""


@dataclass(frozen=True)
class Expression:
    """A compiled expression, and the names of the facts in it.

    One that `is_simple` takes milliseconds over small facts: it has no loop but over `run.has_read`, no pattern and
    no long sum, and does not read the history.
    """

    text: str
    names: frozenset[str]
    is_simple: bool
    _program: "cel.Program" = field(compare=False)

    def select_facts(self, facts: "CheckedFacts") -> dict[str, Any]:
        """Return the facts that it names. Raises UnevaluableError if one is not known or not usable."""
        for name in sorted(self.names):
            if name not in facts.values:
                raise UnevaluableError(_UNKNOWN.get(name, f"{name} is not known"))
            if name in facts.faults:
                raise UnevaluableError(f"{name} has {facts.faults[name]}")
        known = {name: facts.values[name] for name in self.names}
        if "history" in known and PENDING not in self.text:
            known["history"] = [*map(_without_pending, known["history"])]
        return known

    def execute(self, known: Mapping[str, Any]) -> Any:
        """Return its value for the facts that it names. Raises UnevaluableError. It may take any time and memory."""
        import cel

        try:
            context = cel.Context(dict(known))
            context.add_function("total", _add_numbers)
            return self._program.execute(context)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001 - the library's panics are no Exception
            raise UnevaluableError(_describe_error(error)) from None


@dataclass(frozen=True)
class CheckedFacts:
    """Facts, the faults of those that no expression may read, and whether all that came from outside are small."""

    values: Mapping[str, Any]
    faults: Mapping[str, str]
    is_small: bool


def check_facts(facts: Mapping[str, Any]) -> CheckedFacts:
    """Check the facts for the expressions of one call or event."""
    faults, size = dict[str, str](), 0
    for name in facts.keys() & _FROM_OUTSIDE:
        if not is_exact(facts[name]):
            faults[name] = NOT_EXACT
        elif (length := len(to_json(facts[name]))) > MAX_FACT_BYTES and name == "args":
            faults[name] = f"more than {MAX_FACT_BYTES // 1024} KiB"
        else:
            size = max(size, length)
    return CheckedFacts(facts, faults, size <= MAX_SMALL)


def find_value(expression: Expression, facts: CheckedFacts) -> Any:
    """Return the value of an expression, here and now. Raises UnevaluableError. It may take any time and memory."""
    return expression.execute(expression.select_facts(facts))


FindValue = Callable[[Expression, CheckedFacts], Any]  # as `find_value`, perhaps elsewhere


def must_be_bool(value: Any) -> bool:
    """Return the value of a condition. Raises UnevaluableError."""
    if isinstance(value, bool):
        return value
    raise UnevaluableError("it is neither true nor false")


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
    loops = len(_MACRO.findall(plain)) - len(_SHORT_LOOP.findall(plain))
    is_simple = not loops and "history" not in names and _PATTERN.search(plain) is None
    is_simple = is_simple and plain.count("+") <= MAX_SUMS
    return Expression(text, frozenset(names), is_simple, program)


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


def _without_pending(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the call without an outcome that is not known yet: to read it is an error."""
    return call if call["outcome"] != PENDING else {name: value for name, value in call.items() if name != "outcome"}


def _describe_error(error: BaseException) -> str:
    """Return why an expression has no value. The library's own texts quote the values."""
    match error:
        case KeyError():
            return f"there is no {str(error)[:100]}"
        case TypeError() | OverflowError() | ZeroDivisionError() | IndexError():
            return _CAUSES[type(error)]
        case _:
            return "a function in it fails"


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


NOT_EVALUABLE = "its `when` cannot be evaluated for this call"  # then why
POLICY_HASH_BYTES = 8
AROUND = frozenset({"run", "history"})  # facts that other runs of the same work change
MAX_RULE_REASON = 500  # characters
EVALUATOR = "common-expression-language"


class PolicyError(ValueError):
    """A policy that cannot be used. `line` is its place, if known; `later` are its other errors."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line
        self.later: tuple[PolicyError, ...] = ()


@dataclass(frozen=True)
class CompiledRule:
    rule: Rule
    when: Expression | None
    line: int | None

    @property
    def reads_context(self) -> bool:
        """True if the rule reads more than the call: the calls of other runs of the work, or who asked for it."""
        reads = self.when.names if self.when else frozenset()
        return self.rule.not_requester or not reads.isdisjoint(AROUND)

    def is_about(self, tool: str, agent: str) -> bool:
        return matches_globs(self.rule.tools, tool) and matches_globs(self.rule.agents, agent)


@dataclass(frozen=True)
class Policy:
    """A usable policy. `text` begins with the library's version that evaluates it; `ref` is its hash."""

    text: str
    ref: str
    may_loosen: bool
    rules: tuple[CompiledRule, ...]

    def expressions_about(self, tool: str, agent: str) -> list[Expression]:
        return [rule.when for rule in self.rules if rule.when is not None and rule.is_about(tool, agent)]

    def governs(self, agent: str) -> bool:
        """Return whether calls of the agent have verdicts: if a rule names it, or needs to know what it passes on."""
        return self.names(agent) or any(rule.reads_context for rule in self.rules)

    def names(self, agent: str) -> bool:
        return any(matches_globs(rule.rule.agents, agent) for rule in self.rules)


@dataclass(frozen=True)
class Ruling:
    """The verdict of one rule, or of a policy without a rule that holds."""

    policy: Policy
    rule: Rule | None
    verdict: Verdict
    reason: str = ""

    @property
    def loosens(self) -> bool:
        return self.rule is not None and self.verdict is Verdict.allow and self.policy.may_loosen

    @property
    def strictness(self) -> int:
        """A rule's `allow` is looser than the tool's own approval only if its policy may loosen."""
        return 0 if self.loosens else 1 + _STRICTNESS.index(self.verdict)


_STRICTNESS = (Verdict.allow, Verdict.review, Verdict.ask, Verdict.deny)


def matches_globs(globs: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def reviewing_models(policy: Policy, agent: str) -> list[str]:
    """Return the models, other than the agent's own, that may review its calls."""
    rules = (compiled.rule for compiled in policy.rules if matches_globs(compiled.rule.agents, agent))
    models = (rule.review.model for rule in rules if isinstance(rule.review, Rubric))
    return list(dict.fromkeys(model for model in models if model is not None))


def parse_policy(text: str, *, is_stored: bool = False) -> Policy:
    """Parse and compile a policy. Raises PolicyError. The text of a stored one is kept as it is."""
    try:
        file = PolicyFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(str(error)) from None
    except ValidationError as error:
        raise _first_of([_explain(text, found) for found in error.errors(include_url=False)]) from None
    except (ValueError, RecursionError) as error:
        raise PolicyError(plain_reason(error) if isinstance(error, ValueError) else "nested too deeply") from None
    rules, errors = list[CompiledRule](), list[PolicyError]()
    for number, rule in enumerate(file.rule):
        try:
            rules.append(_compile_rule(text, number, rule))
        except PolicyError as error:
            errors.append(error)
    if errors:
        raise _first_of(errors)
    whole = text if is_stored else f"# evaluated by {EVALUATOR} {version(EVALUATOR)}\n{text}"
    return Policy(whole, digest(whole.encode(), POLICY_HASH_BYTES), file.may_loosen, tuple(rules))


def _explain(text: str, found: ErrorDetails) -> PolicyError:
    place = [str(part) for part in found["loc"]]
    number = int(place[1]) if place[:1] == ["rule"] and len(place) > 1 else None
    setting = ".".join(part for part in place if not part.isdigit())
    expected = "no such setting" if found["type"] == "extra_forbidden" else found["msg"].removeprefix("Value error, ")
    return PolicyError(f"{setting}: {expected}", _line_of(text, number, place[2] if len(place) > 2 else ""))


def _first_of(errors: Sequence[PolicyError]) -> PolicyError:
    first, *later = errors
    first.later = tuple(later)
    return first


def _compile_rule(text: str, number: int, rule: Rule) -> CompiledRule:
    named = rule if rule.name else rule.evolve(name=f"rule {number + 1}")
    try:
        when = None if rule.when is None else compile_expression(rule.when)
    except ExpressionError as error:
        raise PolicyError(f"{named.name}: when: {error}", _line_of(text, number, "when")) from None
    return CompiledRule(named, when, _line_of(text, number, ""))


def _line_of(text: str, number: int | None, key: str) -> int | None:
    """Return the line of a key of a rule, or of the rule's header."""
    if number is None:
        return None
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if re.match(r"\s*\[\[\s*rule\s*\]\]", line)]
    if number >= len(heads):
        return None
    end = heads[number + 1] if number + 1 < len(heads) else len(lines)
    own = (at for at in range(heads[number], end) if key and re.match(rf"\s*{re.escape(key)}\s*=", lines[at]))
    return next(own, heads[number]) + 1


def apply_policy(policy: Policy, tool: str, agent: str, find: Callable[[Expression], Any]) -> tuple[Ruling, ...]:
    """Return the rulings that decide about the call together. `find` returns a value, or raises UnevaluableError.

    The first rule that holds decides. One before it that cannot be evaluated might hold or not, so its verdict counts
    beside those of the later rules, and a person is asked at least.
    """
    rulings: list[Ruling] = []
    for compiled in policy.rules:
        if not compiled.is_about(tool, agent):
            continue
        rule = compiled.rule
        try:
            holds = compiled.when is None or must_be_bool(find(compiled.when))
        except UnevaluableError as error:
            verdicts = (rule.then,) if rule.then is Verdict.deny else (Verdict.ask, rule.then)
            reason = f"{NOT_EVALUABLE}: {error}"
            rulings += [Ruling(policy, rule, verdict, reason) for verdict in dict.fromkeys(verdicts)]
            continue
        if holds:
            return (*rulings, Ruling(policy, rule, rule.then, rule.reason))
    return (*rulings, Ruling(policy, None, Verdict.allow))


def find_strictest(rulings: Sequence[Ruling]) -> Ruling:
    return max(rulings, key=lambda ruling: ruling.strictness)


def combine_rulings(rulings: Sequence[Ruling], facts: Mapping[str, Any]) -> PolicyVerdict:
    """Return the verdict of the strictest ruling. If people are asked, the terms of all rules that ask must be met."""
    strictest = find_strictest(rulings)
    asking = dict.fromkeys(ruling.rule.terms for ruling in rulings if ruling.rule and ruling.verdict is Verdict.ask)
    terms = [own for own in asking if own != ApprovalTerms()] or [*asking]  # any approval meets those without a demand
    return PolicyVerdict(
        verdict=strictest.verdict,
        rule=strictest.rule.name if strictest.rule else None,
        policy=strictest.policy.ref,
        reason=strictest.reason[:MAX_RULE_REASON],
        loosens=strictest.loosens,
        terms=tuple(terms) if strictest.verdict is Verdict.ask else (),
        facts=dict(facts),
    )
