"""Builds a `Project` from its settings: agents, tools, models, limits, stores and outbox."""

import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.resources import files
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import PydanticUserError, TypeAdapter

from activities.followup.outbox import ListedOutbox, LogOutbox, Outbox, WebhookOutbox
from activities.model.accept import load_check
from activities.people.channels import AppriseSender, Channel, NoticeSender, SlackSender, WebhookSender
from activities.project import Project
from activities.providers.options import find_unusable, find_unusable_in_chat
from activities.providers.prices import FREE, Price
from activities.run.definition import split_tools
from activities.run.tool_search import has_full_text_search
from activities.tools.fetch import FetchTool
from activities.tools.files import ListFiles, ReadFile, WriteFile
from activities.tools.http import NO_HEADERS, HttpTool
from activities.tools.interface import Tool
from activities.tools.json_schema import find_schema_error
from activities.tools.python import BadTargetError, PythonTool, load_target
from activities.tools.queue import QueueTool
from activities.tools.signal import SignalTool
from contracts.agent import Agent, ToolSchema
from contracts.model_settings import ModelOptions
from contracts.models import check_schema_bounds
from contracts.people.notice import NoticeRoute
from contracts.people.rubric import Rubric
from contracts.tool import Approval, QueueRoute
from decisions.api_tool import api_rejection
from decisions.builtin_tools import gated_routes
from decisions.model_names import DEFAULT, provider_of
from decisions.people.start_rule import StartRule, compile_start
from decisions.policy.expression import ExpressionError
from decisions.policy.rules import Policy, reviewing_models
from perdure.process.mcp_tools import ToolOffer, offer_accepted_tools, tool_route
from settings import REHEARSAL, ProjectError, Settings
from settings.notify import NotifySettings
from settings.policy import POLICY_FILE, read_policy
from settings.tools import (
    BuiltinToolSettings,
    HttpToolSettings,
    McpToolSettings,
    PythonToolSettings,
    QueueToolSettings,
    SignalToolSettings,
)


@asynccontextmanager
async def display_project(settings: Settings) -> AsyncIterator[Project]:
    """Yield the project for display, without MCP servers. Raises ProjectError."""
    async with httpx.AsyncClient(trust_env=False) as client:
        yield build_project(settings, client)


def build_project(settings: Settings, client: httpx.AsyncClient, mcp: ToolOffer | None = None) -> Project:
    """Build the project; without `mcp` it is for display only. Raises ProjectError."""
    mcp = mcp or offer_accepted_tools(settings)
    tools = _native_tools(settings)
    for name, described in settings.file.tools.items():
        if not isinstance(described, McpToolSettings | BuiltinToolSettings):
            tools[name] = _create_tool(name, described, settings, client)
            _check_tool(tools[name], settings)
    tools.update(mcp.tools)
    project = Project(
        agents=_with_schemas(mcp.agents, settings),
        tools=tools,
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
            **{name: Price(**dict(price)) for name, price in settings.file.prices.items()},
        },
        remote=settings.stores if settings.store else None,
        window=settings.file.model.window,
        summary_model=settings.file.model.summary,
        secrets=settings.secrets,
        outbox=_create_outbox(settings, client),
        channels=tuple(_create_channel(row, settings, client) for row in settings.file.notify),
        starts=compile_starts(settings),
        page_url=settings.file.gateway.public_url or "",
        answer_keys=settings.answer_keys.public,
        on_delegation=_read_prompt("delegate"),
        builtins=gated_routes(_approval_timeouts(settings)),
        policy=_load_policy(settings),
    )
    _check_options(project, settings)
    _check_search(project)
    return project


def _load_policy(settings: Settings) -> Policy | None:
    """Return the project's policy, if it has one, with functions that can be imported. Raises ProjectError."""
    if not (path := settings.folder / POLICY_FILE).is_file():
        return None
    policy = read_policy(path)
    for compiled in policy.rules:
        if isinstance(compiled.rule.review, str):
            _make_importable(settings)
            try:
                load_target(compiled.rule.review)
            except BadTargetError as error:
                raise ProjectError(f"{path}, line {compiled.line}: {error}") from None
    return policy


def _check_options(project: Project, settings: Settings) -> None:
    """Raise ProjectError if an agent's first model does not take its settings."""
    for agent in project.agents.values():
        for name, reason in () if agent.mailbox else _unusable_options(project, agent, project.models_of(agent)[0]):
            own = getattr(agent.options, name) is not None
            place = settings.roster.at(agent.name, name) if own else settings.at("model", name)
            raise ProjectError(f"{place}: {reason}{'' if own else f' (agent {agent.name})'}")


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


def _check_search(project: Project) -> None:
    """Raises ProjectError if tools are searched and this Python cannot search."""
    if has_full_text_search():
        return
    for agent in project.agents.values():
        if not agent.mailbox and split_tools(project, agent)[1]:
            reason = "its tools are searched, and the SQLite of this Python has no FTS5"
            raise ProjectError(f"agent {agent.name}: {reason}: use another Python, or set search_tools: false")


def _with_schemas(agents: Mapping[str, Agent], settings: Settings) -> dict[str, Agent]:
    """Return the agents with checked schemas, those of pydantic models included. Raises ProjectError."""
    return {name: _with_agent_schemas(agent, settings) for name, agent in agents.items()}


