"""What a project and its environment set: `perdure.toml`, `agents/*.md`, and the PERDURE_* variables.

A project is the folder that holds `perdure.toml`; all of it is optional. Whatever does not load becomes one line that
names the file, the line where that can be told, and what was expected.
"""

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from activities.secrets import NO_SECRETS, Secrets, secrets_of
from codec import VARIABLE, AesGcmCodec, BadKeys, read_codec
from contracts.agent import DEFAULT_AGENT, Agent
from contracts.duration import Duration
from contracts.limits import LimitOverrides
from contracts.tool import Approval, Effect
from contracts.value import Edge
from decisions import builtins

DEFAULT_MODEL = "claude-sonnet-5-5"
REHEARSAL = "rehearsal"
NATIVE_TOOLS = ("fetch", "read_file", "write_file", "list_files")
# The server silently lets a worker of another name or build wait for ever.
DEPLOYMENT_NAME = r"(?!__)[^.:]{1,200}"
MOST_BUILD_ID = 200
MOST_PORT = 65_535
TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"  # what the Messages API takes


class ProjectError(Exception):
    """The project does not load. The message is one line for the person who can mend it."""


class _Tool(Edge):
    effect: Effect = Effect.once  # nothing declared: assume the worst
    approval: Approval = Approval.never
    pollable: bool = False
    approval_timeout: Duration | None = None  # after it an unanswered call is denied; None: people take their time
    description: str | None = Field(default=None, min_length=1, max_length=10_000)
    timeout: Duration = timedelta(seconds=30)

    @model_validator(mode="after")
    def _waits_only_for_approvals(self) -> Self:
        if self.approval_timeout is not None and self.approval is not Approval.always:
            raise ValueError('approval_timeout needs approval = "always"')
        return self


class PythonToolSettings(_Tool):
    kind: Literal["python"]
    target: str


class _Described(_Tool):
    description: str = Field(min_length=1, max_length=10_000)
    input_schema: dict[str, Any] | str

    @field_validator("input_schema")
    @classmethod
    def _takes_an_object(cls, schema: dict[str, Any] | str) -> dict[str, Any] | str:
        if isinstance(schema, dict) and schema.get("type") != "object":
            raise ValueError('expected a JSON Schema with type = "object"')
        return schema


class HttpToolSettings(_Described):
    kind: Literal["http"]
    url: str = Field(pattern=r"^https?://")


class SignalToolSettings(_Described):
    kind: Literal["signal"]
    url: str | None = Field(default=None, pattern=r"^https?://")
    timeout: Duration = timedelta(hours=24)


ToolSettings = Annotated[PythonToolSettings | HttpToolSettings | SignalToolSettings, Field(discriminator="kind")]


def _is_free(name: str) -> str:
    if name in builtins.NAMES or name in NATIVE_TOOLS:
        raise ValueError(f"{name!r} is the name of a tool that Perdure brings; choose another")
    return name


ToolName = Annotated[str, Field(pattern=TOOL_NAME), AfterValidator(_is_free)]


class ModelSettings(Edge):
    """`window`: tokens that the model can read; `summary`: the model that writes summaries, a cheap one.

    Neither need be set for a Claude model.
    """

    default: str | None = Field(default=None, min_length=1)
    max_tokens: int = Field(default=8192, ge=256, le=128_000)
    window: int | None = Field(default=None, ge=1000)
    summary: str | None = Field(default=None, min_length=1)


class FetchSettings(Edge):
    """`allow_hosts`: "host" or "host:port" entries whose private addresses may be fetched."""

    allow_hosts: tuple[str, ...] = ()


class OutboxSettings(Edge):
    """How messages go out: "log" writes them to outbound.jsonl in PERDURE_HOME, "http" POSTs them to `url`.

    `effect` is "keyed" where that honours `Idempotency-Key`: then a message is sent until it is taken.
    """

    kind: Literal["log", "http"] = "log"
    url: str | None = Field(default=None, pattern=r"^https?://")
    effect: Literal[Effect.once, Effect.keyed] = Effect.once
    timeout: Duration = timedelta(seconds=30)

    @model_validator(mode="after")
    def _goes_somewhere(self) -> Self:
        if (self.kind == "http") != (self.url is not None):
            raise ValueError('kind = "http" needs a url, and kind = "log" takes none')
        if self.kind == "log" and self.effect is Effect.keyed:
            raise ValueError('a log file honours no keys: effect = "keyed" is for kind = "http"')
        return self


