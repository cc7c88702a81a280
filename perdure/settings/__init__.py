"""The settings of a project and its environment: `perdure.toml`, `agents/*.md`, and the PERDURE_* variables.

A project is the folder that holds `perdure.toml`; all files are optional. An error is one line with the file, the line
number if known, and the expected value.

file         perdure.toml
agents       agents/*.md
tools        the tables `[tools.*]` of perdure.toml
policy       policy.toml
flaws        names that do not exist, and what can never work
tables       the tables of perdure.toml that belong to features
libraries    variables that our libraries read: proxies and certificates
environment  environment variables, and checks of addresses and hosts
problems     reading project files, and their errors
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.activities.security import NO_SECRETS, Secrets, collect_secrets
from perdure.activities.storage.store import LocalStores, Stores
from perdure.answer_keys import ANSWER_KEY_VARIABLE, NO_KEYS, AnswerKeys, read_answer_keys
from perdure.codec import CODEC_KEYS_VARIABLE, AesGcmCodec, read_codec
from perdure.contracts.agent import DEFAULT_AGENT, Agent
from perdure.contracts.model_settings import Pace
from perdure.decisions.model_names import DEFAULT, provider_of
from perdure.registry import find_tool_source, load
from perdure.settings.agents import Roster, read_agents, with_agent_file
from perdure.settings.environment import (
    Deployment,
    T,
    check_key,
    check_task_queue,
    check_url,
    deployment_of,
    exports_spans,
    must_be_private,
    open_payloads,
    open_remote_stores,
    parse_endpoint,
    parse_variable,
)
from perdure.settings.file import LoadedFile, ProjectFile, header_variables_of, place_of, read_file, urls_of
from perdure.settings.libraries import check_libraries
from perdure.settings.problems import (
    ProjectError,
    collecting,
    format_suggestion,
    path_from,
    raise_all,
    resolve_path,
)
from perdure.settings.tables import feature_tables
from perdure.settings.tools import ToolServer, tool_names

if TYPE_CHECKING:
    from perdure.activities.storage.object_store import PayloadStore

__all__ = ["REHEARSAL", "Deployment", "ProjectError", "Settings", "load_settings", "read_settings"]

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
    access: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of features, by table
    deployment: Deployment | None = None
    metrics: str | None = None
    exports_spans: bool = False
    codec: AesGcmCodec | None = None
    answer_keys: AnswerKeys = NO_KEYS
    payloads: "PayloadStore | None" = None
    secrets: Secrets = NO_SECRETS
    servers: Mapping[str, ToolServer] = field(default_factory=dict)  # that offer tools, by name
    faults: tuple[ProjectError, ...] = ()  # of what workers need; agent files are apart, in the roster

    @property
    def agents(self) -> Mapping[str, Agent]:
        return self.roster.agents

    @property
    def name(self) -> str | None:
        """The name of the project, if it has one."""
        return self.file.project.name

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
        if self.base_url:
            return
        named = [("model", name) for name in (self.model, *self.fallbacks, self.file.model.summary) if name]
        for agent in self.agents.values():
            named += [(f"agent {agent.name}: model", name) for name in (agent.model, *agent.fallbacks) if name]
        providers = self.file.model.providers
        for place, name in named:
            self._check_provider(place, name)
        if self.api_key:
            return
        others = ", ".join(name for name in providers if name != DEFAULT)
        own = f"; the providers of perdure.toml are: {others}" if others else ""
        for place, name in named:
            if provider_of(name, providers)[0] == DEFAULT:
                server = "ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL of a server that has it"
                rehearsal = f"PERDURE_MODEL={REHEARSAL} answers by rule"
                raise ProjectError(f"{place} {name} needs {server}{own}; {rehearsal}")

    def _check_provider(self, place: str, model: str) -> None:
        """Raise ProjectError if a name begins with a provider that does not exist. Anthropic's have no colon."""
        front, colon, _ = model.partition(":")
        providers = self.file.model.providers
        if colon and front != DEFAULT and front not in providers:
            near = format_suggestion(front, providers)
            others = ", ".join(providers) or "none"
            server = "a name with a colon of its own needs ANTHROPIC_BASE_URL, the server that has it"
            raise ProjectError(f"{place} {model}: there is no provider {front!r}{near}; there are: {others}; {server}")

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
        """Raise ProjectError if variables of headers are not set. For workers, which send headers."""
        raise_all(
            [
                ProjectError(f"{self.at(*table.split('.'), 'headers_env')}.{header}: {variable} is not set")
                for table, (_, variables) in header_variables_of(self.file).items()
                for header, variable in variables.items()
                if header not in self.headers.get(table, {})
            ]
        )

    def at(self, *setting: str) -> str:
        """Return file, line and name of a setting in `perdure.toml`."""
        return place_of(self.path, setting)

    def agent(self, name: str) -> Agent:
        """Return the agent of this name. Raises ProjectError if it does not exist, or its file does not load."""
        if name in self.roster.faulty:
            raise self.roster.faulty[name]
        if name not in self.agents:
            if not self.path.is_file() and not (self.folder / "agents").is_dir():
                own = f"{self.folder} is no project: it has no perdure.toml and no agents/"
                raise ProjectError(f"there is no agent {name!r}; {own}. Start in the project's folder")
            near = format_suggestion(name, self.agents)
            raise ProjectError(f"there is no agent {name!r}{near}; the agents are: {', '.join(self.agents)}")
        return self.agents[name]

    def check_reference(self, name: str | None, place: str) -> None:
        """Raise ProjectError if `place` names an agent that does not exist. One that does not load is another fault."""
        if name is not None and name not in {*self.agents, *self.roster.faulty}:
            raise ProjectError(f"{place}: there is no agent {name!r}{format_suggestion(name, self.agents)}")

    def with_candidate(self, name: str, path: Path | None, model: str | None) -> "Settings":
        """Return the settings with the agent of another file, or another model, for this agent. Raises ProjectError."""
        self.check_agent(name)
        roster, settings = self.roster, self
        if path is not None:
            roster = with_agent_file(roster, name, path, tool_names(self.file.tools), self.servers)
        if model is not None:
            changed = roster.agents[name].evolve(model=model, fallbacks=())
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
    """Load the settings in force. Raises ProjectError, with all faults of all files.

    Faults of agent files alone are in the roster: other agents work. If not `strict`, so are what workers alone need:
    tools, channels, MCP servers and the like are left out, and reported in `faults`.
    """
    settings, is_usable = read_settings(os.environ if environment is None else environment, folder)
    if settings.faults and (strict or not is_usable):
        raise_all([*settings.faults, *settings.roster.faults.values()])
    return settings


