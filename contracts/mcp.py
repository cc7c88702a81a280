"""`mcp.lock.json`: the accepted definitions of MCP tools, which alone a worker offers."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from contracts.models import StrictCamelModel


class Pin(StrictCamelModel):
    """An accepted tool definition. `sha256` covers the other fields."""

    description: str = ""
    input_schema: dict[str, Any]
    annotations: dict[str, Any] = Field(default_factory=dict)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PinnedServer(StrictCamelModel):
    """All tools of one server, by its names for them."""

    tools: dict[str, Pin]


class PinnedProgram(StrictCamelModel):
    """The program of a stdio server: its absolute path, and the sha256 of its arguments as JSON.

    The arguments themselves may contain secrets from the environment, and the file is committed.
    """

    path: str
    args_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PinFile(StrictCamelModel):
    """`mcp.lock.json`. `programs` are those of stdio servers, by server."""

    version: Literal[1] = 1
    programs: dict[str, PinnedProgram] = Field(default_factory=dict)
    servers: dict[str, PinnedServer] = Field(default_factory=dict)


class PinState(StrEnum):
    """A tool's current definition compared with the accepted one."""

    pinned = "pinned"  # equal
    changed = "changed"  # calls wait for a person
    gone = "gone"  # calls fail
    new = "new"  # not offered
