"""`perdure.toml`: its settings, and reading it."""

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from perdure.contracts.model_settings import BatchSettings, ModelOverrides, Pace
from perdure.contracts.models import HEARTBEAT_TIMEOUT, MAX_NESTING, Duration, StrictModel
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.strict_input import NESTED, JsonError, parse_strict_json, plain_reason
from perdure.decisions.model_names import DEFAULT
from perdure.decisions.run.limits import DEFAULTS, apply_requested, format_excess, values_set_in
from perdure.registry import FeatureError, features, use, use_of_project
from perdure.settings.environment import HeaderVariables, check_host, check_url
from perdure.settings.problems import ProjectError, all_errors, collecting, path_from, read_project_text
from perdure.settings.tables import feature_tables
from perdure.settings.tools import TOOL_NAME, BuiltinToolSettings, ToolName, ToolSettings, name_error, with_kind

# The tables that workers and the gateway alone need, as those of features; nothing is used of a faulty one.
OF_WORKERS = frozenset({"tools", "fetch", "prices", "gateway"})


def _parse_model_names(value: Any) -> Any:
    """Return the names of models as a tuple. Raises ValueError."""
    if value is None:  # an empty setting in YAML
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError("expected the name of a model, or a list of names")
    return tuple(dict.fromkeys(name.strip() for name in names))


HostPattern = Annotated[str, AfterValidator(check_host)]
ModelNames = Annotated[tuple[str, ...], BeforeValidator(_parse_model_names, json_schema_input_type=str | list[str])]
ProviderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]


RATES = frozenset({"requests_per_minute", "tokens_per_minute", "shared"})


