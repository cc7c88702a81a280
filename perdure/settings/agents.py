"""`agents/*.md`: an agent is a Markdown file with front matter, whose body is the prompt."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from perdure.contracts.agent import DEFAULT_AGENT, Agent
from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.contracts.model_settings import ModelOverrides, Pace
from perdure.contracts.models import StrictModel
from perdure.contracts.policy import Rubric
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.strict_input import FRONT_MATTER
from perdure.decisions.errors import format_validation_error
from perdure.decisions.tools import builtin_names, server_of_tool
from perdure.settings.file import LimitSettings, ModelNames, read_schema_file
from perdure.settings.problems import (
    ProjectError,
    all_errors,
    format_suggestion,
    join_faults,
    path_from,
    read_project_text,
)
from perdure.settings.tools import NATIVE_TOOLS

NAME_LINE = re.compile(r"^name:[ \t]*['\"]?(.*?)['\"]?[ \t]*$", re.MULTILINE)
TARGET = re.compile(r"[\w.]+:\w+")  # `module:name`, for the worker to import


class _FollowUps(StrictModel):
    sessions: tuple[Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)], ...] = ()
    """Other conversations in which its follow-ups may resume work; `x-*` matches a prefix."""


Domains = Annotated[tuple[Annotated[str, Field(pattern=r"^[^\s:/]+\.[^\s:]+$")], ...], Field(min_length=1)]


class _WebSearch(StrictModel):
    type: Literal["web_search_20250305", "web_search_20260209", "web_search_20260318"] = "web_search_20250305"
    """The version of the tool."""
    max_uses: int | None = Field(default=None, ge=1)
    """The searches of one model call."""
    allowed_domains: Domains | None = None
    """The only domains in the results, such as `example.com` or `example.com/docs`."""
    blocked_domains: Domains | None = None
    """Domains that are never in the results."""

    @model_validator(mode="after")
    def _check_domains(self) -> Self:
        if self.allowed_domains and self.blocked_domains:
            raise ValueError("takes allowed_domains or blocked_domains, not both")
        return self


class _CodeExecution(StrictModel):
    type: Literal["code_execution_20250825", "code_execution_20260120", "code_execution_20260521"] = (
        "code_execution_20250825"
    )
    """The version of the tool."""


class _ServerTools(StrictModel):
    web_search: _WebSearch | None = None
    """Searches the web."""
    code_execution: _CodeExecution | None = None
    """Runs programs in a container of the provider."""

    def to_request(self) -> tuple[dict[str, Any], ...]:
        """Return the tools as a request lists them."""
        return tuple({"name": name, **tool.model_dump(mode="json", exclude_none=True)} for name, tool in self if tool)


class _AgentLimits(LimitOverrides):
    max_running: int | None = Field(default=None, ge=1, le=1000)
    """The most runs of the agent that are [at work at once](../limits.md#places), over all workers; others wait."""
    per_owner: bool = False
    """`true`: so many of each owner."""

    @model_validator(mode="after")
    def _check_owner(self) -> Self:
        if self.per_owner and self.max_running is None:
            raise ValueError("per_owner needs max_running")
        return self


class _FrontMatter(ModelOverrides):
    name: str | None = Field(default=None, min_length=1, max_length=200)
    """The agent's name; by default the file's name without `.md`."""
    description: str = ""
    """A description for people and for agents that delegate to it."""
    model: ModelNames = ()
    """A model, or a list to try in order, in place of the project's."""
    tools: tuple[str, ...] = NATIVE_TOOLS
    """The allow-list. `server__*` allows all tools of an MCP server; built-in tools are always allowed."""
    server_tools: _ServerTools = _ServerTools.model_construct()
    """[Tools of the provider](../models.md#server-tools): a list, or a table with their settings."""
    journal: bool = True
    """The tools of the run journal."""
    fuse_reads: bool | None = None
    """As `fuse_reads` of [`[worker]`](#worker), for this agent."""
    search_tools: bool | None = None
    """`true` if the model searches for its tools. By default it does if [they are many](../tools.md#many-tools)."""
    pace: Pace | None = None
    """As `pace` of [`[model]`](#model), for this agent."""
    follow_ups: _FollowUps | None = None
    """`{}` enables the tools of [follow-ups](../follow-ups.md)."""
    peers: tuple[str, ...] = ()
    """The agents that it may [delegate](../delegation.md) to."""
    limits: _AgentLimits = _AgentLimits.model_construct()
    """The agent's [limits](#limits), and how many of its runs are at work at once."""
    input_schema: dict[str, Any] | str | None = None
    """The JSON Schema of a start's `context`; or the path of a JSON file with it, or `module:Model` of pydantic."""
    output_schema: dict[str, Any] | str | None = None
    """The JSON Schema of the [result](../results.md), or a path or model as above."""
    accept: Rubric | str | None = None
    """[The check](../accept.md) that an outcome must pass: `module:function`, or `{rubric: ..., model: ...}`."""
    mailbox: bool = False
    """`true` for an agent outside that [exchanges files](../mailbox.md); it takes only name and description."""

    @field_validator("follow_ups", mode="before")
    @classmethod
    def _accept_short_form(cls, value: Any) -> Any:
        """Accept an empty `follow_ups:` and `true` as `{}`, and `false` as unset."""
        if value is None or isinstance(value, bool):
            return None if value is False else {}
        if not isinstance(value, dict):
            raise ValueError("expected {}, or {sessions: [...]} with the conversations that they may resume in")  # noqa: TRY004
        return value

    @field_validator("server_tools", mode="before")
    @classmethod
    def _accept_list(cls, value: Any) -> Any:
        """Accept a list of names, and a name without settings."""
        named = dict.fromkeys(value) if isinstance(value, list) and all(isinstance(n, str) for n in value) else value
        if not isinstance(named, dict):
            raise ValueError("expected a list of web_search and code_execution, or a table with their settings")  # noqa: TRY004
        return {name: {} if tool is None else tool for name, tool in named.items()}

    @field_validator("accept", mode="before")
    @classmethod
    def _check_accept(cls, value: Any) -> Any:
        if isinstance(value, dict):
            try:
                return Rubric.model_validate(value)
            except ValidationError as error:
                raise ValueError(format_validation_error(error)) from None
        if value is None or (isinstance(value, str) and TARGET.fullmatch(value)):
            return value
        raise ValueError("expected module:function, or {rubric: ..., model: ...}")

    @model_validator(mode="after")
    def _check_server_tools(self) -> Self:
        if clash := next((tool["name"] for tool in self.server_tools.to_request() if tool["name"] in self.tools), None):
            raise ValueError(f"{clash} is a tool of the project and a server tool: remove one of them")
        return self

    @model_validator(mode="after")
    def _check_mailbox(self) -> Self:
        if self.mailbox and (idle := self.model_fields_set - {"name", "description", "mailbox"}):
            raise ValueError(f"an agent with a mailbox lives outside and takes no {min(idle)}")
        return self


@dataclass(frozen=True)
class Roster:
    """The agents of a project by name, their files, and the errors of files that do not load.

    An agent of such a file is not among `agents` but in `faulty`, as are agents that may delegate to it.
    """

    agents: Mapping[str, Agent]
    files: Mapping[str, Path]
    faults: Mapping[Path, ProjectError]
    faulty: Mapping[str, ProjectError] = field(default_factory=dict)

    def at(self, agent: str, setting: str, item: str | None = None) -> str:
        """Return file, line and name of an agent's setting, or of an item in it."""
        path = self.files.get(agent)
        return place_in(path, setting, item=item) if path else f"agent {agent}: {setting}"


def read_agents(
    folder: Path, tools: tuple[str, ...] | None, servers: Collection[str] = (), limits: LimitSettings | None = None
) -> Roster:
    """Read all agent files. The tools of the MCP servers `servers` are checked later, when a worker offers them.

    Without `tools`, names of tools are not checked.
    """
    default = Agent(name=DEFAULT_AGENT, description="fetches pages and writes files", tools=NATIVE_TOOLS)
    agents, files, errors = {default.name: default}, dict[str, Path](), dict[Path, ProjectError]()
    faulty = dict[str, ProjectError]()
    for path in sorted(folder.glob("*.md")):
        try:
            agent = _read_agent(path)
            _must_fit(agent, path, files, limits or LimitSettings())
            own = tuple(name for name in agent.tools if server_of_tool(name) not in servers)
            _must_be_known("tool", "tools", own, own if tools is None else tools, path)
        except ProjectError as error:
            errors[path] = faulty[_name_in(path)] = error
        else:
            agents[agent.name] = agent
            files[agent.name] = path
    existing = tuple(sorted({*agents, *faulty}))  # a broken file is reported only once
    for name, path in files.items():
        try:
            _must_be_known("agent", "peers", agents[name].peers, existing, path)
        except ProjectError as error:
            errors[path] = faulty[name] = error
    while lost := {name: peer for name in agents.keys() - faulty for peer in agents[name].peers if peer in faulty}:
        for name, peer in lost.items():
            place = place_in(files[name], "peers", item=peer)
            errors[files[name]] = faulty[name] = ProjectError(f"{place}: the file of agent {peer!r} does not load")
    sound = {name: agent for name, agent in agents.items() if name not in faulty}
    return Roster(sound, files, dict(sorted(errors.items())), faulty)


def _name_in(path: Path) -> str:
    """Return the name of an agent whose file does not load, as far as it can be read."""
    try:
        named = NAME_LINE.search(_split_front_matter(path)[0])
    except ProjectError:
        named = None
    return named[1] if named else path.stem


def with_agent_file(roster: Roster, name: str, path: Path, tools: tuple[str, ...], servers: Collection[str]) -> Roster:
    """Return the roster with the agent of another file under this name. Raises ProjectError."""
    agent = _read_agent(path).evolve(name=name)
    own = tuple(tool for tool in agent.tools if server_of_tool(tool) not in servers)
    _must_be_known("tool", "tools", own, tools, path)
    _must_be_known("agent", "peers", agent.peers, tuple(roster.agents), path)
    return replace(roster, agents={**roster.agents, name: agent}, files={**roster.files, name: path})


def _must_fit(agent: Agent, path: Path, files: Mapping[str, Path], limits: LimitSettings) -> None:
    """Raise ProjectError if its limits exceed the ceiling, or its name is taken."""
    for excess in limits.excess_of(agent.limits):
        place = place_in(path, "limits", excess.partition(" ")[0])
        raise ProjectError(f"{place}: {excess} (limits.ceiling of perdure.toml)")
    if agent.name in files:
        raise ProjectError(f"{place_in(path, 'name')}: agent {agent.name!r} is already in {files[agent.name].name}")


def _must_be_known(kind: str, setting: str, names: tuple[str, ...], existing: tuple[str, ...], path: Path) -> None:
    for name in names:
        if name not in existing:
            suggestion = format_suggestion(name, existing)
            message = f"there is no {kind} {name!r}{suggestion}; the {kind}s are: {', '.join(existing)}"
            raise ProjectError(f"{place_in(path, setting, item=name)}: {message}")


def place_in(path: Path, *setting: str, item: str | None = None) -> str:
    """Return file, line and name of a setting in an agent's file, or of an item in it, for error messages."""
    from perdure.contracts.strict_yaml import find_yaml_line

    head, _ = _split_front_matter(path)
    line = find_yaml_line(head, setting, item)
    return ": ".join(filter(None, (f"{path}{f', line {line}' if line else ''}", ".".join(setting))))


def _split_front_matter(path: Path) -> tuple[str, str]:
    """Return the front matter, with the line numbers of the file, and the body."""
    text = read_project_text(path)
    parts = FRONT_MATTER.match(text)
    if parts is None:
        raise ProjectError(f'{path}: expected front matter between two lines "---"')
    return f"\n{parts[1] or ''}", text[parts.end() :]


def _read_schema(path: Path, setting: str, written: dict[str, Any] | str | None) -> dict[str, Any] | str | None:
    """Return the schema, read from its file if it is a path. A `module:Model` is for the worker to import."""
    place = place_in(path, setting)
    if not isinstance(written, str):
        return written
    if written.endswith(".json"):
        schema = read_schema_file(path.parent.parent / path_from(written), place)
        if not isinstance(schema, dict):
            raise ProjectError(f"{place}: {written} holds no JSON Schema")
        return schema
    if TARGET.fullmatch(written):
        return written
    raise ProjectError(f"{place}: expected a JSON Schema, the path of a .json file, or module:Model")


def _read_agent(path: Path) -> Agent:
    """Read an agent file. The body is the system prompt."""
    from perdure.contracts.strict_yaml import parse_yaml  # most clients read no agents

    front, body = _split_front_matter(path)
    try:
        head = _FrontMatter.model_validate(parse_yaml(front) or {})
    except ValidationError as error:
        found = all_errors(error, _FrontMatter)
        raise join_faults([ProjectError(f"{place_in(path, *at)}: {expected}") for at, expected in found]) from None
    except ValueError as error:
        raise ProjectError(f"{path}: {error}") from None
    schemas = {name: _read_schema(path, name, getattr(head, name)) for name in ("input_schema", "output_schema")}
    return Agent.model_validate(
        {
            **dict(head),
            **schemas,
            "limits": head.limits.model_dump(include=set(LimitOverrides.model_fields), exclude_unset=True),
            "max_running": head.limits.max_running,
            "per_owner": head.limits.per_owner,
            "name": head.name or path.stem,
            "model": next(iter(head.model), None),
            "fallbacks": head.model[1:],
            "tools": tuple(dict.fromkeys(name for name in head.tools if name not in builtin_names())),
            "options": {name: getattr(head, name) for name in ModelOverrides.model_fields},
            "peers": tuple(dict.fromkeys(head.peers)),
            "prompt": body,
            "server_tools": head.server_tools.to_request(),
            "follow_ups": tuple(dict.fromkeys(head.follow_ups.sessions)) if head.follow_ups else None,
        }
    )
