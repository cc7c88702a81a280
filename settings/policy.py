"""`policy.toml`, beside `perdure.toml`: the rules over the calls of agents."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from decisions.builtin_tools import UNGOVERNED
from decisions.policy.rules import Policy, PolicyError, matches_globs, parse_policy
from settings.problems import ProjectError, format_suggestion, read_project_text

POLICY_FILE = "policy.toml"
_COUNTED = re.compile(r"run\.calls\[['\"]([^'\"]+)['\"]\]")


def read_policy(path: Path) -> Policy:
    """Read and compile a policy. Raises ProjectError."""
    try:
        return parse_policy(read_project_text(path))
    except PolicyError as error:
        raise ProjectError(f"{path}{f', line {error.line}' if error.line else ''}: {error}") from None


def find_flaws(path: Path, policy: Policy, tools: Collection[str], agents: Collection[str]) -> Iterator[str]:
    """Yield a line for each name that does not exist, and for each rule that no call can reach."""
    governed = {tool for tool in tools if tool not in UNGOVERNED}
    taken: dict[tuple[str, str], str] = {}
    for compiled in policy.rules:
        rule, place = compiled.rule, f"{path}, line {compiled.line}: {compiled.rule.name}"
        for kind, globs, names in (("tool", rule.tools, governed), ("agent", rule.agents, set(agents))):
            for glob in globs:
                if not any(matches_globs((glob,), name) for name in names):
                    why = (
                        "no policy is about it"
                        if glob in UNGOVERNED
                        else f"there is none{format_suggestion(glob, names)}"
                    )
                    yield f"{place}: {kind} {glob!r}: {why}"
        for name in _COUNTED.findall(rule.when or ""):
            if name not in governed:
                yield f"{place}: run.calls[{name!r}]: there is no such tool{format_suggestion(name, governed)}"
        about = {(tool, agent) for tool in governed for agent in agents if compiled.is_about(tool, agent)}
        if about and about <= taken.keys():
            earlier = ", ".join(dict.fromkeys(taken[pair] for pair in sorted(about)))
            yield f"{place}: it is never reached: {earlier} decides about all of its calls"
        if rule.when is None:
            taken |= {pair: rule.name for pair in about if pair not in taken}
