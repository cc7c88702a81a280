"""`[tools.*]` of `perdure.toml`: the project's own tools, and approvals of built-in and native tools."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, field_validator, model_validator

from perdure.contracts.models import MAX_NESTING, Duration, JsonResult, StrictModel, nesting_depth
from perdure.contracts.strict_input import NESTED
from perdure.contracts.tool import Approval, Effect, ToolRoute
from perdure.decisions.tools import builtin_names, gated_names
from perdure.settings.environment import HeaderVariables

NATIVE_TOOLS = ("fetch", "read_file", "write_file", "list_files")
TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"  # the pattern of the Messages API


class _Approved(StrictModel):
    approval: Approval = Approval.never
    """`always`: a person approves each call, with its arguments."""
    approval_timeout: Duration | None = None
    """The time until a call without a decision is denied. By default it waits."""

    @model_validator(mode="after")
    def _check_approval(self) -> Self:
        if self.approval_timeout is not None and self.approval is not Approval.always:
            raise ValueError('approval_timeout needs approval = "always"')
        return self


class BuiltinToolSettings(_Approved):
    """The settings of a built-in or native tool, in a table of its name such as `[tools.fetch]`."""

    kind: Literal["builtin"] = "builtin"
    """Optional."""


class _Gated(_Approved):
    pollable: bool = False
    """`true` for tools that are polled, such as a job's status: loop detection ignores repeated calls."""
    timeout: Duration = timedelta(seconds=30)
    """The timeout of one attempt."""
    dry_run: JsonResult = None
    """An example of a result. A dry run shows it to the model in place of a call that changes something."""


class _Capped(StrictModel):
    max_running: int | None = Field(default=None, ge=1, le=1000)
    """The most calls of the tool that are [under way at once](../limits.md#places), over all workers; others wait."""


class McpToolSettings(_Capped, _Gated):
    """The settings of an MCP tool. Its annotations apply where a setting is missing."""

    kind: Literal["mcp"]
    """A tool of an MCP server, in a table of its name such as `[tools.server__tool]`."""
    effect: Effect | None = None
    """An effect stricter than the server's annotations; looser ones are refused."""


class _Tool(_Gated):
    effect: Effect = Effect.once
    """The side effect of a call: `read` changes nothing, `keyed` is idempotent by key, `once` must not be repeated."""
    description: str | None = Field(default=None, min_length=1, max_length=10_000)
    """The description for the model."""


class PythonToolSettings(_Capped, _Tool):
    kind: Literal["python"]
    """A function."""
    target: str
    """`module:function`, beside `perdure.toml` or installed."""


class _Described(_Tool):
    description: str = Field(min_length=1, max_length=10_000)
    input_schema: dict[str, Any] | str
    """The JSON Schema of the arguments, or the path of a JSON file with it."""

    @field_validator("input_schema")
    @classmethod
    def _check_schema(cls, schema: dict[str, Any] | str) -> dict[str, Any] | str:
        if isinstance(schema, dict) and schema.get("type") != "object":
            raise ValueError('expected a JSON Schema with type = "object"')
        if nesting_depth(schema) > MAX_NESTING:
            raise ValueError(NESTED)
        return schema


class HttpToolSettings(_Capped, _Described):
    kind: Literal["http"]
    """A URL."""
    url: str = Field(pattern=r"^https?://")
    """The URL that `agentic.tool_request` is POSTed to; the response is the result."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of the POST, each with the variable that holds its secret value."""


class A2aToolSettings(_Tool):
    kind: Literal["a2a"]
    """An agent elsewhere that speaks [A2A](../a2a.md#agents-elsewhere-as-tools): it makes a task of a call."""
    description: str = Field(min_length=1, max_length=10_000)
    """The description for the model: what the agent does."""
    url: str = Field(pattern=r"^https?://")
    """The agent's address, below which it has its card."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of each request, each with the variable that holds its secret value."""
    timeout: Duration = timedelta(seconds=60)
    """The timeout of an attempt to begin the task, which itself may take longer. A request has half of it."""


class SignalToolSettings(_Described):
    kind: Literal["signal"]
    """The result comes back as a signal."""
    url: str | None = Field(default=None, pattern=r"^https?://")
    """The URL that `agentic.tool_request` is POSTed to. Without it, the tool reads requests from the run's state."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of the POST, each with the variable that holds its secret value."""
    timeout: Duration = timedelta(hours=24)
    """The time to wait for the result."""

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if self.headers_env and self.url is None:
            raise ValueError("headers_env needs a url")
        return self


class QueueToolSettings(_Described):
    kind: Literal["queue"]
    """An activity of another worker."""
    task_queue: str = Field(min_length=1, max_length=1000)
    """The task queue of the other worker; not this project's own."""
    activity: str = Field(min_length=1, max_length=1000)
    """The name of the activity."""
    heartbeat: Duration | None = None
    """The heartbeat timeout. By default no heartbeats are required."""


ToolSettings = Annotated[
    BuiltinToolSettings
    | PythonToolSettings
    | HttpToolSettings
    | A2aToolSettings
    | McpToolSettings
    | QueueToolSettings
    | SignalToolSettings,
    Field(discriminator="kind"),
]


ToolName = Annotated[str, Field(pattern=TOOL_NAME)]


def approvable_tools() -> tuple[str, ...]:
    """Return the built-in and native tools that may need approval."""
    return (*NATIVE_TOOLS, *gated_names())


def with_kind(name: str, table: Any) -> Any:
    """Return a tool's table, with a kind if it is named for a built-in or native tool."""
    is_ours = name in builtin_names() or name in approvable_tools()
    return {"kind": "builtin", **table} if is_ours and isinstance(table, dict) else table


def name_error(name: str, *, is_builtin: bool) -> str | None:
    """Return the reason that a table cannot have this name, if there is one."""
    if is_builtin and name not in approvable_tools():
        return f"{name!r} takes no approval; those that do: {', '.join(approvable_tools())}"
    if not is_builtin and (name in builtin_names() or name in NATIVE_TOOLS):
        hint = "; for an approval of its calls leave `kind` out" if name in approvable_tools() else ""
        return f"{name!r} is the name of a built-in tool; choose another{hint}"
    return None


def tool_route(name: str, local: ToolSettings, **changes: object) -> ToolRoute:
    """Return the route of a tool from its settings, which have the same names."""
    fields = dict(local)
    example = None if fields.get("dry_run") is None else json.dumps(fields["dry_run"])
    return ToolRoute.model_validate({**fields, "name": name, "example": example, **changes})


class ToolServer(Protocol):
    """A server that offers tools: its name, and where its settings may hold secrets. `urls` are by the setting's name.

    The rest is known to the feature that reads it.
    """

    @property
    def name(self) -> str: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def urls(self) -> Mapping[str, str]: ...


def tool_names(file_tools: Mapping[str, ToolSettings]) -> tuple[str, ...]:
    """Return the names that an agent may have in its allow-list."""
    own = (name for name, tool in file_tools.items() if not isinstance(tool, BuiltinToolSettings))
    return (*NATIVE_TOOLS, *own)
