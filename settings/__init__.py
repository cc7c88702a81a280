"""The settings of a project and its environment: `perdure.toml`, `agents/*.md`, and the PERDURE_* variables.

A project is the folder that holds `perdure.toml`; all files are optional. An error is one line with the file, the line
number if known, and the expected value.

file         perdure.toml
agents       agents/*.md
tools        the tables `[tools.*]` of perdure.toml
mcp          .mcp.json
policy       policy.toml
access       keys, addresses and headers
notify       the channels of notices
start        the events that begin work
libraries    variables that our libraries read: proxies and certificates
environment  the worker's build, metrics, spans, encryption, large payloads
problems     reading project files, and their errors
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from activities.mcp.config import HttpServer, McpServer, StdioServer
from activities.security.secrets import NO_SECRETS, Secrets, collect_secrets
from activities.storage.store import LocalStores, Stores
from contracts.agent import DEFAULT_AGENT, Agent
from contracts.model_settings import Pace
from decisions.model_names import DEFAULT, provider_of
from perdure.answer_keys import ANSWER_KEY_VARIABLE, NO_KEYS, AnswerKeys, read_answer_keys
from perdure.codec import CODEC_KEYS_VARIABLE, AesGcmCodec, read_codec
from settings.access import check_key, check_url, must_be_private
from settings.agents import Roster, read_agents, with_agent_file
from settings.environment import (
    Deployment,
    T,
    check_task_queue,
    deployment_of,
    exports_spans,
    open_payloads,
    open_remote_stores,
    parse_endpoint,
    parse_variable,
)
from settings.file import ProjectFile, header_variables_of, place_of, read_file, urls_of
from settings.libraries import check_libraries
from settings.mcp import NAME as MCP_FILE
from settings.mcp import read_servers
from settings.notify import NotifyAccess, missing_variables, read_access
from settings.problems import ProjectError, format_suggestion, path_from, resolve_path
from settings.tools import tool_names

if TYPE_CHECKING:
    from activities.storage.object_store import PayloadStore

__all__ = ["REHEARSAL", "Deployment", "ProjectError", "Settings", "load_settings"]

DEFAULT_MODEL = "claude-sonnet-5-5"
REHEARSAL = "rehearsal"

# The kinds of providers that run them, from the Claude Platform Docs of November 2026.
SERVER_TOOL_KINDS = {"web_search": ("messages", "vertex"), "code_execution": ("messages",)}


@dataclass(frozen=True)
class Settings:
    """The settings in force. `folder` is the project's, `path` its file; `home` holds all state.

    `workspaces` has a folder for each run. `store` is the URL of the object store for the runs' segments and ledgers;
    without it they are in the workspaces. `payloads` stores payloads that are too large for Temporal's history.
    `fallbacks` are asked if `model` cannot answer; `keys` are the keys by provider. `headers` are sent by tools and the
    outbox, by table: `tools.NAME`, `outbox`. `metrics` is the "address:port" of the Prometheus endpoint.
    """

    folder: Path
    path: Path
    home: Path
    workspaces: Path
    store: str | None
    task_queue: str
    model: str
    file: ProjectFile
    roster: Roster
    api_key: str | None = field(repr=False)
    base_url: str | None
    fallbacks: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    notify: Mapping[str, NotifyAccess] = field(default_factory=dict, repr=False)
    deployment: Deployment | None = None
    metrics: str | None = None
    exports_spans: bool = False
    codec: AesGcmCodec | None = None
    answer_keys: AnswerKeys = NO_KEYS
    payloads: "PayloadStore | None" = None
    secrets: Secrets = NO_SECRETS
    servers: Mapping[str, McpServer] = field(default_factory=dict)  # of MCP, by name

    @property
    def agents(self) -> Mapping[str, Agent]:
        return self.roster.agents

    @cached_property
    def stores(self) -> Stores:
        """The stores of runs and of uploads. Raises ProjectError."""
        remote = parse_variable("PERDURE_STORE", self.store, open_remote_stores)
        return remote or LocalStores(self.workspaces)

    @property
    def is_rehearsal(self) -> bool:
        """True if the rehearsal model answers: `PERDURE_MODEL` names it, or no model, key or address is set."""
        return self.model == REHEARSAL

    def check_models(self) -> None:
        """Raise ProjectError if a model in use has neither key nor address, or no batches for its pace.

        For workers: clients have no key.
        """
        for agent in self.agents.values():
            if not agent.mailbox:
                self.check_pace(agent.name, agent.pace or self.file.model.pace)
        if self.is_rehearsal:
            return
        self._check_server_tools()
        if self.api_key or self.base_url:
            return
        named = [("model", name) for name in (self.model, *self.fallbacks, self.file.model.summary) if name]
        for agent in self.agents.values():
            named += [(f"agent {agent.name}: model", name) for name in (agent.model, *agent.fallbacks) if name]
        providers = self.file.model.providers
        others = ", ".join(name for name in providers if name != DEFAULT)
        own = f"; the providers of perdure.toml are: {others}" if others else ""
        for place, name in named:
            if provider_of(name, providers)[0] == DEFAULT:
                server = "ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL of a server that has it"
                rehearsal = f"PERDURE_MODEL={REHEARSAL} answers by rule"
                raise ProjectError(f"{place} {name} needs {server}{own}; {rehearsal}")

    def _check_server_tools(self) -> None:
        """Raise ProjectError if a model of an agent is at a provider that does not have its server tools."""
        providers = self.file.model.providers
        for agent in self.agents.values():
            models = (agent.model, *agent.fallbacks) if agent.model else (self.model, *self.fallbacks)
            kinds = {
                name: providers[provider].kind
                for name in models
                if (provider := provider_of(name, providers)[0]) in providers
            }
            for tool in agent.server_tools:
                for model, kind in kinds.items():
                    if kind not in SERVER_TOOL_KINDS[tool["name"]]:
                        place = self.roster.at(agent.name, "server_tools", tool["name"])
                        raise ProjectError(
                            f"{place}: {model} is at a provider of kind {kind}, which does not have {tool['name']}"
                        )

    def check_headers(self) -> None:
        """Raise ProjectError if the variable of a header is not set. For workers, which send headers."""
        for table, (_, variables) in header_variables_of(self.file).items():
            for header, variable in variables.items():
                if header not in self.headers.get(table, {}):
                    raise ProjectError(f"{self.at(*table.split('.'), 'headers_env')}.{header}: {variable} is not set")

    def check_notify(self) -> None:
        """Raise ProjectError if the variable of a channel is not set. For workers, which send notices."""
        for name, variable in missing_variables(self.file.notify, self.notify):
            raise ProjectError(f"{self.at('notify')}: {name}: {variable} is not set")

    def at(self, *setting: str) -> str:
        """Return file, line and name of a setting in `perdure.toml`."""
        return place_of(self.path, setting)

    def agent(self, name: str) -> Agent:
        """Return the agent of this name. Raises ProjectError if it does not exist."""
        if name not in self.agents:
            near = format_suggestion(name, self.agents)
            raise ProjectError(f"there is no agent {name!r}{near}; the agents are: {', '.join(self.agents)}")
        return self.agents[name]

    def with_candidate(self, name: str, path: Path | None, model: str | None) -> "Settings":
        """Return the settings with the agent of another file, or another model, for this agent. Raises ProjectError."""
        self.check_agent(name)
        roster, settings = self.roster, self
        if path is not None:
            roster = with_agent_file(roster, name, path, tool_names(self.file.tools), self.servers)
        if model is not None:
            changed = roster.agents[name].model_copy(update={"model": model, "fallbacks": ()})
            roster = replace(roster, agents={**roster.agents, name: changed})
            settings = replace(self, model=model, fallbacks=())  # else a project without a model would rehearse it
        return replace(settings, roster=roster)

    def check_agent(self, name: str | None) -> None:
        """Raise ProjectError if this agent cannot run here. Without a name it is the default agent."""
        if name is not None and self.agent(name).mailbox:
            bridge = f"perdure mail FOLDER --agent {name}"
            raise ProjectError(f"agent {name!r} lives outside: write to its mailbox ({bridge}), or delegate to it")

    def check_pace(self, agent: str | None, pace: Pace | None) -> None:
        """Raise ProjectError if the pace is `batch` and the agent's model has no batches."""
        if pace is not Pace.batch:
            return
        model = self.agent(agent or DEFAULT_AGENT).model or self.model
        provider, _ = provider_of(model, self.file.model.providers)
        described = self.file.model.providers.get(provider)
        kind = REHEARSAL if self.is_rehearsal else described.kind if described else "messages"
        if kind != "messages":
            raise ProjectError(f"model {model} ({kind}) has no batches: use pace live, or a model of {DEFAULT}")


