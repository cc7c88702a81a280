"""Builds a `Project` from its settings: agents, tools, models, limits, stores, and what features add."""

import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import PydanticUserError, TypeAdapter

from perdure.activities.model.accept import load_check
from perdure.activities.project import Project
from perdure.activities.providers.options import find_unusable, find_unusable_in_chat
from perdure.activities.providers.prices import FREE, Price
from perdure.activities.run.definition import has_full_text_search, split_tools
from perdure.activities.tools.fetch import FetchTool
from perdure.activities.tools.files import ListFiles, ReadFile, WriteFile
from perdure.activities.tools.interface import Tool
from perdure.activities.tools.json_schema import find_schema_error
from perdure.activities.tools.outside import NO_HEADERS, HttpTool, QueueTool, SignalTool
from perdure.activities.tools.python import BadTargetError, PythonTool, load_target
from perdure.contracts.agent import Agent, ToolSchema
from perdure.contracts.model_settings import ModelOptions
from perdure.contracts.models import check_schema_bounds
from perdure.contracts.policy import Rubric
from perdure.contracts.tool import Approval, QueueRoute
from perdure.decisions.model_names import DEFAULT, provider_of
from perdure.decisions.policy.rules import Policy, reviewing_models
from perdure.decisions.tools import api_rejection, gated_routes
from perdure.extras import MissingExtraError, naming_extras
from perdure.registry import features, find_tool_source, load, load_each, tool_kinds
from perdure.settings import REHEARSAL, ProjectError, Settings
from perdure.settings.policy import POLICY_FILE, read_policy
from perdure.settings.problems import collecting, join_faults, raise_all
from perdure.settings.tools import (
    A2aToolSettings,
    BuiltinToolSettings,
    HttpToolSettings,
    McpToolSettings,
    PythonToolSettings,
    QueueToolSettings,
    SignalToolSettings,
    tool_route,
)


@dataclass(frozen=True)
class ToolOffer:
    """The tools of all accepted servers, and the agents with their tools written out by name."""

    tools: Mapping[str, Tool]
    agents: Mapping[str, Agent]


def show_offer(settings: Settings) -> ToolOffer:
    """Return the tools for display, without starting a server. Raises ProjectError."""
    if (source := find_tool_source()) is None:
        return ToolOffer({}, settings.agents)
    offer: ToolOffer = load(source.show)(settings)
    return offer


def show_loadable(settings: Settings) -> ToolOffer:
    """Return the tools and agents that load here, for display: a client may lack what those of a worker import."""
    faults = list[ProjectError]()
    tools = _build_tools(settings, httpx.AsyncClient(trust_env=False), faults)  # it makes no request
    offer = ToolOffer({}, settings.agents)
    with collecting(faults):
        offer = show_offer(settings)
    return ToolOffer({**tools, **offer.tools}, {**offer.agents, **_with_schemas(offer.agents, settings, faults)})


@asynccontextmanager
async def open_offer(settings: Settings) -> AsyncIterator[ToolOffer]:
    """Yield the tools of a worker, with those of new servers, and stop the servers at the end. Raises ProjectError."""
    if (source := find_tool_source()) is None:
        yield ToolOffer({}, settings.agents)
        return
    opened: AbstractAsyncContextManager[ToolOffer] = load(source.open)(settings)
    async with opened as offer:
        yield offer


def open_known_offer(settings: Settings, closing: AsyncExitStack) -> ToolOffer:
    """Return the tools of a worker that accepts no new server; `closing` stops the servers. Raises ProjectError."""
    if (source := find_tool_source()) is None:
        return ToolOffer({}, settings.agents)
    offer: ToolOffer = load(source.open_known)(settings, closing)
    return offer


@asynccontextmanager
async def display_project(settings: Settings, *, is_worker: bool = False) -> AsyncIterator[Project]:
    """Yield the project for display, without MCP servers. Raises ProjectError; also for what an `is_worker` lacks."""
    async with httpx.AsyncClient(trust_env=False) as client:
        yield build_project(settings, client, is_worker=is_worker)


async def must_load(settings: Settings) -> None:
    """Raise ProjectError with all faults of the project, if there are any in its files: before a server starts."""
    if settings.faults:
        async with display_project(settings, is_worker=True):
            return