class PriceSettings(Edge):
    """USD per million tokens, in place of what is known of the model."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float = Field(default=0, ge=0)
    cache_write: float = Field(default=0, ge=0)


class ProjectFile(Edge):
    """`perdure.toml`."""

    tools: dict[ToolName, ToolSettings] = Field(default_factory=dict)
    model: ModelSettings = ModelSettings()
    fetch: FetchSettings = FetchSettings()
    limits: LimitOverrides = LimitOverrides()
    prices: dict[str, PriceSettings] = Field(default_factory=dict)
    outbox: OutboxSettings = OutboxSettings()


class _FrontMatter(Edge):
    name: str | None = Field(default=None, min_length=1, max_length=200)
    description: str = ""
    model: str | None = None
    tools: tuple[str, ...] = NATIVE_TOOLS
    peers: tuple[str, ...] = ()
    limits: LimitOverrides = LimitOverrides()
    mailbox: bool = False  # it lives outside Temporal, and exchanges files

    @model_validator(mode="after")
    def _is_told_nothing_outside(self) -> Self:
        if self.mailbox and (idle := self.model_fields_set - {"name", "description", "mailbox"}):
            raise ValueError(f"an agent behind a mailbox lives outside, and takes no {min(idle)} from here")
        return self


@dataclass(frozen=True)
class Deployment:
    """The build that a worker is, among others of the same deployment: Temporal's worker versioning."""

    name: str
    build_id: str

    def __str__(self) -> str:
        return f"deployment {self.name}, build {self.build_id}"


@dataclass(frozen=True)
class Settings:
    """`folder` is the project's; `home` holds state, `workspaces` a folder for each run.

    `store` is the URL of the object store that holds the runs' segments and ledgers; None: the workspaces do.
    `metrics` is the "address:port" of the Prometheus endpoint; None: there is none.
    """

    folder: Path
    home: Path
    workspaces: Path
    store: str | None
    task_queue: str
    model: str
    file: ProjectFile
    agents: Mapping[str, Agent]
    api_key: str | None = field(repr=False)
    base_url: str | None
    deployment: Deployment | None = None
    metrics: str | None = None
    exports_spans: bool = False
    codec: AesGcmCodec | None = None
    secrets: Secrets = NO_SECRETS

    @property
    def rehearses(self) -> bool:
        """Without a key or an address of a model, the rehearsal model answers."""
        return self.model == REHEARSAL

    def agent(self, name: str) -> Agent:
        """Raises ProjectError where there is none of this name."""
        if name not in self.agents:
            raise ProjectError(f"there is no agent {name!r}; the agents are: {', '.join(self.agents)}")
        return self.agents[name]

    def check_agent(self, name: str | None) -> None:
        """Raises ProjectError where no run can be this agent. None is the default one."""
        if name is not None and self.agent(name).mailbox:
            bridge = f"perdure mail FOLDER --agent {name}"
            raise ProjectError(f"agent {name!r} lives outside: write to its mailbox ({bridge}), or delegate to it")


def load(environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    """The project in force. Raises ProjectError."""
    env = os.environ if environment is None else environment
    path = Path(env["PERDURE_CONFIG"]) if env.get("PERDURE_CONFIG") else (folder or Path.cwd()) / "perdure.toml"
    if env.get("PERDURE_CONFIG") and not path.is_file():
        raise ProjectError(f"PERDURE_CONFIG names {path}, and there is no such file")
    root = path.resolve().parent
    file = _read_file(path) if path.is_file() else ProjectFile()
    home = Path(env.get("PERDURE_HOME") or root / ".perdure").resolve()
    key, url = env.get("ANTHROPIC_API_KEY") or None, env.get("ANTHROPIC_BASE_URL") or None
    model = env.get("PERDURE_MODEL") or (file.model.default or DEFAULT_MODEL if key or url else REHEARSAL)
    if model != REHEARSAL and not (key or url):
        raise ProjectError(f"model {model} needs ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL of a server that has it")
    return Settings(
        folder=root,
        home=home,
        workspaces=Path(env.get("PERDURE_WORKSPACE") or home / "runs").resolve(),
        store=env.get("PERDURE_STORE") or None,
        task_queue=env.get("PERDURE_TASK_QUEUE") or "perdure",
        model=model,
        file=file,
        agents=_read_agents(root / "agents", (*NATIVE_TOOLS, *file.tools)),
        api_key=key,
        base_url=url,
        deployment=_deployment(env),
        metrics=_metrics(env),
        exports_spans=_exports_spans(env),
        codec=_codec(env),
        secrets=secrets_of(env, _urls(file)),
    )


def _deployment(env: Mapping[str, str]) -> Deployment | None:
    """By the names that Temporal's own worker controller sets."""
    name, build_id = env.get("TEMPORAL_DEPLOYMENT_NAME") or None, env.get("TEMPORAL_WORKER_BUILD_ID") or None
    if name is None and build_id is None:
        return None
    if name is None or build_id is None:
        have, lack = ("TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_BUILD_ID")[:: 1 if name else -1]
        raise ProjectError(f"{have} is set and {lack} is not: worker versioning needs both")
    if not re.fullmatch(DEPLOYMENT_NAME, name) or len(build_id) > MOST_BUILD_ID:
        raise ProjectError(
            f"TEMPORAL_DEPLOYMENT_NAME and TEMPORAL_WORKER_BUILD_ID: up to {MOST_BUILD_ID} characters each are taken, "
            "and no name with . or : in it or __ in front"
        )
    return Deployment(name, build_id)


def _metrics(env: Mapping[str, str]) -> str | None:
    """Nobody is asked for a password there, so a bare port is one of this machine alone."""
    text = (env.get("PERDURE_METRICS") or "").strip()
    if not text:
        return None
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host in ("", "localhost") else host
    try:
        address = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        address = None
    if address is None or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) <= MOST_PORT:
        raise ProjectError(f'PERDURE_METRICS: expected a port or "address:port", like 127.0.0.1:9464, not {text!r}')
    return f"[{address}]:{int(port)}" if address.version == 6 else f"{address}:{int(port)}"


