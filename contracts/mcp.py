"""`mcp.lock.json`: the accepted definitions of MCP tools, which alone a worker offers."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _PinModel(BaseModel):
    """The base class, with MCP's field names. Unknown fields are refused: only Perdure writes this file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class Pin(_PinModel):
    """An accepted tool definition. `sha256` covers the other fields."""

    description: str = ""
    input_schema: dict[str, Any]
    annotations: dict[str, Any] = Field(default_factory=dict)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PinnedServer(_PinModel):
    """All tools of one server, by its names for them."""

    tools: dict[str, Pin]


class PinnedProgram(_PinModel):
    """The program of a stdio server: its absolute path, and the sha256 of its arguments as JSON.

    The arguments themselves may contain secrets from the environment, and the file is committed.
    """

    path: str
    args_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PinFile(_PinModel):
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
