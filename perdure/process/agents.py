"""The agents of a project and their tools, as this process knows them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.contracts.agent import Agent
from perdure.contracts.model_settings import Pace
from perdure.contracts.models import FrozenModel
from perdure.contracts.tool import Approval, Effect, ToolKind, ToolRoute
from perdure.extras import MissingExtraError, naming_extras
from perdure.settings import Settings
from perdure.settings.tools import BuiltinToolSettings, tool_route

if TYPE_CHECKING:
    from perdure.process.project import ToolOffer


class ToolDetails(FrozenModel):
    """A tool of an agent. What this process cannot know, as the tool does not load here, is null."""

    name: str
    kind: ToolKind | None
    effect: Effect | None
    approval: Approval | None  # as the project's files say; a policy may ask, too
    approval_timeout_seconds: float | None  # null, too, if a call waits for as long as it takes
    timeout_seconds: float | None  # of one attempt
    description: str
    input_schema: dict[str, Any] | None  # the JSON Schema of the arguments


class AgentDetails(FrozenModel):
    """An agent. Built-in tools, such as `ask_human`, are not among its `tools`."""

    name: str
    description: str
    models: tuple[
        str, ...
    ]  # in the order in which they are asked, by this process's environment; none of an external agent
    tools: tuple[ToolDetails, ...]
    server_tools: tuple[str, ...]  # of the models' provider
    limits: dict[str, Any]  # its own
    pace: Pace | None
    peers: tuple[str, ...]  # agents that it may delegate to
    external: bool  # it lives outside, and exchanges files
    input_schema: dict[str, Any] | None  # of the `context` of a start; null, too, if it does not load here
    output_schema: dict[str, Any] | None  # of the `result` of a run; null, too, if it does not load here


class AgentList(FrozenModel):
    """The agents of a project. `faulty` names those whose files do not load."""

    agents: tuple[AgentDetails, ...]
    faulty: tuple[str, ...] = ()


def describe_agents(settings: Settings) -> AgentList:
    """Return the agents of the project, with the tools that load here. It imports the project's Python tools."""
    tools, agents = {tool.name: tool for tool in _configured_tools(settings)}, settings.agents
    with suppress(MissingExtraError), naming_extras():
        from perdure.process.project import show_loadable

        offer = show_loadable(settings)
        tools, agents = {**tools, **_loaded_tools(offer)}, offer.agents
    return AgentList(
        agents=tuple(_describe_agent(agent, tools, settings) for agent in agents.values()),
        faulty=tuple(settings.roster.faulty),
    )


def _configured_tools(settings: Settings) -> Iterator[ToolDetails]:
    for name, described in settings.file.tools.items():
        if not isinstance(described, BuiltinToolSettings):
            schema = getattr(described, "input_schema", None)
            effect = described.effect  # of an MCP tool it may come from its annotations
            route = tool_route(name, described, effect=effect or Effect.once)
            yield _describe_tool(route, getattr(described, "description", None) or "", schema).evolve(effect=effect)


def _loaded_tools(offer: "ToolOffer") -> dict[str, ToolDetails]:
    return {
        name: _describe_tool(tool.route, tool.schema.description, tool.schema.input_schema)
        for name, tool in offer.tools.items()
    }


def _describe_tool(route: ToolRoute, description: str, schema: Any) -> ToolDetails:
    return ToolDetails(
        name=route.name,
        kind=route.kind,
        effect=route.effect,
        approval=route.approval,
        approval_timeout_seconds=route.approval_timeout.total_seconds() if route.approval_timeout else None,
        timeout_seconds=route.timeout.total_seconds(),
        description=description,
        input_schema=schema if isinstance(schema, dict) else None,
    )


def _unknown_tool(name: str) -> ToolDetails:
    return ToolDetails(
        name=name,
        kind=None,
        effect=None,
        approval=None,
        approval_timeout_seconds=None,
        timeout_seconds=None,
        description="",
        input_schema=None,
    )


def _describe_agent(agent: Agent, tools: Mapping[str, ToolDetails], settings: Settings) -> AgentDetails:
    models = (agent.model, *agent.fallbacks) if agent.model else (settings.model, *settings.fallbacks)
    return AgentDetails(
        name=agent.name,
        description=agent.description,
        models=() if agent.mailbox else models,
        tools=() if agent.mailbox else tuple(tools.get(name) or _unknown_tool(name) for name in agent.tools),
        server_tools=tuple(tool["name"] for tool in agent.server_tools),
        limits=agent.limits.model_dump(mode="json", exclude_none=True),
        pace=None if agent.mailbox else agent.pace or settings.file.model.pace or Pace.live,
        peers=agent.peers,
        external=agent.mailbox,
        input_schema=agent.input_schema if isinstance(agent.input_schema, dict) else None,
        output_schema=agent.output_schema if isinstance(agent.output_schema, dict) else None,
    )