class ProviderSettings(StrictModel):
    """A model endpoint. Clouds use their usual credentials, or the bearer token in `api_key_env`."""

    kind: Literal["messages", "openai", "bedrock", "vertex", "relay"] = "messages"
    """A server of the Messages API or, with `openai`, of the Chat Completions API; Claude on AWS Bedrock or Google
    Vertex; or no model, but [the way to a tool](../a2a.md#agents-elsewhere-as-peers)."""
    base_url: str | None = Field(default=None, pattern=r"^https?://")
    """The URL of the server. Required for `messages` and `openai`; overrides the address of a cloud."""
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The variable that holds the key or bearer token."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of each request, by the variables that hold their values."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """The most requests a minute: of each worker or, if `shared`, of all workers of the task queue together."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """The most tokens a minute, sent and received, of all workers together. It needs `shared`."""
    shared: bool = False
    """`true`: the workers of the task queue [share the limits](../limits.md#one-limit-for-the-fleet)."""
    region: str | None = Field(default=None, min_length=1)
    """The region. Required for `bedrock` and `vertex`."""
    project: str | None = Field(default=None, min_length=1)
    """The Google Cloud project. Required for `vertex`."""

    @field_validator("base_url", mode="before")
    @classmethod
    def _check_base_url(cls, base_url: Any) -> Any:
        return check_url(base_url) if isinstance(base_url, str) else base_url

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.region and not self.is_cloud:
            raise ValueError('a region is for kind = "bedrock" or "vertex"')
        if self.project and self.kind != "vertex":
            raise ValueError('a project is for kind = "vertex"')
        if self.is_cloud and not self.region:
            raise ValueError(f'kind = "{self.kind}" needs a region')
        if self.kind == "vertex" and not self.project:
            raise ValueError('kind = "vertex" needs a project')
        if self.is_relay and (extra := self.model_fields_set - {"kind"}):
            raise ValueError(f'kind = "relay" calls no server, and takes no {min(extra)}')
        return self

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if self.tokens_per_minute and not self.shared:
            raise ValueError("tokens_per_minute is a limit of all workers together: set shared = true")
        if self.shared and not (self.requests_per_minute or self.tokens_per_minute):
            raise ValueError("shared needs requests_per_minute or tokens_per_minute")
        if self.shared and self.requests_per_minute is not None and self.requests_per_minute < 1:
            raise ValueError("shared needs requests_per_minute of 1 or more")
        return self

    @property
    def is_cloud(self) -> bool:
        """True for Claude at a cloud, with the cloud's address and credentials."""
        return self.kind in ("bedrock", "vertex")

    @property
    def is_relay(self) -> bool:
        """True for a provider whose models are tools, which cost nothing here."""
        return self.kind == "relay"


class ModelSettings(ModelOverrides):
    default: ModelNames = ()
    """A model, or a list to try in order: `provider:model`, or a model of `anthropic`."""
    pace: Pace | None = None
    """`batch` sends model calls in [batches](../batches.md); by default `live`."""
    batch: BatchSettings = BatchSettings.model_construct()
    record_thinking: bool = False
    """`true` writes the text of thinking to `trace.jsonl` and records. History always has it: the API wants it back."""
    window: int | None = Field(default=None, ge=1000)
    """The context window in tokens. By default known for Claude models, else 200,000."""
    summary: str | None = Field(default=None, min_length=1)
    """The model that writes summaries. By default a small one for Claude models, else the model itself."""
    providers: dict[ProviderName, ProviderSettings] = Field(default_factory=dict)

    @field_validator("providers")
    @classmethod
    def _check_providers(cls, providers: dict[str, ProviderSettings]) -> dict[str, ProviderSettings]:
        for name, provider in providers.items():
            if name == DEFAULT and provider.model_fields_set - RATES:
                raise ValueError(f"{name}: takes {', '.join(sorted(RATES))} only; its address and key are ANTHROPIC_*")
            if name != DEFAULT and not provider.is_cloud and not provider.is_relay and not provider.base_url:
                raise ValueError(f"{name}: needs a base_url")
        return providers


class FetchSettings(StrictModel):
    allow_hosts: tuple[str, ...] = ()
    """Hosts that may have private addresses: `host` (any port) or `host:port`."""
    only_hosts: tuple[HostPattern, ...] | None = None
    """The only hosts that may be fetched, apart from `allow_hosts`: `host`, `*.host` or `host:port`. By default all
    public hosts. Ports other than 80 and 443 must be listed here or in `allow_hosts`."""


_NOT_OF_PROXIES = frozenset({"authorization", "cookie", "host", "origin"})
SlackUser = Annotated[str, Field(pattern=r"^[A-Z0-9]{1,64}$")]
PersonName = Annotated[str, Field(min_length=1, max_length=200)]


class WebhookSettings(StrictModel):
    """The sender of requests to `/v1/webhooks/NAME`, and its signature."""

    scheme: Literal["standard", "slack", "github"]
    """The signature scheme."""
    secret_env: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The variable that holds the secret, 16 characters or more."""
    platforms: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """The platforms whose messages a `standard` sender may publish. Other schemes are for their own platform."""
    people: dict[SlackUser, PersonName] = Field(default_factory=dict)
    """Of `slack`: the people whose [buttons](../notices.md#answers-from-slack) answer, by their ids at Slack."""

    @model_validator(mode="after")
    def _check_platforms(self) -> Self:
        if self.scheme == "standard" and not self.platforms:
            raise ValueError('platforms: name those that this sender may speak for, such as ["discord"]')
        if self.people and self.scheme != "slack":
            raise ValueError("people: is for the scheme slack; leave it out")
        if self.scheme != "standard" and self.platforms:
            raise ValueError(f"platforms: the scheme {self.scheme} speaks for {self.scheme} alone; leave it out")
        return self


def _check_network(text: str) -> str:
    """Return an address or network in its usual form. Raises ValueError."""
    network = ip_network(text)
    if network.prefixlen == 0:
        raise ValueError(f"{text} is every address: name those of the proxy")
    return str(network)


Network = Annotated[str, AfterValidator(_check_network)]


class GatewaySettings(StrictModel):
    public_url: str | None = None
    """The address at which people open the gateway's page; notices link to it."""
    proxy_header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]{1,100}$")
    """The header in which a [proxy](../gateway.md#people-behind-a-proxy) names the person who has signed in at it, such
    as `X-Forwarded-User`. Needs `proxy_addresses`."""
    proxy_addresses: tuple[Network, ...] = Field(default=(), max_length=100)
    """The proxy's addresses or networks, such as `10.0.0.0/8`: `proxy_header` is ignored from any other."""
    proxy_scopes: tuple[Literal["runs:start", "runs:read", "human:answer"], ...] = ("runs:read",)
    """The scopes of each person whom the proxy names."""
    webhooks: dict[Annotated[str, Field(pattern=TOOL_NAME)], WebhookSettings] = Field(default_factory=dict)

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str | None) -> str | None:
        return None if url is None else check_url(url)

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        if self.proxy_header and not self.proxy_addresses:
            raise ValueError("proxy_header: needs proxy_addresses, or any client could name a person")
        if not self.proxy_header and self.model_fields_set & {"proxy_addresses", "proxy_scopes"}:
            raise ValueError("proxy_header: name the header in which the proxy names the person, or leave out proxy_…")
        if self.proxy_header and self.proxy_header.lower() in _NOT_OF_PROXIES:
            raise ValueError(f"proxy_header: {self.proxy_header} has another meaning; use one such as X-Forwarded-User")
        return self