def build_project(
    settings: Settings, client: httpx.AsyncClient, offer: ToolOffer | None = None, *, is_worker: bool = False
) -> Project:
    """Build the project; without `offer` it is for display only. Raises ProjectError, with all faults of its parts.

    A worker also needs the variables of headers and channels.
    """
    parts = _load_parts(settings, client, offer, is_worker=is_worker)
    project = Project(
        agents=parts.agents,
        faulty={name: str(error) for name, error in settings.roster.faulty.items()},
        tools=parts.tools,
        model=settings.model,
        fallbacks=settings.fallbacks,
        providers=frozenset(settings.file.model.providers),
        chat_providers=frozenset(name for name, row in settings.file.model.providers.items() if row.kind == "openai"),
        options=ModelOptions().override(settings.file.model),
        record_thinking=settings.file.model.record_thinking,
        limits=settings.file.limits,
        ceiling=settings.file.limits.ceiling,
        pace=settings.file.model.pace,
        batches=settings.file.model.batch,
        fuse_reads=settings.file.worker.fuse_reads,
        workspaces=settings.workspaces,
        instructions="\n".join(_read_prompt(name) for name in ("loop", "plan", "reflect")),
        claude_priced=_claude_priced(settings),
        prices={
            REHEARSAL: FREE,
            **dict.fromkeys(_relayed(settings), FREE),
            **{name: Price(**dict(price)) for name, price in settings.file.prices.items()},
        },
        remote=settings.stores if settings.store else None,
        window=settings.file.model.window,
        summary_model=settings.file.model.summary,
        secrets=settings.secrets,
        parts=parts.of_features,
        page_url=settings.file.gateway.public_url or "",
        answer_keys=settings.answer_keys.public,
        on_delegation=_read_prompt("delegate"),
        builtins=gated_routes(_approval_timeouts(settings)),
        policy=parts.policy,
    )
    _check_relays(project, settings)
    _check_options(project, settings)
    _check_search(project)
    return project


@dataclass
class _Parts:
    """The parts of a project that load by themselves."""

    tools: dict[str, Tool]
    of_features: dict[str, Any] = field(default_factory=dict)
    policy: Policy | None = None
    agents: dict[str, Agent] = field(default_factory=dict)


def _load_parts(settings: Settings, client: httpx.AsyncClient, offer: ToolOffer | None, *, is_worker: bool) -> _Parts:
    """Load all parts. Raises ProjectError, with the faults of each."""
    faults = [*settings.faults]
    if is_worker:
        for check in (Settings.check_headers, *load_each("check_worker")):
            with collecting(faults):
                check(settings)
    parts = _build_parts(settings, client, faults)
    if not settings.faults:  # else a tool or server that is left out would be reported as missing
        with collecting(faults):
            offer = offer or show_offer(settings)
    parts.agents = _with_schemas(offer.agents if offer else settings.agents, settings, faults)
    if faults or offer is None:
        raise join_faults(faults)
    parts.tools |= offer.tools
    return parts


def _build_parts(settings: Settings, client: httpx.AsyncClient, faults: list[ProjectError]) -> _Parts:
    """Build each part that loads; the faults of the others are added to `faults`."""
    parts = _Parts(_build_tools(settings, client, faults))
    for feature, row in features().items():
        with collecting(faults):
            if row.project:
                parts.of_features[feature] = load(row.project)(settings, client)
    with collecting(faults):
        parts.policy = _load_policy(settings)
    return parts


def _build_tools(settings: Settings, client: httpx.AsyncClient, faults: list[ProjectError]) -> dict[str, Tool]:
    """Build each tool of the project that loads, and the native ones."""
    tools = _native_tools(settings)
    for name, described in settings.file.tools.items():
        if not isinstance(described, McpToolSettings | BuiltinToolSettings):
            with collecting(faults):
                tool = _create_tool(name, described, settings, client)
                _check_tool(tool, settings)
                tools[name] = tool
    return tools


def _load_policy(settings: Settings) -> Policy | None:
    """Return the project's policy, if it has one, with functions that can be imported. Raises ProjectError."""
    if not (path := settings.folder / POLICY_FILE).is_file():
        return None
    policy, faults = read_policy(path), list[ProjectError]()
    for compiled in policy.rules:
        if isinstance(compiled.rule.review, str):
            _make_importable(settings)
            try:
                load_target(compiled.rule.review)
            except BadTargetError as error:
                faults.append(ProjectError(f"{path}, line {compiled.line}: {error}"))
    raise_all(faults)
    return policy


def _check_options(project: Project, settings: Settings) -> None:
    """Raise ProjectError if an agent's first model does not take its settings."""
    for agent in project.agents.values():
        for name, reason in () if agent.mailbox else _unusable_options(project, agent, project.models_of(agent)[0]):
            own = getattr(agent.options, name) is not None
            place = settings.roster.at(agent.name, name) if own else settings.at("model", name)
            raise ProjectError(f"{place}: {reason}{'' if own else f' (agent {agent.name})'}")


def _relayed(settings: Settings) -> dict[str, str]:
    """Return the tools that agents have in place of a model, by the names of these models."""
    providers = settings.file.model.providers
    names = [name for agent in settings.agents.values() for name in (agent.model, *agent.fallbacks) if name]
    split = {name: provider_of(name, providers) for name in (*names, settings.model, *settings.fallbacks)}
    return {name: tool for name, (by, tool) in split.items() if by in providers and providers[by].is_relay}


