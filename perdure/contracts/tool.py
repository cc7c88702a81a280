"""Tools, tool calls and their outcomes, and `mcp.lock.json`: the accepted definitions of MCP tools."""

from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from perdure.contracts.bounds import Backoff
from perdure.contracts.media import StoredMedia
from perdure.contracts.models import (
    Duration,
    ForeignText,
    FrozenModel,
    JsonResult,
    SparseModel,
    StrictCamelModel,
    omit_default,
)
from perdure.contracts.policy import PolicyVerdict

RETRY_DELAYS = Backoff(0.5, 8.0, factor=4.0, retries=3)  # B1
RETRIES_USED_UP = " (three retries did not help)"
INLINE_ARGUMENTS = 8 * 1024  # bytes; larger ones are named by the cursor, since history holds them already
MAX_ERROR = 8 * 1024  # characters of an error that a model is shown
MAX_RESULT_BYTES = 8 * 1024 * 1024  # of a result; a larger one is truncated
CALL_MARGIN = timedelta(seconds=5)  # an activity's timeout beyond the tool's own, which expires first


class Effect(StrEnum):
    """The side effect of a tool. It determines the retry policy of its calls (B1, B2) and their recovery."""

    read = "read"  # no change
    keyed = "keyed"  # a change, made idempotent by our idempotency key
    once = "once"  # a change that the runtime must never repeat


class ToolKind(StrEnum):
    """The implementation of a tool (A7)."""

    builtin = "builtin"  # a decision, made in the workflow without an activity
    native = "native"  # part of Perdure: fetch and the file tools
    python = "python"  # a function in the user's project
    http = "http"  # a POST of the tool request event
    mcp = "mcp"  # a tool of an MCP server
    a2a = "a2a"  # an agent elsewhere, which makes a task of a call
    signal = "signal"  # the result comes back as a `tool_result` signal
    queue = "queue"  # an activity of another worker, in any language


class Approval(StrEnum):
    never = "never"
    always = "always"


class QueueRoute(FrozenModel):
    """The route to a tool of kind `queue`: the task queue, the activity, and its heartbeat timeout."""

    task_queue: str
    activity: str
    heartbeat: Duration | None = omit_default(None)


class ToolRoute(FrozenModel):
    """A tool's row in a run's static tool table: its kind, effect and settings."""

    name: str
    kind: ToolKind
    effect: Effect
    approval: Approval = omit_default(Approval.never)
    timeout: Duration = omit_default(timedelta(seconds=1))  # builtins do not use it
    takes_step: bool = omit_default(True)
    pollable: bool = omit_default(False)  # loop detection ignores repeated calls
    approval_timeout: Duration | None = omit_default(None)
    is_posted: bool = omit_default(True)  # kind signal: the request is POSTed to a URL, or else read from the run
    queue: QueueRoute | None = omit_default(None)
    approval_kinds: tuple[str, ...] = omit_default(())  # `workflow_task_create`: tasks of these kinds need approval
    is_searched: bool = omit_default(default=False)  # the model finds it by `search_tools`
    example: str | None = omit_default(None)  # JSON of a result, for a dry run


@lru_cache(maxsize=256)
def _share_table(table: tuple[ToolRoute, ...]) -> tuple[ToolRoute, ...]:
    return table


# Equal tables are shared: a worker with a thousand runs of one agent holds one table.
ToolTable = Annotated[tuple[ToolRoute, ...], AfterValidator(_share_table)]


class InputRequest(FrozenModel):
    """A question of the server of a tool, before it goes on with a call. `key` is the server's name for it.

    `form` is the schema of an object of plain fields, `url` an address to open. A request with neither is one that
    Perdure does not carry out; `refused` says why.
    """

    key: str
    message: ForeignText
    form: dict[str, Any] | None = omit_default(None)
    url: str = omit_default("")
    refused: str = omit_default("")


class ServerTask(FrozenModel):
    """A task that the server of a tool has made of a call, as it was last seen.

    `poll_ms` is the server's pause between two looks, in milliseconds. The server forgets the task at `expires_at`;
    None: never.
    """

    server: str
    id: str
    status: str
    message: ForeignText = ""
    created_at: datetime
    expires_at: datetime | None = omit_default(None)
    poll_ms: int = 1000
    seen_at: datetime


class Unfinished(FrozenModel):
    """A call that its server has not finished: it has made it a task, or asks people first.

    `way` says how the answers reach the server: as an update of the `task`; with the call, made again with the server's
    `state`; ready at hand when the call, made again, asks the same; or not at all, as the person has acted elsewhere.
    `answers` are those so far, by key. `rounds` is how often the call was made again with answers.
    """

    way: Literal["task", "retry", "open", "elsewhere"]
    server: str
    task: ServerTask | None = omit_default(None)
    inputs: tuple[InputRequest, ...] = omit_default(())
    state: str | None = omit_default(None)
    answers: dict[str, JsonResult] = omit_default({})
    rounds: int = omit_default(0)