class PriceSettings(StrictModel):
    """USD per million tokens, in place of the built-in prices."""

    input: float = Field(ge=0)
    """Input tokens."""
    output: float = Field(ge=0)
    """Output tokens."""
    cache_read: float = Field(default=0, ge=0)
    """Input tokens read from the cache."""
    cache_write: float = Field(default=0, ge=0)
    """Input tokens written to the cache, for 5 minutes."""
    cache_write_1h: float | None = Field(default=None, ge=0)
    """Input tokens written to the cache for an hour; by default 1.6 times `cache_write`."""


class WorkerSettings(StrictModel):
    """A worker's capacity and timing, and what its namespace has."""

    max_concurrent_activities: int = Field(default=500, ge=1, le=10_000)
    """Concurrent model calls, tool calls and file operations. Others wait on the server or run on another worker."""
    max_concurrent_workflow_tasks: int = Field(default=8, ge=2, le=1000)
    """Concurrent workflow tasks. They share the interpreter's lock: more of them only wait in the worker, where owners
    take no turns. More help if a codec or a payload store is slow."""
    max_cached_workflows: int = Field(default=1000, ge=0, le=100_000)
    """Runs, conversations and other workflows in memory. Others are replayed from history when they are needed."""
    heartbeat: Duration = Field(default=HEARTBEAT_TIMEOUT, ge=timedelta(seconds=1), le=timedelta(minutes=10))
    """A worker that is silent for this long counts as dead. A call heartbeats after 0.8 of it, which Temporal bills."""
    fuse_reads: bool = False
    """`true` makes a turn of short reads and the next model call in one activity: half the history events. Runs keep
    the setting with which they began."""
    pollers: int | None = Field(default=None, ge=2, le=1000)
    """Open polls for each kind of task. By default their number follows the load."""
    sticky_timeout: Duration = timedelta(seconds=5)
    """The time after which another worker continues the runs of a killed worker. If it is short, a busy worker's runs
    move too, and each move is a replay. Keep it above 3 s, the time of a query: if a busy worker gets one late from the
    other queue, and an answer with it, Temporal's SDK can write a history that it cannot replay."""
    grace: Duration = timedelta(seconds=30)
    """The time for active calls to end after SIGTERM; calls that take longer count as lost."""
    search_attributes: bool = True
    """`false` if the namespace does not have Perdure's search attributes: runs then set none, and cannot be listed by
    status or question. Runs that are open keep what they began with."""


class CeilingSettings(LimitOverrides):
    """`[limits.ceiling]`: limits that no run exceeds."""

    @model_validator(mode="after")
    def _check_directive_tool(self) -> Self:
        if self.directive_tool is not None:
            raise ValueError("directive_tool: has no ceiling; set it in [limits]")
        return self


class LimitSettings(LimitOverrides):
    """`[limits]`."""

    ceiling: CeilingSettings = CeilingSettings.model_construct()
    """The settings of `[limits]` except `directive_tool`. No run exceeds them, whatever its start or agent sets."""

    @model_validator(mode="after")
    def _check_ceiling(self) -> Self:
        for excess in self.excess_of(self):
            raise ValueError(f"{excess} (limits.ceiling)")
        return self

    def excess_of(self, overrides: LimitOverrides) -> tuple[str, ...]:
        """Return a message for each limit of `overrides` that is above the ceiling."""
        ceiling = values_set_in(self.ceiling)
        requested = {name: value for name, value in values_set_in(overrides).items() if name in ceiling}
        return format_excess(apply_requested(DEFAULTS, requested), {name: ceiling[name] for name in requested})


