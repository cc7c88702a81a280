"""MCP servers as configured in `.mcp.json`."""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from perdure.contracts.tool import PinnedProgram

START_TIMEOUT = 20.0  # seconds


@dataclass(frozen=True)
class StdioServer:
    """A server that runs as a program and communicates over its standard input and output.

    Its environment is the SDK's default and `env`, without the worker's. If the environment lacks a variable that the
    entry names, `missing` is the first one and the server is not started.
    """

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None
    missing: str | None = None
    start_timeout: float = START_TIMEOUT  # seconds to start and to list its tools

    @property
    def headers(self) -> Mapping[str, str]:
        return {}

    @property
    def urls(self) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True)
class OAuthAccess:
    """The access to a server by OAuth (`[mcp.NAME]`). `is_machine`: by client credentials, without a person.

    `is_personal`: by a grant for each requester. They log in themselves, at the gateway, too.
    """

    is_machine: bool = False
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    approvers: tuple[str, ...] = ()  # groups whose members may log in at the gateway
    is_personal: bool = False

    @property
    def is_at_gateway(self) -> bool:
        """True if people can log in at the gateway."""
        return self.is_personal or bool(self.approvers)


@dataclass(frozen=True)
class HttpServer:
    """A server at a URL, over streamable HTTP."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    missing: str | None = None
    start_timeout: float = START_TIMEOUT  # seconds to start and to list its tools
    oauth: OAuthAccess | None = None

    @property
    def env(self) -> Mapping[str, str]:
        return {}

    @property
    def urls(self) -> Mapping[str, str]:
        return {f"mcpServers.{self.name}.url": self.url}


McpServer = StdioServer | HttpServer


def find_program(server: StdioServer, path: str) -> str:
    """Return the absolute path of the program. Raises FileNotFoundError.

    `path` is a list of folders as in PATH. Relative entries are skipped: they would refer to the server's working
    folder, whose files are not trusted.
    """
    if "/" in server.command:
        return str(Path.cwd() / (server.cwd or Path()) / server.command)  # not resolved: a link may name its Python
    folders = [folder for folder in path.split(os.pathsep) if Path(folder).is_absolute()]
    program = shutil.which(server.command, path=os.pathsep.join(folders)) if folders else None
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), server.command)
    return program


def program_of(server: StdioServer) -> PinnedProgram:
    """Return the program that would be started now. Raises FileNotFoundError."""
    path = find_program(server, server.env.get("PATH") or os.environ.get("PATH") or os.defpath)
    return PinnedProgram(path=path, args_sha256=sha256(json.dumps(server.args).encode()).hexdigest())