def _check_relays(project: Project, settings: Settings) -> None:
    """Raise ProjectError if an agent has a tool in place of a model, and not among its tools, or judges by it."""
    relayed = _relayed(settings)
    for agent in () if not relayed else project.agents.values():
        for model in () if agent.mailbox else project.models_of(agent):
            if model in relayed and relayed[model] not in agent.tools:
                reason = f"model {model}: the agent has no tool {relayed[model]!r}: add it to its tools"
                raise ProjectError(f"{settings.roster.at(agent.name, 'tools')}: {reason}")
            if model in relayed and isinstance(agent.accept, Rubric) and agent.accept.model is None:
                reason = f"model {model} judges nothing: give the rubric a model"
                raise ProjectError(f"{settings.roster.at(agent.name, 'accept')}: {reason}")


def _unusable_options(project: Project, agent: Agent, model: str) -> Iterable[tuple[str, str]]:
    options = project.options.override(agent.options)
    provider, name = provider_of(model, project.providers)
    is_chat = provider in project.chat_providers
    return (find_unusable_in_chat(options) if is_chat else find_unusable(name, options)).items()


def ignored_options(project: Project) -> list[str]:
    """Return a warning for each setting that a fallback does not take; its requests are made without it."""
    return [
        f"agent {agent.name}: {name} is left out of requests to the fallback {model}: {reason}"
        for agent in project.agents.values()
        if not agent.mailbox
        for model in project.models_of(agent)[1:]
        for name, reason in _unusable_options(project, agent, model)
    ]


def oversized_replies(project: Project) -> list[str]:
    """Return a warning for each agent whose replies may be as long as the window of a model, with its prompt in it."""
    return [
        f"agent {agent.name}: max_tokens, {limit:,}, is not below the window of {model}, {window:,} tokens: lower it"
        for agent in project.agents.values()
        if not agent.mailbox
        for model in project.models_of(agent)
        if (limit := project.options.override(agent.options).max_tokens) >= (window := project.window_of(model))
    ]


def _check_search(project: Project) -> None:
    """Raises ProjectError if tools are searched and this Python cannot search."""
    if has_full_text_search():
        return
    for agent in project.agents.values():
        if not agent.mailbox and split_tools(project, agent)[1]:
            reason = "its tools are searched, and the SQLite of this Python has no FTS5"
            raise ProjectError(f"agent {agent.name}: {reason}: use another Python, or set search_tools: false")


def _with_schemas(agents: Mapping[str, Agent], settings: Settings, faults: list[ProjectError]) -> dict[str, Agent]:
    """Return the agents with checked schemas, those of pydantic models included."""
    checked = dict[str, Agent]()
    for name, agent in agents.items():
        with collecting(faults):
            checked[name] = _with_agent_schemas(agent, settings)
    return checked


def _with_agent_schemas(agent: Agent, settings: Settings) -> Agent:
    schemas = dict[str, Any]()
    for setting in ("input_schema", "output_schema"):
        written = getattr(agent, setting)
        if written is None:
            continue
        try:
            schemas[setting] = _import_schema(written, settings) if isinstance(written, str) else written
            reason = find_schema_error(check_schema_bounds(schemas[setting]))
        except (BadTargetError, ValueError) as error:
            reason = str(error)
        if reason:
            raise ProjectError(f"{settings.roster.at(agent.name, setting, '')}: {reason}")
    _check_accept(agent, settings)
    return agent.evolve(**schemas)


def _check_accept(agent: Agent, settings: Settings) -> None:
    """Raise ProjectError if the function that checks the agent's outcomes cannot be imported."""
    if isinstance(agent.accept, str):
        _make_importable(settings)
        try:
            load_check(agent.accept)
        except BadTargetError as error:
            raise ProjectError(f"{settings.roster.at(agent.name, 'accept', '')}: {error}") from None


def _import_schema(target: str, settings: Settings) -> dict[str, Any]:
    """Return the schema of a pydantic model, or of any type that pydantic knows. Raises BadTargetError."""
    _make_importable(settings)
    model = load_target(target)
    try:
        return TypeAdapter(model).json_schema()
    except (PydanticUserError, NameError, KeyError) as error:  # KeyError: a reference of the type's own to nothing
        raise BadTargetError(f"{target} has no JSON Schema: {error}") from None


def _make_importable(settings: Settings) -> None:
    folder = str(settings.folder)
    if folder not in sys.path:
        sys.path.append(folder)  # last: a `json.py` of the project's must not be what a library imports