def read_settings(env: Mapping[str, str], folder: Path | None = None) -> tuple[Settings, bool]:
    """Return the settings that load, and whether the rest is for workers alone. Raises ProjectError (environment)."""

    def read(variable: str | None, parse: Callable[[str], T]) -> T | None:
        return parse_variable(variable, env.get(variable), parse) if variable else None

    check_libraries(env)
    path = _project_file(read("PERDURE_CONFIG", path_from), folder)
    root = resolve_path(path).parent
    faults = list[ProjectError]()
    read_toml = read_file(path) if path.is_file() else LoadedFile(ProjectFile())
    file, servers = read_toml.file, _read_servers(root, env, faults)
    home = find_home(root, env)
    key, url = read("ANTHROPIC_API_KEY", check_key), read("ANTHROPIC_BASE_URL", check_url)
    must_be_private("ANTHROPIC_BASE_URL", url, key)
    keys = _keys_of_providers(env, file)
    known = None if faults or read_toml.faults else tool_names(file.tools)  # else one fault would be reported as many
    roster = read_agents(root / "agents", known, servers, file.limits)
    faults[:0] = read_toml.faults
    headers, access = _headers_of(env, file, faults), _access_of(env, file, faults)
    model, *fallbacks = _models_to_ask(env, file, roster.agents, is_reachable=bool(key or url))
    settings = Settings(
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
        faults=tuple(faults),
        api_key=key,
        base_url=url,
        fallbacks=tuple(fallbacks),
        keys=keys,
        headers=headers,
        access=access,
        deployment=deployment_of(env),
        metrics=read("PERDURE_METRICS", parse_endpoint),
        exports_spans=exports_spans(env),
        codec=read(CODEC_KEYS_VARIABLE, read_codec),
        answer_keys=read(ANSWER_KEY_VARIABLE, read_answer_keys) or NO_KEYS,
        payloads=read("PERDURE_PAYLOADS", open_payloads),
        secrets=collect_secrets(env, _urls_of(file, servers), _named_secrets(env, file, servers)),
    )
    return settings, read_toml.is_usable