class ProjectSettings(StrictModel):
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The name of the project on a shared Temporal server. Workers and clients of one task queue must have the same."""


class FeatureSettings(StrictModel):
    """Features that are off until they are named: optional ones, and those of other packages."""

    use: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], ...] = ()
    """The [features](../features.md) that this project uses, by name. All its workers must use the same."""

    @field_validator("use")
    @classmethod
    def _load(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            use(names)
        except FeatureError as error:
            raise ValueError(str(error)) from None
        return names


class ProjectFile(StrictModel):
    """`perdure.toml`. `file_model` adds the tables of the features."""

    project: ProjectSettings = ProjectSettings.model_construct()
    features: FeatureSettings = FeatureSettings.model_construct()
    tools: dict[ToolName, ToolSettings] = Field(default_factory=dict)
    """The project's own tools, and approvals of built-in and native tools."""
    model: ModelSettings = ModelSettings.model_construct()
    fetch: FetchSettings = FetchSettings.model_construct()
    people: dict[str, tuple[str, ...]] = Field(default_factory=dict, max_length=100)
    """Groups of people who approve calls: the names of gateway tokens, of people behind its proxy, and of users at the
    terminal."""
    limits: LimitSettings = LimitSettings.model_construct()
    prices: dict[str, PriceSettings] = Field(default_factory=dict)
    gateway: GatewaySettings = GatewaySettings.model_construct()
    worker: WorkerSettings = WorkerSettings.model_construct()

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        for table in feature_tables().values():
            if table.check is not None:
                table.check(table.of(self), self)
        return self

    @field_validator("tools", mode="before")
    @classmethod
    def _set_builtin_kinds(cls, tools: Any) -> Any:
        """Set the kind of tables that are named for a built-in or native tool."""
        if not isinstance(tools, dict):
            return tools
        return {name: with_kind(name, table) for name, table in tools.items()}

    @field_validator("tools")
    @classmethod
    def _check_names(cls, tools: dict[str, ToolSettings]) -> dict[str, ToolSettings]:
        for name, tool in tools.items():
            if reason := name_error(name, is_builtin=isinstance(tool, BuiltinToolSettings)):
                raise ValueError(reason)
        return tools


def file_model() -> type[ProjectFile]:
    """Return the model of `perdure.toml` with the tables of the features."""
    return _file_model(tuple(features()))


@cache
def _file_model(_: tuple[str, ...]) -> type[ProjectFile]:
    fields: dict[str, Any] = {name: (table.type, table.default) for name, table in feature_tables().items()}
    return create_model("ProjectFile", __base__=ProjectFile, **fields)


@dataclass(frozen=True)
class LoadedFile:
    """A `perdure.toml` without the tables that are at fault; `is_usable` if those are for workers alone."""

    file: ProjectFile
    faults: tuple[ProjectError, ...] = ()
    is_usable: bool = True


def read_file(path: Path) -> LoadedFile:
    """Read `perdure.toml`. What does not load is left out, and reported as a fault for each place."""
    use_of_project(path)  # whose tables it may have
    faults = list[ProjectError]()
    try:
        tables = _read_tables(path, faults)
    except ProjectError as error:
        return LoadedFile(ProjectFile(), (error,), is_usable=False)
    left_out = set[str]()
    checked = {(name,) for name, table in feature_tables().items() if table.check}
    while True:
        try:
            file = file_model().model_validate(tables)
            return LoadedFile(file, tuple(faults), left_out <= OF_WORKERS | feature_tables().keys())
        except ValidationError as error:
            found = all_errors(error, file_model())
            faults += [ProjectError(f"{place_of(path, at)}: {expected}") for at, expected in found]
            at_fault = {tuple(at[: 2 if at[0] == "tools" else 1]) for at, _ in found if at} or checked
        except ValueError as error:  # a number with thousands of digits
            return LoadedFile(ProjectFile(), (*faults, ProjectError(f"{path}: {plain_reason(error)}")), is_usable=False)
        if ("gateway",) in at_fault:
            at_fault |= checked  # whose webhooks are there
        rest = _without(tables, at_fault)
        left_out |= {table for table, *_ in at_fault} if rest != tables else {*tables}
        tables = rest if rest != tables else {}


