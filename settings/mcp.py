"""`.mcp.json`: the MCP servers of a project, in the form that other agents read too.

What others have in it and Perdure does not know is left alone, since the file is shared with them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from activities.mcp.config import START_TIMEOUT, HttpServer, McpServer, StdioServer
from contracts.models import MOST_DEPTH, depth
from contracts.strict_json import read_json
from decisions.errors import fault_line
from decisions.mcp import is_server_name
from settings.problems import NESTED, ProjectError, path_from, resolved, text_of

NAME = ".mcp.json"
HTTP = ("http", "streamable-http")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    start_timeout: float = Field(default=START_TIMEOUT, gt=0, le=600)
    """Seconds for it to start, and to say which tools it has. A first start may download what it runs."""


class _Stdio(_Entry):
    command: str = Field(min_length=1)
    """Of a server that runs here: the program."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[Annotated[str, Field(pattern=r"^[^=]+$")], str] = Field(default_factory=dict)
    """Its environment, beside a few harmless variables; nothing else of ours gets in."""
    cwd: str | None = None
    """Where it runs, from the folder of `.mcp.json`."""


class _Http(_Entry):
    type: Literal["http", "streamable-http"] = "http"
    """Of a server that runs elsewhere."""
    url: str = Field(pattern=r"^https?://")
    """Where it is."""
    headers: dict[Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")], str] = Field(default_factory=dict)
    """Sent with each request."""


def read_servers(path: Path, env: Mapping[str, str]) -> dict[str, McpServer]:
    """The servers by their names; none where there is no such file. Raises ProjectError."""
    if not path.is_file():
        return {}
    try:
        file = read_json(text_of(path))
        is_flat = depth(file) <= MOST_DEPTH
    except ValueError as error:
        raise ProjectError(f"{path}: {error}") from None
    except RecursionError:
        is_flat = False
    if not is_flat:
        raise ProjectError(f"{path}: {NESTED}")
    entries = file.get("mcpServers", file.get("servers", {})) if isinstance(file, dict) else None
    if not isinstance(entries, dict):
        raise ProjectError(f'{path}: expected {{"mcpServers": {{…}}}}')
    return {name: _server(path, name, entry, env) for name, entry in entries.items()}


def _server(path: Path, name: str, entry: Any, env: Mapping[str, str]) -> McpServer:
    at = f"{path}: mcpServers.{name[:100]}"
    if not is_server_name(name):
        what = "letters, digits and -, with single _ between them; rename the server"
        raise ProjectError(f"{at}: a server's name stands before the names of its tools, so it takes {what}")
    if not isinstance(entry, dict):
        raise ProjectError(f"{at}: expected an object with a command, or with a type and a url")
    kind = entry.get("type", "http" if "url" in entry and "command" not in entry else "stdio")
    if kind == "sse":
        raise ProjectError(f'{at}: the transport "sse" is given up by MCP; use "http" (streamable HTTP)')
    if kind not in ("stdio", *HTTP):
        raise ProjectError(f'{at}.type: expected "stdio", "http" or "streamable-http", not {kind!r}')
    missing: list[str] = []
    expanded = _expanded(entry, env, missing)
    lacks = f"{at}: the environment has no {missing[0]}; set it, or write a default: ${{…:-…}}" if missing else None
    try:
        if kind in HTTP:
            http = _Http.model_validate(expanded)
            return HttpServer(name, http.url, http.headers, lacks, http.start_timeout)
        stdio = _Stdio.model_validate(expanded)
    except ValidationError as error:
        raise ProjectError(f"{at}.{fault_line(error)}") from None
    folder = resolved(path).parent
    command = str(path_from(stdio.command)) if stdio.command.startswith("~") else stdio.command
    cwd = folder / path_from(stdio.cwd or ".")
    return StdioServer(name, command, stdio.args, stdio.env, cwd, lacks, stdio.start_timeout)


def _expanded(value: Any, env: Mapping[str, str], missing: list[str]) -> Any:
    """`${VAR}` and `${VAR:-default}` in every string. A variable without a value stays as it is written."""

    def one(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if env.get(name) or (name in env and default is None):
            return env[name]
        if default is None:
            missing.append(name)
        return found[0] if default is None else default

    match value:
        case str():
            return _VARIABLE.sub(one, value)
        case dict():
            return {key: _expanded(inner, env, missing) for key, inner in value.items()}
        case list():
            return [_expanded(inner, env, missing) for inner in value]
        case _:
            return value


def named_secrets(servers: Iterable[McpServer]) -> Iterator[tuple[str, str]]:
    """What servers are given in their environment and headers, by the names there."""
    for server in servers:
        given = server.env if isinstance(server, StdioServer) else server.headers
        for name, value in given.items():
            yield name, value
            scheme, _, credentials = value.partition(" ")
            if isinstance(server, HttpServer) and scheme and credentials:  # `Bearer …`
                yield name, credentials


def server_urls(servers: Iterable[McpServer]) -> dict[str, str]:
    return {f"mcpServers.{each.name}.url": each.url for each in servers if isinstance(each, HttpServer)}