def _with_agent_schemas(agent: Agent, settings: Settings) -> Agent:
    schemas = dict[str, Any]()
    for setting in ("input_schema", "output_schema"):
        written = getattr(agent, setting)
        if written is None:
            continue
        try:
            schemas[setting] = _import_schema(written, settings) if isinstance(written, str) else written
            flaw = find_schema_error(check_schema_bounds(schemas[setting]))
            reason = flaw and f"not a JSON Schema: {flaw}"
        except (BadTargetError, ValueError) as error:
            reason = str(error)
        if reason:
            raise ProjectError(f"{settings.roster.at(agent.name, setting, '')}: {reason}")
    _check_accept(agent, settings)
    return agent.model_copy(update=schemas)


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
    except (PydanticUserError, NameError) as error:
        raise BadTargetError(f"{target} has no JSON Schema: {error}") from None


def _make_importable(settings: Settings) -> None:
    folder = str(settings.folder)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that a user's module never shadows one of Perdure's


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
        raise ProjectError(f"{settings.at('tools', name)}: models do not accept this tool: {reason}")


def _native_tools(settings: Settings) -> dict[str, Tool]:
    """Return the built-in tools, with the project's approvals."""
    hosts, gates = settings.file.fetch, _approval_timeouts(settings)
    only = None if hosts.only_hosts is None else frozenset(hosts.only_hosts)
    tools = FetchTool(frozenset(hosts.allow_hosts), only_hosts=only), ReadFile(), WriteFile(), ListFiles()
    for tool in tools:
        if tool.route.name in gates:
            gate = {"approval": Approval.always, "approval_timeout": gates[tool.route.name]}
            tool.route = tool.route.model_copy(update=gate)
    return {tool.route.name: tool for tool in tools}


def _approval_timeouts(settings: Settings) -> dict[str, timedelta | None]:
    """Return the built-in tools that need approval, with their timeouts."""
    builtins = ((name, tool) for name, tool in settings.file.tools.items() if isinstance(tool, BuiltinToolSettings))
    return {name: tool.approval_timeout for name, tool in builtins if tool.approval is Approval.always}


def unpriced_budgets(project: Project) -> list[str]:
    """Return a warning for each agent whose USD budget has no effect because a model's price is unknown."""
    lines = []
    for agent in project.agents.values():
        if agent.mailbox or (agent.limits.budget_usd or project.limits.budget_usd) is None:
            continue
        judge = [agent.accept.model] if isinstance(agent.accept, Rubric) and agent.accept.model else []
        judge += reviewing_models(project.policy, agent.name) if project.policy else []
        if unknown := [model for model in (*project.models_of(agent), *judge) if project.price_of(model) is None]:
            table = " and ".join(f'[prices."{model}"]' for model in unknown)
            reason = f"agent {agent.name}: budget_usd has no effect, as the price of {', '.join(unknown)} is unknown"
            lines.append(f"{reason}: set {table}, or budget_tokens")
    return lines


def _create_outbox(settings: Settings, client: httpx.AsyncClient) -> Outbox:
    out = settings.file.outbox
    outbox: Outbox = LogOutbox(settings.home)
    if out.url:
        headers = settings.headers.get("outbox", NO_HEADERS)
        outbox = WebhookOutbox(out.url, out.effect, out.timeout, client, headers)
    return outbox if out.channels is None else ListedOutbox(outbox, out.channels)


def _create_channel(row: NotifySettings, settings: Settings, client: httpx.AsyncClient) -> Channel:
    access = settings.notify[row.name]
    sender: NoticeSender
    match row.kind:
        case "webhook":
            sender = WebhookSender(access.url, access.secret, client)
        case "slack":
            sender = SlackSender(access.url, client)
        case "apprise":
            _must_have_apprise(settings.at("notify"))
            sender = AppriseSender(access.url)
    return Channel(NoticeRoute(channel=row.name, on=row.on, patience=row.patience), row.agents, sender)


def compile_starts(settings: Settings) -> tuple[StartRule, ...]:
    """Compile the events that begin work. Raises ProjectError."""
    rules = []
    for row in settings.file.start:
        try:
            rules.append(compile_start(row.model_dump()))
        except ExpressionError as error:
            raise ProjectError(f"{settings.at('start')}: {row.name}: {error}") from None
        if row.agent is not None and row.agent not in settings.agents:
            raise ProjectError(f"{settings.at('start')}: {row.name}: there is no agent {row.agent!r}")
    return tuple(rules)


def _must_have_apprise(place: str) -> None:
    if find_spec("apprise") is None:
        raise ProjectError(f'{place}: kind = "apprise" needs the package apprise: pip install "perdure[notify]"')


def _read_prompt(name: str) -> str:
    return files("activities").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8")


def _create_tool(
    name: str,
    described: PythonToolSettings | HttpToolSettings | QueueToolSettings | SignalToolSettings,
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
        case QueueToolSettings():
            if described.task_queue == settings.task_queue:
                reason = f"{described.task_queue!r} is the task queue of this project's own worker: use another one"
                raise ProjectError(f"{settings.at('tools', name, 'task_queue')}: {reason}")
            queue = QueueRoute.model_validate(dict(described))
            return QueueTool(route.model_copy(update={"queue": queue}), _tool_schema(name, described))
        case SignalToolSettings():
            posted = route.model_copy(update={"is_posted": described.url is not None})
            return SignalTool(posted, _tool_schema(name, described), described.url, client, headers)


def _tool_schema(name: str, described: HttpToolSettings | QueueToolSettings | SignalToolSettings) -> ToolSchema:
    if not isinstance(described.input_schema, dict):
        raise ProjectError(f"perdure.toml: tools.{name}.input_schema: expected a JSON Schema, or the path of one")
    return ToolSchema(name=name, description=described.description, input_schema=described.input_schema)