def _without(tables: dict[str, Any], places: Collection[tuple[str, ...]]) -> dict[str, Any]:
    """Return the tables without those at these places: `("notify",)`, or `("tools", name)` for one of several."""
    left = {name: table for name, table in tables.items() if (name,) not in places}
    if any(len(place) > 1 for place in places) and isinstance(left.get("tools"), dict):
        left["tools"] = {name: tool for name, tool in left["tools"].items() if ("tools", name) not in places}
    return left


def _read_tables(path: Path, faults: list[ProjectError]) -> dict[str, Any]:
    """Return the tables of `perdure.toml`, with the schemas that are in files. Raises ProjectError."""
    text = read_project_text(path)
    try:
        return _with_schemas(tomllib.loads(text), path.parent, faults)
    except tomllib.TOMLDecodeError as error:
        at_end = f"at line {len(text.splitlines())}, the end of the file"
        raise ProjectError(f"{path}: {str(error).replace('at end of document', at_end)}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or thousands of brackets
        reason = NESTED if isinstance(error, RecursionError) else plain_reason(error)
        raise ProjectError(f"{path}: {reason}") from None


def _with_schemas(tables: dict[str, Any], folder: Path, faults: list[ProjectError]) -> dict[str, Any]:
    """Replace each `input_schema` that is the path of a JSON file by its content; leave out a tool without it."""
    tools = tables.get("tools")
    if not isinstance(tools, dict):
        return tables
    for name, tool in list(tools.items()):
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if isinstance(schema, str):
            unread = tools.pop(name)
            with collecting(faults):
                schema = read_schema_file(folder / path_from(schema), f"input_schema of tool {name}")
                tools[name] = {**unread, "input_schema": schema}
    return tables


def read_schema_file(path: Path, use: str) -> Any:
    """Return the JSON in a file, for the `use` that the message of an error names. Raises ProjectError."""
    try:
        return parse_strict_json(read_project_text(path), MAX_NESTING)
    except JsonError as error:
        raise ProjectError(f"{path} ({use}): {error}") from None
    except ProjectError as error:
        raise ProjectError(f"{error} ({use})") from None


def place_of(path: Path, setting: Sequence[str]) -> str:
    """Return file, line and name of a setting, for error messages; the file alone for one of the whole file."""
    name = ".".join(setting)
    line = _line_of(read_project_text(path), name) if name else None
    return ": ".join(filter(None, (f"{path}{f', line {line}' if line else ''}", name)))


def _line_of(text: str, name: str) -> int | None:
    """Return the line of a setting: its key below its table's header, or the header itself."""
    best, table = None, ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = header[1].replace('"', "").replace(" ", "")
            if name.startswith(table) or (best is None and table.startswith(f"{name}.")):
                best = number
        elif (key := re.match(r'\s*"?([\w.-]+)"?\s*=', line)) and f"{table}.{key[1]}".strip(".") == name:
            return number
    return best


def urls_of(file: ProjectFile) -> dict[str, str]:
    """Return the URLs of tools, providers and features by setting; they may contain passwords."""
    urls = {f"tools.{name}.url": getattr(tool, "url", None) for name, tool in file.tools.items()}
    urls |= {f"model.providers.{name}.base_url": provider.base_url for name, provider in file.model.providers.items()}
    urls |= {f"{name}.url": getattr(table.of(file), "url", None) for name, table in feature_tables().items()}
    return {setting: url for setting, url in urls.items() if url}


def header_variables_of(file: ProjectFile) -> dict[str, tuple[str | None, dict[str, str]]]:
    """Return the URL and the header variables of each table that has any, by table."""
    tables: dict[str, Any] = {f"tools.{name}": tool for name, tool in file.tools.items()}
    tables |= {name: table.of(file) for name, table in feature_tables().items()}
    variables = {
        name: (table.url, table.headers_env) for name, table in tables.items() if getattr(table, "headers_env", None)
    }
    providers = file.model.providers.items()
    return variables | {
        provider_table(name): (provider.base_url, provider.headers_env)
        for name, provider in providers
        if provider.headers_env
    }


def provider_table(name: str) -> str:
    return f"model.providers.{name}"
