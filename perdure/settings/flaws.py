"""Names in a project's files that do not exist, and what can never work: said at a worker's start, and by `doctor`."""

from collections.abc import Iterator
from pathlib import Path

from perdure.activities.project import Project
from perdure.activities.providers.prices import CLAUDE_MODELS
from perdure.contracts.policy import Rubric
from perdure.decisions.model_names import provider_of
from perdure.decisions.people.terms import MAIL
from perdure.decisions.policy.facts import FILES, WEB, source_of
from perdure.decisions.policy.rules import Policy
from perdure.decisions.tools import CALL_SCHEMA, SEARCH_SCHEMA, all_schemas
from perdure.registry import load_each
from perdure.settings import Settings
from perdure.settings.policy import POLICY_FILE, KnownNames, find_flaws
from perdure.settings.problems import format_suggestion


def find_project_flaws(project: Project, settings: Settings) -> list[str]:
    """Return a line for each one."""
    path = settings.folder / POLICY_FILE
    policy = find_policy_flaws(path, project.policy, project, settings) if project.policy else ()
    of_features = (line for find in load_each("flaws") for line in find(project, settings))
    return [*policy, *of_features, *_find_idle_prices(project, settings)]


def find_policy_flaws(path: Path, policy: Policy, project: Project, settings: Settings) -> Iterator[str]:
    """Yield a line for each flaw of a policy. Without MCP servers, those tools count that have been accepted."""
    yield from find_flaws(path, policy, known_names(project, settings))
    yield from find_unknown_reviewers(path, policy, project)


def known_names(project: Project, settings: Settings) -> KnownNames:
    """Return the names that a policy may use."""
    tools = {schema.name: schema.input_schema for schema in (*all_schemas(), SEARCH_SCHEMA, CALL_SCHEMA)}
    tools |= {route.name: {} for route in project.builtins if route.name not in tools}
    tools |= {name: tool.schema.input_schema for name, tool in project.tools.items()}
    servers = {source for tool in (*tools, *settings.file.tools) if (source := source_of(tool))}
    return KnownNames(tools, project.agents, {WEB, MAIL, FILES, *servers}, settings.file.people)


def find_unknown_reviewers(path: Path, policy: Policy, project: Project) -> Iterator[str]:
    """Yield a line for each rule whose reviewing model the project cannot know. Other providers' names are theirs."""
    known = {*CLAUDE_MODELS, *project.prices, *_models_of(project)}
    for compiled in policy.rules:
        model = compiled.rule.review.model if isinstance(compiled.rule.review, Rubric) else None
        if model is None or model in known:
            continue
        provider, bare = provider_of(model, project.providers)
        if provider in project.claude_priced and bare not in known:
            remedy = f'if it is right, set its price in [prices."{model}"]'
            reason = f"there is no model {model!r}{format_suggestion(model, known)}; {remedy}"
            yield f"{path}, line {compiled.line}: {compiled.rule.name}: review: {reason}"


def _models_of(project: Project) -> list[str]:
    return [name for agent in project.agents.values() for name in project.models_of(agent)]


def _find_idle_prices(project: Project, settings: Settings) -> Iterator[str]:
    """Find a price whose name is nearly that of a model in use: one that is not in use may be named at a start."""
    used = {name for model in _models_of(project) for name in (model, provider_of(model, project.providers)[1])}
    used |= {model for model in (project.summary_model,) if model}
    for name in settings.file.prices:
        if name not in used and name not in CLAUDE_MODELS and (hint := format_suggestion(name, used)):
            yield f'{settings.at("prices")}: [prices."{name}"]: no agent uses this model{hint}'
