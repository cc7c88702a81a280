"""`policy.toml`, beside `perdure.toml`: the rules over the calls of agents, and what can never work in them."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.contracts.policy import Rule
from perdure.contracts.tool import Effect
from perdure.decisions.policy.rules import CompiledRule, Policy, PolicyError, matches_globs, parse_policy
from perdure.decisions.tools import UNGOVERNED
from perdure.settings.problems import ProjectError, format_suggestion, join_faults, read_project_text

POLICY_FILE = "policy.toml"
_COUNTED = re.compile(r"run\.calls\[['\"]([^'\"]+)['\"]\]")
_COMPARED = re.compile(r"(?<![\w.])(\w+(?:\.tool)?)\s*[!=]=\s*(['\"])(.*?)\2")
_SOURCE_LOOP = re.compile(r"run\.has_read\.\w+\(\s*(\w+)\s*,")
_SOURCE_IN = re.compile(r"(['\"])([^'\"]+)\1\s+in\s+run\.has_read")
_BRACKET = re.compile(r"\[\s*(['\"])(\w+)\1\s*\]")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_ARGUMENT = re.compile(r"(has\(\s*)?(?<![\w.])args((?:\s*\.\s*\w+(?!\w*\s*\())+)")
_OPEN_SCHEMA = ("$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "if", "patternProperties")


@dataclass(frozen=True)
class KnownNames:
    """The names of a project that a policy may use: tools with their schemas, agents, sources, and groups of people."""

    tools: Mapping[str, Mapping[str, Any]]
    agents: Collection[str]
    sources: Collection[str] = ()
    groups: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def governed(self) -> set[str]:
        return {tool for tool in self.tools if tool not in UNGOVERNED}


def read_policy(path: Path) -> Policy:
    """Read and compile a policy. Raises ProjectError."""
    try:
        return parse_policy(read_project_text(path))
    except PolicyError as error:
        places = [(f"{path}{f', line {each.line}' if each.line else ''}", each) for each in (error, *error.later)]
        raise join_faults([ProjectError(f"{place}: {each}") for place, each in places]) from None


def find_flaws(path: Path, policy: Policy, names: KnownNames) -> Iterator[str]:
    """Yield a line for each name that does not exist, and for each rule that can never do what it says."""
    taken: dict[tuple[str, str], str] = {}
    for compiled in policy.rules:
        place = f"{path}, line {compiled.line}: {compiled.rule.name}"
        flaws = [
            *_find_unknown_globs(compiled.rule, names),
            *_find_unknown_names(compiled, names),
            *_find_unknown_arguments(compiled, names),
            *_find_impossible_terms(compiled.rule, names),
            *_find_hidden(compiled, names, taken),
        ]
        yield from (f"{place}: {flaw}" for flaw in flaws)


def _find_unknown_globs(rule: Rule, names: KnownNames) -> Iterator[str]:
    for kind, globs, known in (("tool", rule.tools, names.governed), ("agent", rule.agents, {*names.agents})):
        for glob in globs:
            if not any(matches_globs((glob,), name) for name in known):
                is_ungoverned = kind == "tool" and glob in UNGOVERNED
                why = "no policy is about it" if is_ungoverned else f"there is none{format_suggestion(glob, known)}"
                yield f"{kind} {glob!r}: {why}"


def _find_unknown_names(compiled: CompiledRule, names: KnownNames) -> Iterator[str]:
    """Find names in texts that the expression compares with a fact."""
    when = compiled.rule.when or ""
    for name in _COUNTED.findall(when):
        if name not in names.governed:
            yield f"run.calls[{name!r}]: there is no such tool{format_suggestion(name, names.governed)}"
    known = {"tool": names.tools, "agent": names.agents, "effect": [*Effect], "source": names.sources}
    loops = _SOURCE_LOOP.findall(when)
    pairs = [(fact.rpartition(".")[2], text) for fact, _, text in _COMPARED.findall(when)]
    pairs = [("source" if fact in loops else fact, text) for fact, text in pairs]
    pairs += [("source", text) for _, text in _SOURCE_IN.findall(when)]
    for fact, text in dict.fromkeys(pairs):
        if fact in known and text not in known[fact]:
            yield f"{fact} {text!r}: there is none{format_suggestion(text, known[fact])}"


def _find_unknown_arguments(compiled: CompiledRule, names: KnownNames) -> Iterator[str]:
    """Find arguments that no tool of the rule has, or not each one, unless the rule asks for the tool or by `has`."""
    tools = sorted(tool for tool in names.governed if matches_globs(compiled.rule.tools, tool))
    plain = _TEXT.sub("''", _BRACKET.sub(r".\2", compiled.rule.when or ""))
    found = [(bool(has), tuple(path.replace(" ", "").split(".")[1:])) for has, path in _ARGUMENT.findall(plain)]
    guarded = {path for has, path in found if has}
    asks_for_tool = compiled.when is not None and "tool" in compiled.when.names
    for path in dict.fromkeys(path for _, path in found):
        missing = {tool: reason for tool in tools if (reason := _missing_reason(names.tools[tool], path))}
        is_guarded = asks_for_tool or any(path[: len(known)] == known for known in guarded)
        if missing and (len(missing) == len(tools) or not is_guarded):
            yield f"args.{'.'.join(path)}: {', '.join(missing)}: {next(iter(missing.values()))}"


def _missing_reason(schema: Mapping[str, Any], path: tuple[str, ...]) -> str | None:
    """Return why a value at the path is never there; None if it may be, as far as the schema says."""
    for name in path:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or any(keyword in schema for keyword in _OPEN_SCHEMA):
            return None
        if name not in properties:
            is_open = schema.get("additionalProperties", False) is not False
            return None if is_open else f"there is no argument {name!r}{format_suggestion(name, properties)}"
        if not isinstance(schema := properties[name], dict):
            return None
    return None


def _find_impossible_terms(rule: Rule, names: KnownNames) -> Iterator[str]:
    for group in rule.approvers:
        if group not in names.groups:
            hint = format_suggestion(group, names.groups) if names.groups else "; perdure.toml has no [people]"
            yield f"approvers: there is no group {group!r}{hint}, so nobody can approve"
    people = {person for group in rule.approvers for person in names.groups.get(group, ())}
    if rule.approvers and 0 < len(people) < rule.quorum:
        yield f"quorum = {rule.quorum}: {' and '.join(rule.approvers)} have {len(people)} in all, so it is never met"


def _find_hidden(compiled: CompiledRule, names: KnownNames, taken: dict[tuple[str, str], str]) -> Iterator[str]:
    """Find a rule that no call reaches. `taken` are the pairs of tools and agents that earlier rules decide about."""
    about = {(tool, agent) for tool in names.governed for agent in names.agents if compiled.is_about(tool, agent)}
    if about and about <= taken.keys():
        earlier = ", ".join(dict.fromkeys(taken[pair] for pair in sorted(about)))
        yield f"it is never reached: {earlier} decides about all of its calls"
    if compiled.rule.when is None:
        taken |= {pair: compiled.rule.name for pair in about if pair not in taken}
