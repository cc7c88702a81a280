"""`perdure.toml`: what it may say, and how it is read."""

import re
import tomllib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from contracts.duration import Duration
from contracts.models import Edge
from contracts.run.limits import LimitOverrides
from contracts.strict_json import read_json
from contracts.tool import Effect
from decisions.model_names import DEFAULT
from decisions.run.limits import DEFAULTS, format_excess, set_in, with_requested
from settings.access import HeaderVariables, checked_host, checked_url
from settings.problems import NESTED, ProjectError, first_fault, path_from, plain_reason, text_of
from settings.tools import TOOL_NAME, BuiltinToolSettings, ToolName, ToolSettings, name_fault, with_kind


def _names(said: Any) -> Any:
    """One name of a model, or several; the first is asked first."""
    if said is None:  # of YAML: the setting is there, and nothing behind it
        return ()
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError("expected the name of a model, or a list of names")
    return tuple(dict.fromkeys(name.strip() for name in names))


HostPattern = Annotated[str, AfterValidator(checked_host)]
ModelNames = Annotated[tuple[str, ...], BeforeValidator(_names, json_schema_input_type=str | list[str])]
ProviderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]


class ProviderSettings(Edge):
    """An endpoint of models. The clouds take their usual credentials, or the bearer token of `api_key_env`."""

    kind: Literal["messages", "bedrock", "vertex"] = "messages"
    """Any server of the Messages API; or Claude at AWS or Google."""
    base_url: str | None = Field(default=None, pattern=r"^https?://")
    """Where a `messages` server is; for the clouds another address than their own."""
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The name of the variable that holds the key, or a cloud's bearer token."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """A worker never asks more often than that."""
    region: str | None = Field(default=None, min_length=1)
    """Of Bedrock and Vertex, which need it."""
    project: str | None = Field(default=None, min_length=1)
    """Of Vertex, which needs it."""

    @field_validator("base_url", mode="before")
    @classmethod
    def _leads_to_a_host(cls, base_url: Any) -> Any:
        return checked_url(base_url) if isinstance(base_url, str) else base_url

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.region and self.kind == "messages":
            raise ValueError('a region is for kind = "bedrock" or "vertex"')
        if self.project and self.kind != "vertex":
            raise ValueError('a project is for kind = "vertex"')
        if self.kind != "messages" and not self.region:
            raise ValueError(f'kind = "{self.kind}" needs a region')
        if self.kind == "vertex" and not self.project:
            raise ValueError('kind = "vertex" needs a project')
        return self


class ModelSettings(Edge):
    default: ModelNames = ()
    """One name, or a list that is asked in turn: `provider:model`, or a plain name of `anthropic`."""
    max_tokens: int = Field(default=8192, ge=256, le=128_000)
    """Of one reply."""
    window: int | None = Field(default=None, ge=1000)
    """Tokens that the models can read. Known for Claude models; 200,000 for others."""
    summary: str | None = Field(default=None, min_length=1)
    """Who writes summaries. For Claude models a small one of theirs; else the model itself."""
    providers: dict[ProviderName, ProviderSettings] = Field(default_factory=dict)

    @field_validator("providers")
    @classmethod
    def _lead_somewhere(cls, providers: dict[str, ProviderSettings]) -> dict[str, ProviderSettings]:
        for name, each in providers.items():
            if name == DEFAULT and each.model_fields_set - {"requests_per_minute"}:
                raise ValueError(f"{name}: takes requests_per_minute only; its place and key are ANTHROPIC_*")
            if name != DEFAULT and each.kind == "messages" and not each.base_url:
                raise ValueError(f"{name}: needs a base_url")
        return providers


class FetchSettings(Edge):
    allow_hosts: tuple[str, ...] = ()
    """`host` or `host:port` whose private addresses may be fetched, at any port or at that one."""
    only_hosts: tuple[HostPattern, ...] | None = None
    """`host`, `*.host` or `host:port`: nothing else is fetched, but for `allow_hosts`. Without it, all that is public.
    Ports other than 80 and 443 must be named, here or there."""


