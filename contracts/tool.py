"""What a tool is, one call of it, and what came back."""

from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from contracts.duration import Duration
from contracts.models import ForeignText, JsonResult, Terse, Value, sparse

RETRY_DELAYS = (0.5, 2.0, 8.0)  # seconds (B1)
MOST_ERROR = 8 * 1024  # characters of an error that a model is shown
MAX_RESULT_BYTES = 8 * 1024 * 1024  # of a result; the run keeps the first part of a larger one
CALL_MARGIN = timedelta(seconds=5)  # an activity's timeout over the tool's own, which speaks first


class Effect(StrEnum):
    """What a tool does to the world. The retry policy of its calls follows from this alone (B1, B2)."""

    read = "read"  # looks only
    keyed = "keyed"  # changes something, but the other side honours our idempotency key
    once = "once"  # changes something, and must never be repeated by the runtime


class ToolKind(StrEnum):
    """Where a tool lives (A7)."""

    builtin = "builtin"  # a decision: handled inside the workflow, costs no activity
    native = "native"  # comes with Perdure: fetch and the file tools
    python = "python"  # a function in the user's project
    http = "http"  # a POST of the tool request event
    mcp = "mcp"  # a tool of an MCP server
    signal = "signal"  # the result comes back as a `tool_result` signal
    queue = "queue"  # an activity of another worker, in any language


class Approval(StrEnum):
    never = "never"
    always = "always"


class QueueRoute(Value):
    """Where a tool of the kind `queue` is: the activity, who takes it, and how often it must say that it is alive."""

    task_queue: str
    activity: str
    heartbeat: Duration | None = sparse(None)


class ToolRoute(Value):
    """The row of the static tool table that a run's decisions need: where a call goes, how it may be retried."""

    name: str
    kind: ToolKind
    effect: Effect
    approval: Approval = sparse(Approval.never)
    timeout: Duration = sparse(timedelta(seconds=1))  # a builtin takes no time, and says none
    takes_step: bool = sparse(True)
    pollable: bool = sparse(False)  # repeats are no sign of a loop
    approval_timeout: Duration | None = sparse(None)
    is_posted: bool = sparse(True)  # of kind signal: the request is sent to a URL; else it is read from the run
    queue: QueueRoute | None = sparse(None)
    approval_kinds: tuple[str, ...] = sparse(())  # of `workflow_task_create`: a task of these kinds needs an approval


@lru_cache(maxsize=256)
def _one_of(table: tuple[ToolRoute, ...]) -> tuple[ToolRoute, ...]:
    return table


# Wherever it is read from, a worker with a thousand runs of one agent has its table once.
ToolTable = Annotated[tuple[ToolRoute, ...], AfterValidator(_one_of)]


class ToolCall(Terse):
    """The input of the activity `call_tool`.

    `arguments` is None where they are large: they are in the transcript already, as the model wrote them, and
    a byte of conversation enters history once. The activity then looks `tool_use_id` up there, in the transcript
    of `length` parts whose hash is `head`. `owner` is the run under whose id the call was first made, where it is
    not this one: a resumed run keeps its origin's keys, and its page of the ledger. `execution`, of `once` calls, is
    the first Temporal execution of that run: another run may be started under the same id. `key_id` stands for that
    run's id in the call's keys, where an earlier run had the same id. `approval` is the digest of the call that a
    person approved, where this one needed it: no other is made. `accepts` is the digest of the tool's definition that
    a person accepted for it, where that is not the pinned one. `nonce`, of the kind
    `signal`, is what the result must bring back at the gateway.
    """

    step: int
    tool: str
    tool_use_id: str
    arguments: dict[str, Any] | None
    effect: Effect = Effect.read
    attempt: int = 1  # grows when a person decides "run again"
    length: int = 0
    head: str = ""
    owner: str | None = None
    execution: str | None = None
    key_id: str | None = None
    approval: str | None = None
    accepts: str | None = None
    nonce: str | None = None


class ToolError(Value):
    """`kind` is one of `contracts.failures.ToolFault`; `retryable` says whether trying again could help.

    `definition` is the digest of what the tool's server says now, where that was not accepted: a person decides.
    """

    kind: str
    """One of the [kinds](failures.md#errors-of-tools), or a word of the tool's own."""
    message: ForeignText
    """For the model, which decides what to do about it."""
    retryable: bool = False
    """Whether trying again could help; the model is told."""
    definition: str | None = sparse(None)
    """Of MCP tools only: leave it out."""


class ToolOutcome(Terse):
    """What a call brought. `result` is any JSON value; a large one is `{artifact_path, content_type, excerpt}`.

    `artifacts` are the deliverables the call wrote, relative to the run's workspace. `interrupted` says that an
    attempt before this one was lost with its worker.
    """

    status: Literal["ok", "error"] = "ok"
    result: JsonResult = None
    error: ToolError | None = None
    artifacts: tuple[str, ...] = ()
    duration_ms: int = 0
    interrupted: bool = False


class LargeResult(Value):
    """The input of the activity `keep_result`, and of the query `result` by which it gets the result of the run."""

    step: int
    tool: str


def failed(kind: str, message: str, *, retryable: bool = False) -> ToolOutcome:
    """The outcome of a call that brought an error the model should see."""
    return ToolOutcome(status="error", error=ToolError(kind=kind, message=message, retryable=retryable))
