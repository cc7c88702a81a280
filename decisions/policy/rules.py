"""Parsing of `policy.toml`, the rule that decides about a call, and the stricter of two verdicts."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from contracts.people.policy import ApprovalTerms, PolicyFile, PolicyVerdict, Rule, Verdict
from contracts.people.rubric import Rubric
from contracts.strict_input import plain_reason
from decisions.ids import digest
from decisions.policy.expression import Expression, ExpressionError, compile_expression

if TYPE_CHECKING:
    import cel

NOT_EVALUABLE = "its `when` cannot be evaluated for this call"
POLICY_HASH_BYTES = 8
MAX_RULE_REASON = 500  # characters
EVALUATOR = "common-expression-language"


class PolicyError(ValueError):
    """A policy that cannot be used. `line` is its place, if known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class CompiledRule:
    rule: Rule
    when: Expression | None
    line: int | None

    def is_about(self, tool: str, agent: str) -> bool:
        return matches_globs(self.rule.tools, tool) and matches_globs(self.rule.agents, agent)


@dataclass(frozen=True)
class Policy:
    """A usable policy. `text` begins with the library's version that evaluates it; `ref` is its hash."""

    text: str
    ref: str
    may_loosen: bool
    rules: tuple[CompiledRule, ...]

    def governs(self, agent: str) -> bool:
        return any(matches_globs(rule.rule.agents, agent) for rule in self.rules)


@dataclass(frozen=True)
class Ruling:
    """The decision of one policy. `rule` is None if no rule holds; `names` are the facts that its rules looked at."""

    policy: Policy
    rule: Rule | None
    verdict: Verdict
    reason: str = ""
    names: frozenset[str] = frozenset()

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
        first = error.errors(include_url=False)[0]
        place = [str(part) for part in first["loc"]]
        number = int(place[1]) if place[:1] == ["rule"] and len(place) > 1 else None
        setting = ".".join(part for part in place if not part.isdigit())
        expected = (
            "no such setting" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        )
        raise PolicyError(
            f"{setting}: {expected}", _line_of(text, number, place[2] if len(place) > 2 else "")
        ) from None
    except (ValueError, RecursionError) as error:
        raise PolicyError(plain_reason(error) if isinstance(error, ValueError) else "nested too deeply") from None
    rules = tuple(_compile_rule(text, number, rule) for number, rule in enumerate(file.rule))
    whole = text if is_stored else f"# evaluated by {EVALUATOR} {version(EVALUATOR)}\n{text}"
    return Policy(whole, digest(whole.encode(), POLICY_HASH_BYTES), file.may_loosen, rules)


def _compile_rule(text: str, number: int, rule: Rule) -> CompiledRule:
    named = rule if rule.name else rule.model_copy(update={"name": f"rule {number + 1}"})
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


def apply_policy(policy: Policy, tool: str, agent: str, context: "cel.Context | None") -> Ruling:
    """Return the decision of the first rule that is about the call and holds. Without a context none can be evaluated.

    A rule that cannot be evaluated asks.
    """
    names: frozenset[str] = frozenset()
    for compiled in policy.rules:
        if not compiled.is_about(tool, agent):
            continue
        rule, holds = compiled.rule, _holds(compiled.when, context)
        names |= compiled.when.names if compiled.when else frozenset()
        if holds is None:
            return Ruling(policy, rule, Verdict.ask, NOT_EVALUABLE, names)
        if holds:
            return Ruling(policy, rule, rule.then, rule.reason, names)
    return Ruling(policy, None, Verdict.allow, names=names)


def _holds(when: Expression | None, context: "cel.Context | None") -> bool | None:
    if when is None:
        return True
    return None if context is None else when.holds(context)


def combine_rulings(rulings: tuple[Ruling, ...], facts: Mapping[str, Any]) -> PolicyVerdict:
    """Return the verdict of the strictest ruling; approvals of equally strict ones must meet the terms of all."""
    strictest = max(rulings, key=lambda ruling: ruling.strictness)
    equal = [ruling.rule.terms for ruling in rulings if ruling.rule and ruling.verdict is strictest.verdict]
    terms = _merge_terms(equal) if strictest.verdict is Verdict.ask else None
    return PolicyVerdict(
        verdict=strictest.verdict,
        rule=strictest.rule.name if strictest.rule else None,
        policy=strictest.policy.ref,
        reason=strictest.reason[:MAX_RULE_REASON],
        loosens=strictest.loosens,
        terms=None if terms == ApprovalTerms() else terms,
        facts=dict(facts),
    )


def _merge_terms(terms: list[ApprovalTerms]) -> ApprovalTerms:
    first = terms[0]
    for other in terms[1:]:
        times = [time for time in (first.expires, other.expires) if time is not None]
        is_escalated = first.on_expiry == other.on_expiry == "escalate"
        first = ApprovalTerms(
            approvers=first.approvers or other.approvers,
            quorum=max(first.quorum, other.quorum),
            not_requester=first.not_requester or other.not_requester,
            expires=min(times, default=None),
            on_expiry="escalate" if is_escalated else "deny",
        )
    return first