def current_folder() -> Path:
    """Return the current folder. Raises ProjectError if it no longer exists."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ProjectError(f"the current folder cannot be used ({error.strerror}): change to another one") from None


def load_settings(
    environment: Mapping[str, str] | None = None, folder: Path | None = None, *, strict: bool = True
) -> Settings:
    """Load the settings in force. Raises ProjectError. If not `strict`, broken agent files are listed in the roster."""
    env = os.environ if environment is None else environment

    def read(variable: str | None, parse: Callable[[str], T]) -> T | None:
        return parse_variable(variable, env.get(variable), parse) if variable else None

    check_libraries(env)
    path = _project_file(read("PERDURE_CONFIG", path_from), folder)
    root = resolve_path(path).parent
    file = read_file(path) if path.is_file() else ProjectFile()
    servers = read_servers(root / MCP_FILE, env)
    home = resolve_path(read("PERDURE_HOME", path_from) or root / ".perdure")
    key, url = read("ANTHROPIC_API_KEY", check_key), read("ANTHROPIC_BASE_URL", check_url)
    must_be_private("ANTHROPIC_BASE_URL", url, key)
    keys = {name: read(provider.api_key_env, check_key) for name, provider in file.model.providers.items()}
    for name, provider in file.model.providers.items():
        must_be_private(f"model.providers.{name}.base_url", provider.base_url, keys[name])
    roster = read_agents(root / "agents", tool_names(file.tools), servers, file.limits)
    if strict and roster.faults:
        raise next(iter(roster.faults.values()))
    model, *fallbacks = _models_to_ask(env, file, roster.agents, is_reachable=bool(key or url))
    return Settings(
        folder=root,
        path=path,
        home=home,
        workspaces=resolve_path(read("PERDURE_WORKSPACE", path_from) or home / "runs"),
        store=env.get("PERDURE_STORE") or None,
        task_queue=read("PERDURE_TASK_QUEUE", check_task_queue) or "perdure",
        model=model,
        file=file,
        roster=roster,
        servers=servers,
        api_key=key,
        base_url=url,
        fallbacks=tuple(fallbacks),
        keys={name: value for name, value in keys.items() if value},
        headers=_headers_of(env, file),
        notify=read_access(file.notify, env),
        deployment=deployment_of(env),
        metrics=read("PERDURE_METRICS", parse_endpoint),
        exports_spans=exports_spans(env),
        codec=read(CODEC_KEYS_VARIABLE, read_codec),
        answer_keys=read(ANSWER_KEY_VARIABLE, read_answer_keys) or NO_KEYS,
        payloads=read("PERDURE_PAYLOADS", open_payloads),
        secrets=collect_secrets(env, _urls_of(file, servers), _named_secrets(env, file, servers)),
    )


def _urls_of(file: ProjectFile, servers: Mapping[str, McpServer]) -> dict[str, str]:
    """Return the addresses in the project's files, by the setting's name."""
    remote = [server for server in servers.values() if isinstance(server, HttpServer)]
    return urls_of(file) | {f"mcpServers.{server.name}.url": server.url for server in remote}


def _headers_of(env: Mapping[str, str], file: ProjectFile) -> dict[str, dict[str, str]]:
    """Return the headers by table, if their variables are set. Raises ProjectError for a bad value or address."""
    headers = dict[str, dict[str, str]]()
    for table, (url, variables) in header_variables_of(file).items():
        values = {header: parse_variable(name, env.get(name), check_key) for header, name in variables.items()}
        headers[table] = {header: value for header, value in values.items() if value}
        must_be_private(
            f"{table}.{'base_url' if table.startswith('model.') else 'url'}", url, "".join(headers[table].values())
        )
    return headers


def _project_file(configured: Path | None, folder: Path | None) -> Path:
    if configured and not configured.is_file():
        raise ProjectError(f"PERDURE_CONFIG names {configured}, and there is no such file")
    return configured or (folder or current_folder()) / "perdure.toml"


def _named_secrets(
    env: Mapping[str, str], file: ProjectFile, servers: Mapping[str, McpServer]
) -> Iterator[tuple[str, str]]:
    """Yield what the project's files name as secrets: keys, headers, and the environments of MCP servers."""
    providers, webhooks = file.model.providers.values(), file.gateway.webhooks.values()
    holders = [*(table.api_key_env for table in providers), *(webhook.secret_env for webhook in webhooks)]
    holders += [variable for row in file.notify for variable in (row.url_env, row.secret_env)]
    yield from ((name, env[name].strip()) for name in holders if name and name in env)
    variables = [name for _, names in header_variables_of(file).values() for name in names.values()]
    headers = [(name, env.get(name, "").strip()) for name in variables]
    for server in servers.values():
        if isinstance(server, StdioServer):
            yield from server.env.items()
        else:
            headers += server.headers.items()
    for name, value in headers:  # with and without a scheme such as `Bearer`
        yield name, value
        yield name, value.partition(" ")[2].strip()


def _models_to_ask(
    env: Mapping[str, str], file: ProjectFile, agents: Mapping[str, Agent], *, is_reachable: bool
) -> tuple[str, ...]:
    """Return the models to ask, in order: the rehearsal model if the project has no model, key or address.

    A project that names a model never rehearses by itself: a missing key is an error when a worker starts.
    """
    if env.get("PERDURE_MODEL"):
        return (env["PERDURE_MODEL"],)
    is_named = file.model.default or any(agent.model for agent in agents.values())
    return file.model.default or ((DEFAULT_MODEL,) if is_reachable or is_named else (REHEARSAL,))
