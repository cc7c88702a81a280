"""What is kept of an MCP server's tools: `mcp.lock.json`, by which a worker offers them."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Kept(BaseModel):
    """Written as MCP writes it. What is not known here is refused: nobody else writes this file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class Pin(_Kept):
    """A tool's definition as it was accepted. `sha256` is that of the rest, in 64 hex digits."""

    description: str = ""
    input_schema: dict[str, Any]
    annotations: dict[str, Any] = Field(default_factory=dict)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PinnedServer(_Kept):
    """All tools of one server, by the names that it gives them."""

    tools: dict[str, Pin]


class PinnedProgram(_Kept):
    """What is started for a server over stdio: an absolute path, and the sha256 of its arguments as JSON.

    The arguments themselves may hold values of the environment, and the file is committed.
    """

    path: str
    args_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PinFile(_Kept):
    """`mcp.lock.json`. `programs` are those of servers over stdio, by server."""

    version: Literal[1] = 1
    programs: dict[str, PinnedProgram] = Field(default_factory=dict)
    servers: dict[str, PinnedServer] = Field(default_factory=dict)


class PinState(StrEnum):
    """What a tool is now, beside what was accepted."""

    pinned = "pinned"  # as it was accepted
    changed = "changed"  # its calls wait for a person
    gone = "gone"  # its calls fail
    new = "new"  # not offered