class OutboxSettings(Edge):
    """How messages go out."""

    kind: Literal["log", "http"] = "log"
    """`log` writes to `outbound.jsonl` in `PERDURE_HOME`, `http` POSTs to `url`."""
    url: str | None = Field(default=None, pattern=r"^https?://")
    """Of `http`, which needs it."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of the POST, each with the name of the variable that holds its value, which is a secret."""
    effect: Literal[Effect.once, Effect.keyed] = Effect.once
    """`keyed` where `url` honours `Idempotency-Key`: a message is then sent until it is taken."""
    timeout: Duration = timedelta(seconds=30)
    """Of one attempt."""
    channels: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] | None = None
    """`channel` or `platform:channel` (`slack:*`: all of a platform): messages go nowhere else."""

    @model_validator(mode="after")
    def _goes_somewhere(self) -> Self:
        if (self.kind == "http") != (self.url is not None):
            raise ValueError('kind = "http" needs a url, and kind = "log" takes none')
        if self.kind == "log" and self.headers_env:
            raise ValueError('headers_env is for kind = "http": a log file takes no headers')
        if self.kind == "log" and self.effect is Effect.keyed:
            raise ValueError('a log file honours no keys: effect = "keyed" is for kind = "http"')
        return self


class WebhookSettings(Edge):
    """Who signs what is POSTed to `/v1/webhooks/NAME`, and how."""

    scheme: Literal["standard", "slack", "github"]
    """How the sender signs."""
    secret_env: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The name of the variable that holds the secret; 16 characters or more."""
    platforms: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """The platforms whose messages a `standard` sender may publish; the other schemes speak for their own alone."""

    @model_validator(mode="after")
    def _names_its_platforms(self) -> Self:
        if self.scheme == "standard" and not self.platforms:
            raise ValueError('platforms: name those that this sender may speak for, such as ["discord"]')
        if self.scheme != "standard" and self.platforms:
            raise ValueError(f"platforms: the scheme {self.scheme} speaks for {self.scheme} alone; leave it out")
        return self


class GatewaySettings(Edge):
    webhooks: dict[Annotated[str, Field(pattern=TOOL_NAME)], WebhookSettings] = Field(default_factory=dict)


class PriceSettings(Edge):
    """USD per million tokens, in place of what is known of the model."""

    input: float = Field(ge=0)
    """Of what is sent."""
    output: float = Field(ge=0)
    """Of what is received."""
    cache_read: float = Field(default=0, ge=0)
    """Of what the cache had."""
    cache_write: float = Field(default=0, ge=0)
    """Of what goes into the cache."""


class WorkerSettings(Edge):
    """How much a worker does at once, and keeps; Temporal's own names and defaults."""

    max_concurrent_activities: int = Field(default=100, ge=1, le=10_000)
    """Model calls, tool calls, what runs do with files. More of them wait at the server, or go to another worker."""
    max_cached_workflows: int = Field(default=1000, ge=0, le=100_000)
    """Runs, conversations and the like in memory. Others are replayed from history when something comes for them."""


class CeilingSettings(LimitOverrides):
    """What no run exceeds, whatever sets its limits."""

    @model_validator(mode="after")
    def _has_an_order(self) -> Self:
        if self.directive_tool is not None:
            raise ValueError("directive_tool: has no ceiling; set it in [limits]")
        return self


class LimitSettings(LimitOverrides):
    """`[limits]`."""

    ceiling: CeilingSettings = CeilingSettings()
    """Same settings as `[limits]`, but for `directive_tool`: no run exceeds them, whatever its start or agent sets."""

    @model_validator(mode="after")
    def _is_below_its_ceiling(self) -> Self:
        for excess in self.excess_of(self):
            raise ValueError(f"{excess} (limits.ceiling)")
        return self

    def excess_of(self, overrides: LimitOverrides) -> tuple[str, ...]:
        """Report each limit of `overrides` that is above the ceiling; limits that are not set are never above it."""
        ceiling = set_in(self.ceiling)
        set_here = {name: value for name, value in set_in(overrides).items() if name in ceiling}
        known = {name: ceiling[name] for name in set_here}
        return format_excess(with_requested(DEFAULTS, set_here), known)