class ToolCall(SparseModel):
    """The input of the activity `call_tool`.

    `arguments` is None if they are large: the activity then reads them by `tool_use_id` from the transcript of
    `length` parts whose hash is `head`, so that history holds them once. `owner` is the run that first made the call,
    if it is another one: a resumed run keeps its origin's keys and ledger entries. `execution`, for `once` calls, is
    that run's first Temporal execution, as another run may have the same id. `key_id` replaces the run's id in the
    call's keys if an earlier run had the same id. `approval` is the digest of the approved call; no other call is
    made. `accepts` is the digest of a tool definition that a person accepted in place of the pinned one. `nonce`, for
    kind `signal`, must come back with the result at the gateway. `definition` is the hash of the run's definition, for
    `search_tools` and the tools that it finds: their schemas are not in the model's list of tools. `changed_by` is the
    person who changed the arguments: the transcript has the proposed ones. `unfinished` is what is known of a call that
    goes on.
    """

    step: int
    tool: str
    tool_use_id: str
    arguments: dict[str, Any] | None
    effect: Effect = Effect.read
    attempt: int = 1  # the call's generation: grows when a person decides "run again"
    length: int = 0
    head: str = ""
    owner: str | None = None
    execution: str | None = None
    key_id: str | None = None
    approval: str | None = None
    accepts: str | None = None
    nonce: str | None = None
    definition: str | None = None
    changed_by: str | None = None
    unfinished: Unfinished | None = None


class ChangedCall(FrozenModel):
    """The input of the activity `check_change`: a call with the arguments that a person wants instead."""

    tool: str
    arguments: dict[str, Any]


class ChangeCheck(FrozenModel):
    """The result: the reason why the changed call cannot be made, if any, and the policy's verdict, if it has one."""

    error: str | None = None
    verdict: PolicyVerdict | None = None


class ToolError(FrozenModel):
    """The error of a call. `kind` is one of `perdure.contracts.failures.ToolFault`, or the tool's own.

    `definition` is the digest of the tool's current definition if it was not accepted: a person decides.
    """

    kind: str
    """One of the [kinds](failures.md#errors-of-tools), or the tool's own."""
    message: ForeignText
    """The message to the model."""
    retryable: bool = False
    """`true` if a retry could help; the model sees it."""
    definition: str | None = omit_default(None)
    """For MCP tools only; leave it out."""


class Hold(FrozenModel):
    """A wait on the server, as an activity must not begin. `by` is what held it, such as "pause:all"."""

    by: str
    why: str
    since: datetime


class Holdable(FrozenModel):
    """The result of an activity that may have been held before it began; for the events of the run alone."""

    hold: Hold | None = omit_default(None)


class ToolOutcome(SparseModel, Holdable):
    """The outcome of a call. `result` is any JSON value; a large one is `{artifact_path, content_type, excerpt}`.

    `media` are images and PDF that the model sees with the result. `artifacts` are the deliverables that the call
    wrote, relative to the run's workspace. `interrupted`: an earlier attempt was lost with its worker. `at` is the time
    of its end, if a policy may look at it. With `unfinished` the call has not ended; an error then says why only a
    person can tell how.
    """

    status: Literal["ok", "error"] = "ok"
    result: JsonResult = None
    error: ToolError | None = None
    media: tuple[StoredMedia, ...] = ()
    artifacts: tuple[str, ...] = ()
    duration_ms: int = 0
    interrupted: bool = False
    at: datetime | None = omit_default(None)
    unfinished: Unfinished | None = omit_default(None)


class LargeResult(FrozenModel):
    """The input of the activity `keep_result`, and of the query `result` with which it reads the result."""

    step: int
    tool: str


def error_outcome(kind: str, message: str, *, retryable: bool = False) -> ToolOutcome:
    """Return the outcome of a failed call. The model sees the error."""
    return ToolOutcome(status="error", error=ToolError(kind=kind, message=message, retryable=retryable))


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
    """`mcp.lock.json`: a worker offers these tools alone. `programs` are those of stdio servers, by server."""

    version: Literal[1] = 1
    programs: dict[str, PinnedProgram] = Field(default_factory=dict)
    servers: dict[str, PinnedServer] = Field(default_factory=dict)


class PinState(StrEnum):
    """A tool's current definition compared with the accepted one."""

    pinned = "pinned"  # equal
    changed = "changed"  # calls wait for a person
    gone = "gone"  # calls fail
    new = "new"  # not offered