def _claude_priced(settings: Settings) -> frozenset[str]:
    """Return the providers with Anthropic's prices: Anthropic and the clouds.

    Other servers may use a Claude model's name with other prices.
    """
    described = settings.file.model.providers
    names = {name for name, row in described.items() if row.is_cloud or _is_anthropic(row.base_url)}
    return frozenset(names | ({DEFAULT} if not settings.base_url or _is_anthropic(settings.base_url) else set()))


def _is_anthropic(url: str | None) -> bool:
    host = urlsplit(url).hostname if url else None
    return host is not None and (host == "anthropic.com" or host.endswith(".anthropic.com"))


def _check_tool(tool: Tool, settings: Settings) -> None:
    """Raises ProjectError if model APIs reject the tool: each request with it would fail."""
    name, schema = tool.route.name, tool.schema
    error = api_rejection(name, schema.description, schema.input_schema)
    if reason := error[1] if error else find_schema_error(schema.input_schema):
        field = "" if error else "input_schema: "
        raise ProjectError(f"{settings.at('tools', name)}: models do not accept this tool: {field}{reason}")


def _native_tools(settings: Settings) -> dict[str, Tool]:
    """Return the built-in tools, with the project's approvals."""
    hosts, gates = settings.file.fetch, _approval_timeouts(settings)
    only = None if hosts.only_hosts is None else frozenset(hosts.only_hosts)
    tools = FetchTool(frozenset(hosts.allow_hosts), only_hosts=only), ReadFile(), WriteFile(), ListFiles()
    for tool in tools:
        if tool.route.name in gates:
            tool.route = tool.route.evolve(approval=Approval.always, approval_timeout=gates[tool.route.name])
    return {tool.route.name: tool for tool in tools}


def _approval_timeouts(settings: Settings) -> dict[str, timedelta | None]:
    """Return the built-in tools that need approval, with their timeouts."""
    builtins = ((name, tool) for name, tool in settings.file.tools.items() if isinstance(tool, BuiltinToolSettings))
    return {name: tool.approval_timeout for name, tool in builtins if tool.approval is Approval.always}


def unpriced_budgets(project: Project) -> list[str]:
    """Return a warning for each agent with a budget in USD and a model whose price is unknown."""
    lines = []
    for agent in project.agents.values():
        if agent.mailbox or (agent.limits.budget_usd or project.limits.budget_usd) is None:
            continue
        judge = [agent.accept.model] if isinstance(agent.accept, Rubric) and agent.accept.model else []
        judge += reviewing_models(project.policy, agent.name) if project.policy else []
        if unknown := [model for model in (*project.models_of(agent), *judge) if project.price_of(model) is None]:
            table = " and ".join(f'[prices."{model}"]' for model in unknown)
            reason = f"agent {agent.name}: budget_usd does not count {', '.join(unknown)}, whose price is unknown"
            lines.append(f"{reason}: set {table}, or budget_tokens")
    return lines


def _read_prompt(name: str) -> str:
    return files("perdure.activities").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8")


def _create_tool(
    name: str,
    described: PythonToolSettings | HttpToolSettings | A2aToolSettings | QueueToolSettings | SignalToolSettings,
    settings: Settings,
    client: httpx.AsyncClient,
) -> Tool:
    route = tool_route(name, described)
    headers = settings.headers.get(f"tools.{name}", NO_HEADERS)
    match described:
        case PythonToolSettings():
            _make_importable(settings)
            try:
                return PythonTool(route, described.target, described.description)
            except BadTargetError as error:
                raise ProjectError(f"{settings.at('tools', name, 'target')}: {error}") from None
        case HttpToolSettings():
            return HttpTool(route, _tool_schema(name, described), described.url, client, headers)
        case A2aToolSettings():
            try:
                with naming_extras():
                    opened: Tool = load(tool_kinds()[route.kind])(route, described, headers, client)
            except MissingExtraError as error:
                raise ProjectError(f"{settings.at('tools', name, 'kind')}: {error}") from None
            return opened
        case QueueToolSettings():
            if described.task_queue == settings.task_queue:
                reason = f"{described.task_queue!r} is the task queue of this project's own worker: use another one"
                raise ProjectError(f"{settings.at('tools', name, 'task_queue')}: {reason}")
            queue = QueueRoute.model_validate(dict(described))
            return QueueTool(route.evolve(queue=queue), _tool_schema(name, described))
        case SignalToolSettings():
            posted = route.evolve(is_posted=described.url is not None)
            return SignalTool(posted, _tool_schema(name, described), described.url, client, headers)


def _tool_schema(name: str, described: HttpToolSettings | QueueToolSettings | SignalToolSettings) -> ToolSchema:
    if not isinstance(described.input_schema, dict):
        raise ProjectError(f"perdure.toml: tools.{name}.input_schema: expected a JSON Schema, or the path of one")
    return ToolSchema(name=name, description=described.description, input_schema=described.input_schema)