def _read_servers(root: Path, env: Mapping[str, str], faults: list[ProjectError]) -> Mapping[str, ToolServer]:
    """Return the servers that offer tools and load, by name. The errors of the others are added to `faults`."""
    source = find_tool_source()
    if source is None or not (path := root / source.file).is_file():
        return {}
    servers: Mapping[str, ToolServer] = load(source.read)(path, env, faults)
    return servers


def _keys_of_providers(env: Mapping[str, str], file: ProjectFile) -> dict[str, str]:
    """Return the keys that are set, by provider. Raises ProjectError if one would be sent to an unsafe address."""
    keys: dict[str, str] = {}
    for name, provider in file.model.providers.items():
        variable = provider.api_key_env
        key = parse_variable(variable, env.get(variable), check_key) if variable else None
        must_be_private(f"model.providers.{name}.base_url", provider.base_url, key)
        if key:
            keys[name] = key
    return keys


def find_home(root: Path, env: Mapping[str, str]) -> Path:
    """Return the folder of the state of the project in `root`. Raises ProjectError."""
    variable = "PERDURE_HOME"
    return resolve_path(parse_variable(variable, env.get(variable), path_from) or root / ".perdure")


def current_home() -> Path:
    """Return the folder of the state of the current project, whose files need not load. Raises ProjectError."""
    variable = "PERDURE_CONFIG"
    path = _project_file(parse_variable(variable, os.environ.get(variable), path_from), None)
    return find_home(resolve_path(path).parent, os.environ)


def _urls_of(file: ProjectFile, servers: Mapping[str, ToolServer]) -> dict[str, str]:
    """Return the addresses in the project's files, by the setting's name."""
    return urls_of(file) | {name: url for server in servers.values() for name, url in server.urls.items()}


def _headers_of(env: Mapping[str, str], file: ProjectFile, faults: list[ProjectError]) -> dict[str, dict[str, str]]:
    """Return the headers by table, if their variables are set. Bad values and addresses are added to `faults`."""
    headers = dict[str, dict[str, str]]()
    for table, (url, variables) in header_variables_of(file).items():
        with collecting(faults):
            values = {header: parse_variable(name, env.get(name), check_key) for header, name in variables.items()}
            present = {header: value for header, value in values.items() if value}
            address = f"{table}.{'base_url' if table.startswith('model.') else 'url'}"
            must_be_private(address, url, "".join(present.values()))
            headers[table] = present
    return headers


def _access_of(env: Mapping[str, str], file: ProjectFile, faults: list[ProjectError]) -> dict[str, Any]:
    """Return what features read of the environment, by table. Values that are not valid are added to `faults`."""
    rows = feature_tables().items()
    return {name: table.read(table.of(file), env, faults) for name, table in rows if table.read}


def _project_file(configured: Path | None, folder: Path | None) -> Path:
    if configured and not configured.is_file():
        raise ProjectError(f"PERDURE_CONFIG names {configured}, and there is no such file")
    return configured or (folder or current_folder()) / "perdure.toml"


def _named_secrets(
    env: Mapping[str, str], file: ProjectFile, servers: Mapping[str, ToolServer]
) -> Iterator[tuple[str, str]]:
    """Yield what the project's files name as secrets: keys, headers, and the environments of servers of tools."""
    providers, webhooks = file.model.providers.values(), file.gateway.webhooks.values()
    holders = [*(table.api_key_env for table in providers), *(webhook.secret_env for webhook in webhooks)]
    for table in feature_tables().values():
        holders += table.secrets(table.of(file)) if table.secrets else ()
    yield from ((name, env[name].strip()) for name in holders if name and name in env)
    variables = [name for _, names in header_variables_of(file).values() for name in names.values()]
    headers = [(name, env.get(name, "").strip()) for name in variables]
    for server in servers.values():
        yield from server.env.items()
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
