"""Where an MCP server is, as `.mcp.json` says it."""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from contracts.mcp import PinnedProgram

START_TIMEOUT = 20.0  # seconds


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
    start_timeout: float = START_TIMEOUT  # seconds for it to start, and to say what it has


@dataclass(frozen=True)
class HttpServer:
    """A server at a URL, over streamable HTTP."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    missing: str | None = None
    start_timeout: float = START_TIMEOUT  # seconds for it to start, and to say what it has


McpServer = StdioServer | HttpServer


def find_program(server: StdioServer, path: str) -> str:
    """Return the absolute path of the program. Raises FileNotFoundError.

    Of `path`, a list of folders as in PATH, relative entries are skipped: they would lead into the folder where the
    server runs, whose files come from elsewhere.
    """
    if "/" in server.command:
        return str(Path.cwd() / (server.cwd or Path()) / server.command)  # not resolved: a link may name its Python
    folders = [folder for folder in path.split(os.pathsep) if Path(folder).is_absolute()]
    found = shutil.which(server.command, path=os.pathsep.join(folders)) if folders else None
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), server.command)
    return found


def program_of(server: StdioServer) -> PinnedProgram:
    """What would be started now. Raises FileNotFoundError."""
    path = find_program(server, server.env.get("PATH") or os.environ.get("PATH") or os.defpath)
    return PinnedProgram(path=path, args_sha256=sha256(json.dumps(server.args).encode()).hexdigest())
