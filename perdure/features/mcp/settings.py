"""`.mcp.json`: the MCP servers of a project, in the format that other agents read too; and `[mcp.NAME]`.

Unknown fields of `.mcp.json` are ignored, because they may belong to other agents.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from perdure.contracts.models import MAX_NESTING, StrictModel
from perdure.contracts.strict_input import JsonError, parse_strict_json
from perdure.decisions.errors import format_validation_error
from perdure.features.mcp.activities.config import START_TIMEOUT, HttpServer, McpServer, StdioServer
from perdure.features.mcp.rules import is_server_name
from perdure.settings.problems import (
    ProjectError,
    collecting,
    path_from,
    read_project_text,
    resolve_path,
)
from perdure.settings.tables import Table

HTTP = ("http", "streamable-http")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    start_timeout: float = Field(default=START_TIMEOUT, gt=0, le=600)
    """Seconds to start and list its tools. The first start may include a download."""


class _Stdio(_Entry):
    command: str = Field(min_length=1)
    """The program of the server."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[Annotated[str, Field(pattern=r"^[^=]+$")], str] = Field(default_factory=dict)
    """Its environment, plus a few harmless variables. It inherits no others."""
    cwd: str | None = None
    """Its working directory, relative to the folder of `.mcp.json`."""


class _Http(_Entry):
    type: Literal["http", "streamable-http"] = "http"
    """The transport."""
    url: str = Field(pattern=r"^https?://")
    """The URL of the server."""
    headers: dict[Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")], str] = Field(default_factory=dict)
    """Headers of each request."""


def read_servers(path: Path, env: Mapping[str, str], faults: list[ProjectError]) -> dict[str, McpServer]:
    """Return the servers that load, by name. The errors of the file and of the others are added to `faults`."""
    servers = dict[str, McpServer]()
    with collecting(faults):
        for name, entry in _read_entries(path).items():
            with collecting(faults):
                servers[name] = _parse_server(path, name, entry, env)
    return servers


def _read_entries(path: Path) -> dict[str, Any]:
    try:
        file = parse_strict_json(read_project_text(path), MAX_NESTING)
    except JsonError as error:
        raise ProjectError(f"{path}: {error}") from None
    entries = file.get("mcpServers", file.get("servers", {})) if isinstance(file, dict) else None
    if not isinstance(entries, dict):
        raise ProjectError(f'{path}: expected {{"mcpServers": {{…}}}}')
    return entries


def _parse_server(path: Path, name: str, entry: Any, env: Mapping[str, str]) -> McpServer:
    place = f"{path}: mcpServers.{name[:100]}"
    if not is_server_name(name):
        expected = "expected a name of letters, digits and -, with single _ between them"
        raise ProjectError(f"{place}: {expected}; rename the server")
    if not isinstance(entry, dict):
        raise ProjectError(f"{place}: expected an object with a command, or with a type and a url")
    kind = entry.get("type", "http" if "url" in entry and "command" not in entry else "stdio")
    if kind == "sse":
        raise ProjectError(f'{place}: the transport "sse" is deprecated; use "http" (streamable HTTP)')
    if kind not in ("stdio", *HTTP):
        raise ProjectError(f'{place}.type: expected "stdio", "http" or "streamable-http", not {kind!r}')
    missing: list[str] = []
    expanded = _expand_variables(entry, env, missing)
    lacks = f"{place}: the environment has no {missing[0]}; set it, or write a default: ${{…:-…}}" if missing else None
    try:
        if kind in HTTP:
            http = _Http.model_validate(expanded)
            return HttpServer(name, http.url, http.headers, lacks, http.start_timeout)
        stdio = _Stdio.model_validate(expanded)
    except ValidationError as error:
        raise ProjectError(f"{place}.{format_validation_error(error)}") from None
    folder = resolve_path(path).parent
    command = str(path_from(stdio.command)) if stdio.command.startswith("~") else stdio.command
    cwd = folder / path_from(stdio.cwd or ".")
    return StdioServer(name, command, stdio.args, stdio.env, cwd, lacks, stdio.start_timeout)


def _expand_variables(value: Any, env: Mapping[str, str], missing: list[str]) -> Any:
    """Return the value with `${VAR}` and `${VAR:-default}` replaced in every string, except unset variables."""

    def replace(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if env.get(name) or (name in env and default is None):
            return env[name]
        if default is None:
            missing.append(name)
        return match[0] if default is None else default

    match value:
        case str():
            return _VARIABLE.sub(replace, value)
        case dict():
            return {key: _expand_variables(inner, env, missing) for key, inner in value.items()}
        case list():
            return [_expand_variables(inner, env, missing) for inner in value]
        case _:
            return value


class McpAccessSettings(StrictModel):
    """The access to a remote server of `.mcp.json`: by [OAuth](../mcp.md#log-in-by-oauth)."""

    auth: Literal["oauth"]
    """`oauth`."""
    grant: Literal["project", "client", "requester"] = "project"
    """`project`: a person logs in for the project. `client`: the client's own credentials, without a person.
    `requester`: each requester logs in, and a run uses the grant of its requester."""
    client_id: str | None = Field(default=None, min_length=1, max_length=2000)
    """The client's id, if the authorization server does not register clients by itself."""
    client_secret_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The variable that holds the client's secret."""
    scope: str | None = Field(default=None, max_length=2000)
    """The scopes to ask for, separated by blanks. By default those that the server names."""
    approvers: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """The groups of `[people]` whose members may log in at the gateway. By default only `perdure mcp login` can."""

    @model_validator(mode="after")
    def _check_grant(self) -> Self:
        if self.grant == "client" and not (self.client_id and self.client_secret_env):
            raise ValueError('grant = "client" needs client_id and client_secret_env')
        if self.grant == "client" and self.approvers:
            raise ValueError('approvers are for a login: grant = "client" needs none')
        if self.grant == "requester" and self.approvers:
            raise ValueError('approvers log in for the project: with grant = "requester" each requester does')
        return self


def _read_client_secrets(
    rows: Mapping[str, McpAccessSettings], env: Mapping[str, str], _faults: list[ProjectError]
) -> dict[str, str | None]:
    """Return the client secrets by server; None if there is none, or its variable is not set."""
    return {name: env.get(row.client_secret_env or "") or None for name, row in rows.items()}


MCP: Table[dict[str, McpAccessSettings]] = Table(
    "mcp",
    dict[str, McpAccessSettings],
    {},
    read=_read_client_secrets,
    secrets=lambda rows: [row.client_secret_env for row in rows.values()],
)
