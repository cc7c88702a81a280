"""Where an MCP server is, as `.mcp.json` says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class StdioServer:
    """A program that is started, and spoken to over its standard input and output.

    It gets the SDK's default environment and `env`, none of ours. `missing` is the first variable that its entry names
    and the environment lacks: it is not started then.
    """

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None
    missing: str | None = None


@dataclass(frozen=True)
class HttpServer:
    """A server at a URL, over streamable HTTP."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    missing: str | None = None


McpServer = StdioServer | HttpServer