def _exports_spans(env: Mapping[str, str]) -> bool:
    """By OpenTelemetry's own names; what else they say, the exporter reads."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def _urls(file: ProjectFile) -> dict[str, str]:
    """Where tools and the outbox are, by the name of the setting: some have a password in them."""
    urls = {name: getattr(tool, "url", None) for name, tool in file.tools.items()}
    named = {f"tools.{name}.url": url for name, url in urls.items() if url}
    return named | ({"outbox.url": file.outbox.url} if file.outbox.url else {})


def _codec(env: Mapping[str, str]) -> AesGcmCodec | None:
    try:
        return read_codec(env[VARIABLE]) if env.get(VARIABLE) else None
    except BadKeys as error:
        raise ProjectError(f"{VARIABLE}: {error}") from None


def _read_file(path: Path) -> ProjectFile:
    text = _text_of(path)
    try:
        return ProjectFile.model_validate(_with_schemas(tomllib.loads(text), path.parent))
    except tomllib.TOMLDecodeError as error:
        at_end = f"at line {len(text.splitlines())}, the end of the file"
        raise ProjectError(f"{path}: {str(error).replace('at end of document', at_end)}") from None
    except ValidationError as error:
        where, expected = _first(error)
        line = _line_of(text, where)
        at = f"{path}, line {line}" if line else str(path)
        raise ProjectError(f"{at}: {'.'.join(where)}: {expected}") from None


def _with_schemas(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    """An `input_schema` may be the path of a JSON file."""
    tools = tables.get("tools")
    for name, tool in tools.items() if isinstance(tools, dict) else ():
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if isinstance(schema, str):
            path = folder / schema
            try:
                tool["input_schema"] = json.loads(_text_of(path))
            except ValueError as error:
                raise ProjectError(f"{path} (input_schema of tool {name}): {error}") from None
    return tables


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProjectError(f"{path}: not UTF-8 text") from None


def _first(error: ValidationError) -> tuple[list[str], str]:
    """Where the first fault is, and what was expected there."""
    first = error.errors(include_url=False, include_input=False)[0]
    asides = {"python", "http", "signal", "[key]"}  # pydantic names the union's branch in the path, and a bad key
    where = [str(part) for i, part in enumerate(first["loc"]) if not (i == 2 and part in asides)]
    if first["type"] == "extra_forbidden":
        return where, "no such setting in this version"
    return where, first["msg"].removeprefix("Value error, ")


def _line_of(text: str, where: list[str]) -> int | None:
    """The line of a setting: its key below its table's header, or the header itself."""
    best, table = None, ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = header[1].replace('"', "").replace(" ", "")
            if ".".join(where).startswith(table):
                best = number
        elif (key := re.match(r'\s*"?([\w.-]+)"?\s*=', line)) and f"{table}.{key[1]}".strip(".") == ".".join(where):
            return number
    return best


def _read_agents(folder: Path, tools: tuple[str, ...]) -> dict[str, Agent]:
    default = Agent(name=DEFAULT_AGENT, description="fetches pages and writes files", tools=NATIVE_TOOLS)
    agents, paths = {default.name: default}, dict[str, Path]()
    for path in sorted(folder.glob("*.md")):
        agent = _read_agent(path)
        unknown = [name for name in agent.tools if name not in tools]
        if unknown:
            raise ProjectError(f"{path}: tools: there is no tool {unknown[0]!r}; the tools are: {', '.join(tools)}")
        agents[agent.name] = agent
        paths[agent.name] = path
    for name, path in paths.items():
        strangers = [peer for peer in agents[name].peers if peer not in agents]
        if strangers:
            known = ", ".join(sorted(agents))
            raise ProjectError(f"{path}: peers: there is no agent {strangers[0]!r}; the agents are: {known}")
    return agents


def _read_agent(path: Path) -> Agent:
    """Markdown with front matter; the body is the system prompt."""
    parts = re.match(r"\A---\s*\n(.*?\n)?---\s*\n?(.*)\Z", _text_of(path), re.DOTALL)
    if parts is None:
        raise ProjectError(f'{path}: expected front matter between two lines "---"')
    try:
        head = _FrontMatter.model_validate(yaml.safe_load(parts[1] or "") or {})
    except yaml.YAMLError as error:
        raise ProjectError(f"{path}: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        where, expected = _first(error)
        raise ProjectError(f"{path}: {'.'.join(where)}: {expected}") from None
    return Agent(
        name=head.name or path.stem,
        description=head.description,
        model=head.model,
        tools=tuple(dict.fromkeys(name for name in head.tools if name not in builtins.NAMES)),
        peers=tuple(dict.fromkeys(head.peers)),
        limits=head.limits,
        prompt=parts[2],
        mailbox=head.mailbox,
    )
