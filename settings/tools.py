"""`[tools.*]` of `perdure.toml`: the project's own tools, and approvals of those that Perdure brings."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from contracts.duration import Duration
from contracts.models import MOST_DEPTH, Edge, depth
from contracts.tool import Approval, Effect
from decisions import builtin_tools
from settings.access import HeaderVariables
from settings.problems import NESTED

NATIVE_TOOLS = ("fetch", "read_file", "write_file", "list_files")
BROUGHT_TOOLS = (*NATIVE_TOOLS, *builtin_tools.GATED)  # those that take an approval
TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"  # what the Messages API takes


class _Approved(Edge):
    approval: Approval = Approval.never
    """`always`: a person approves each call, with its arguments."""
    approval_timeout: Duration | None = None
    """After it, a call that nobody decided on is denied. Without it people take their time."""

    @model_validator(mode="after")
    def _waits_only_for_approvals(self) -> Self:
        if self.approval_timeout is not None and self.approval is not Approval.always:
            raise ValueError('approval_timeout needs approval = "always"')
        return self


class BuiltinToolSettings(_Approved):
    """Of a tool that Perdure brings; the table is named for it, `[tools.fetch]`."""

    kind: Literal["builtin"] = "builtin"
    """Need not be set."""


class _Gated(_Approved):
    pollable: bool = False
    """The same call again and again is no sign of a loop: a job's status, a queue."""
    timeout: Duration = timedelta(seconds=30)
    """Of one attempt."""


class McpToolSettings(_Gated):
    """Of a tool of an MCP server: what is not set stays as its annotations have it."""

    kind: Literal["mcp"]
    """A tool of an MCP server; the table is named for it, `[tools.server__tool]`."""
    effect: Effect | None = None
    """Stricter than the server's annotations; a looser one is refused."""


class _Tool(_Gated):
    effect: Effect = Effect.once
    """What a call does to the world: `read` looks, `keyed` honours a key, `once` must not be repeated."""
    description: str | None = Field(default=None, min_length=1, max_length=10_000)
    """What the model is told of the tool."""


class PythonToolSettings(_Tool):
    kind: Literal["python"]
    """A function."""
    target: str
    """`module:function`, beside `perdure.toml` or installed."""


class _Described(_Tool):
    description: str = Field(min_length=1, max_length=10_000)
    input_schema: dict[str, Any] | str
    """The JSON Schema of the arguments, an object; or the path of a JSON file with it."""

    @field_validator("input_schema")
    @classmethod
    def _takes_an_object(cls, schema: dict[str, Any] | str) -> dict[str, Any] | str:
        if isinstance(schema, dict) and schema.get("type") != "object":
            raise ValueError('expected a JSON Schema with type = "object"')
        if depth(schema) > MOST_DEPTH:
            raise ValueError(NESTED)
        return schema


class HttpToolSettings(_Described):
    kind: Literal["http"]
    """A URL."""
    url: str = Field(pattern=r"^https?://")
    """Where `agentic.tool_request` is POSTed; the answer is the result."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of the POST, each with the name of the variable that holds its value, which is a secret."""


class SignalToolSettings(_Described):
    kind: Literal["signal"]
    """The result comes back as a signal."""
    url: str | None = Field(default=None, pattern=r"^https?://")
    """Where `agentic.tool_request` is POSTed. Without one, whoever does it looks at the run."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of the POST, each with the name of the variable that holds its value, which is a secret."""
    timeout: Duration = timedelta(hours=24)
    """Of the wait for the result."""

    @model_validator(mode="after")
    def _has_a_url_for_its_headers(self) -> Self:
        if self.headers_env and self.url is None:
            raise ValueError("headers_env needs a url: without one nothing is posted")
        return self


class QueueToolSettings(_Described):
    kind: Literal["queue"]
    """An activity of another worker."""
    task_queue: str = Field(min_length=1, max_length=1000)
    """Of the other worker; not this project's own."""
    activity: str = Field(min_length=1, max_length=1000)
    """Its name there."""
    heartbeat: Duration | None = None
    """How often it must say that it is alive; without it, it need not."""


ToolSettings = Annotated[
    BuiltinToolSettings
    | PythonToolSettings
    | HttpToolSettings
    | McpToolSettings
    | QueueToolSettings
    | SignalToolSettings,
    Field(discriminator="kind"),
]


ToolName = Annotated[str, Field(pattern=TOOL_NAME)]


def with_kind(name: str, table: Any) -> Any:
    """The table of a tool; that of a tool which Perdure brings needs no kind."""
    is_brought = name in builtin_tools.NAMES or name in BROUGHT_TOOLS
    return {"kind": "builtin", **table} if is_brought and isinstance(table, dict) else table


def name_fault(name: str, *, is_builtin: bool) -> str | None:
    """Why no tool of the project's file can have the name; None where it can."""
    if is_builtin:
        return (
            None if name in BROUGHT_TOOLS else f"{name!r} takes no approval; those that do: {', '.join(BROUGHT_TOOLS)}"
        )
    if name in builtin_tools.NAMES or name in NATIVE_TOOLS:
        own = "; for an approval of its calls leave `kind` out" if name in BROUGHT_TOOLS else ""
        return f"{name!r} is the name of a tool that Perdure brings; choose another{own}"
    return None


def tool_names(file_tools: Mapping[str, ToolSettings]) -> tuple[str, ...]:
    """What an agent may name in its allow-list."""
    own = (name for name, tool in file_tools.items() if not isinstance(tool, BuiltinToolSettings))
    return (*NATIVE_TOOLS, *own)