class ProjectFile(Edge):
    """`perdure.toml`."""

    tools: dict[ToolName, ToolSettings] = Field(default_factory=dict)
    """The project's own tools, and approvals of those that Perdure brings."""
    model: ModelSettings = ModelSettings()
    fetch: FetchSettings = FetchSettings()
    limits: LimitSettings = LimitSettings()
    prices: dict[str, PriceSettings] = Field(default_factory=dict)
    outbox: OutboxSettings = OutboxSettings()
    gateway: GatewaySettings = GatewaySettings()
    worker: WorkerSettings = WorkerSettings()

    @field_validator("tools", mode="before")
    @classmethod
    def _knows_what_perdure_brings(cls, tools: Any) -> Any:
        """A table with such a name needs no kind."""
        if not isinstance(tools, dict):
            return tools
        return {name: with_kind(name, table) for name, table in tools.items()}

    @field_validator("tools")
    @classmethod
    def _has_names_of_its_own(cls, tools: dict[str, ToolSettings]) -> dict[str, ToolSettings]:
        for name, tool in tools.items():
            if fault := name_fault(name, is_builtin=isinstance(tool, BuiltinToolSettings)):
                raise ValueError(fault)
        return tools


def read_file(path: Path) -> ProjectFile:
    text = text_of(path)
    try:
        return ProjectFile.model_validate(_with_schemas(tomllib.loads(text), path.parent))
    except tomllib.TOMLDecodeError as error:
        at_end = f"at line {len(text.splitlines())}, the end of the file"
        raise ProjectError(f"{path}: {str(error).replace('at end of document', at_end)}") from None
    except ValidationError as error:
        where, expected = first_fault(error, ProjectFile)
        raise ProjectError(f"{_place(path, text, where)}: {expected}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or thousands of brackets
        reason = NESTED if isinstance(error, RecursionError) else plain_reason(error)
        raise ProjectError(f"{path}: {reason}") from None


def _with_schemas(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    """An `input_schema` may be the path of a JSON file."""
    tools = tables.get("tools")
    for name, tool in tools.items() if isinstance(tools, dict) else ():
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if isinstance(schema, str):
            path = folder / path_from(schema)
            try:
                tool["input_schema"] = read_json(text_of(path))
            except (ValueError, RecursionError) as error:
                why = NESTED if isinstance(error, RecursionError) else error
                raise ProjectError(f"{path} (input_schema of tool {name}): {why}") from None
    return tables


def place_of(path: Path, where: Sequence[str]) -> str:
    """A setting of a file that was read, for whoever has to mend it: the file, its line, its name."""
    return _place(path, text_of(path), where)


def _place(path: Path, text: str, where: Sequence[str]) -> str:
    line = _line_of(text, where)
    return f"{path}{f', line {line}' if line else ''}: {'.'.join(where)}"


def _line_of(text: str, where: Sequence[str]) -> int | None:
    """The line of a setting: its key below its table's header, or the header itself."""
    best, table, name = None, "", ".".join(where)
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = header[1].replace('"', "").replace(" ", "")
            if name.startswith(table) or (best is None and table.startswith(f"{name}.")):
                best = number
        elif (key := re.match(r'\s*"?([\w.-]+)"?\s*=', line)) and f"{table}.{key[1]}".strip(".") == name:
            return number
    return best


def urls_of(file: ProjectFile) -> dict[str, str]:
    """Where tools and the outbox are, by the name of the setting: some have a password in them."""
    urls = {name: getattr(tool, "url", None) for name, tool in file.tools.items()}
    named = {f"tools.{name}.url": url for name, url in urls.items() if url}
    named |= {
        f"model.providers.{name}.base_url": each.base_url
        for name, each in file.model.providers.items()
        if each.base_url
    }
    return named | ({"outbox.url": file.outbox.url} if file.outbox.url else {})


def header_variables_of(file: ProjectFile) -> dict[str, tuple[str | None, dict[str, str]]]:
    """Return the URL and the variables of each table that sends headers, by the name of the table."""
    posting = {f"tools.{name}": tool for name, tool in file.tools.items() if getattr(tool, "headers_env", None)}
    tables: dict[str, Any] = posting | ({"outbox": file.outbox} if file.outbox.headers_env else {})
    return {name: (table.url, table.headers_env) for name, table in tables.items()}
